"""Messages about cases and failures, in one place, so that every command uses the same words."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import NamedTuple

import msgspec
import torch

from conformance import cases, environment, semantics
from conformance import spec as specs
from conformance.cases import Argument, Case, DType, Ints, NonFinite, Same, Variant, View, operands
from conformance.checks import FAILED, UNCLAIMED
from conformance.implementations import DEFAULT
from conformance.runner import Verdict
from conformance.sequences import CallSequence, Step, sequence_id
from strategies import layouts
from strategies.specs import TensorSpec

_SIGNS = {FAILED: "failed", UNCLAIMED: "does not hold (not claimed)"}


class Kept(NamedTuple):
    """The files of a failing case and its script: ``path`` is None where it cannot be saved, ``unsaved`` says why."""

    path: Path | None
    script: Path
    no_script: str = ""
    """Why there is no script."""
    unsaved: str = ""


def tensor(spec: TensorSpec) -> str:
    """Return shape, strides, dtype and recipe of one tensor argument as text."""
    strides = layouts.strides(spec.layout, spec.shape)
    text = f"{spec.dtype}{list(spec.shape)} strides {list(strides)}"
    if spec.layout.offset:
        text += f" offset {spec.layout.offset}"
    text += f", {spec.values}, seed {spec.seed}"
    for special in spec.specials:
        run = f" to {special.index + special.run - 1}" if special.run > 1 else ""
        text += f", {special.value} at {special.index}{run}"
    return text


def call(case: Case) -> str:
    """Return the call as text, an argument to a line."""

    def text(argument: Argument) -> str:
        match argument:
            case TensorSpec():
                return tensor(argument)
            case Same(operand, shift, turned):
                swapped = ", its last two dims swapped" if turned else ""
                moved = f", {-shift} elements earlier" if shift else ""
                return f"operand {operand}{moved}{swapped}" if shift or turned else f"operand {operand} itself"
            case View(operand, dim, start, length):
                return f"operand {operand}, {start} to {start + length} of dim {dim}"
            case DType(name):
                return f"torch.{name}"
            case Variant(name):
                return f"CausalVariant.{name}"
            case Ints(items):
                return repr(list(items))
            case NonFinite(value):
                return f"float({value!r})"
        return repr(argument)

    lines = [f"    {text(argument)}," for argument in case.args]
    lines += [f"    {name}={text(case.kwargs[name])}," for name in sorted(case.kwargs)]
    return "\n".join((f"{case.op}(", *lines, f")  # form: {case.form}" if case.form else ")"))


SHOWN = 8
"""The most steps of a sequence that a message shows."""
_MEMORY = {
    "new": "new memory",
    "address": "new tensors at the addresses of earlier ones",
    "freed": "the same, made when those of the call before are gone",
    "same": "the same tensors, changed in place",
    "behind": "the same tensors, changed unknown to torch",
    "arena": "new memory, one operand behind another",
}
_RESULT = {
    "kept": "result kept",
    "view": "a view of the result kept",
    "dropped": "result dropped",
    "overwritten": "result overwritten by the user",
}


def steps(sequence: CallSequence) -> str:
    """Return the calls of a sequence as text, each after what its case does not say."""

    def text(number: int, step: Step) -> str:
        settings = msgspec.to_builtins(step.settings)
        times = [f"{step.times} times, other contents each"] * (step.times > 1)
        times += [f"gradients {step.gradients}"] * (step.gradients != "")
        told = (_MEMORY[step.memory], _RESULT[step.result], *times, *(f"{k}={v}" for k, v in settings.items()))
        return f"{number + 1}. {'; '.join(told)}\n{call(step.case)}"

    lines = [text(*numbered) for numbered in enumerate(sequence.steps[:SHOWN])]
    more = len(sequence.steps) - len(lines)
    return "\n".join((*lines, *([f"and {more} more"] if more else [])))


def told(found: Case | CallSequence) -> str:
    """Return the contents of a file as text: the call, or the calls."""
    return call(found) if isinstance(found, Case) else steps(found)


def sequence_failure(
    sequence: CallSequence,
    verdict: Verdict,
    implementation: str,
    device: torch.device,
    path: Path,
    note: str = "",
    where: str = "",
) -> str:
    """Return the message about the failure of a sequence, with the command that repeats it; ``where`` as of
    ``failure``."""
    check = verdict.failure.check if verdict.failure else "nothing"
    found = [finding.message for finding in verdict.findings if finding.status == FAILED]
    return "\n".join(
        (
            f"{', '.join(sequence.ops)}: {check} failed for {implementation} on {device}, {sequence_id(sequence)}",
            f"{sequence.count} calls of one process:",
            steps(sequence),
            *found,
            *([note] if note else []),
            environment.line(implementation, where or device_name(device)),
            f"saved {_relative(path)}",
            "replay it:",
            f"    {reproduce_command(path, implementation, device)}",
        )
    )


def findings(verdict: Verdict) -> str:
    """Return each check that failed, or that does not hold, with its message."""
    return "\n".join(
        f"{finding.check} {_SIGNS.get(finding.status, finding.status)}: {finding.message}"
        + (f"\n  in {call(finding.case)}" if finding.case is not None else "")
        for finding in verdict.findings
        if finding.message
    )


def failure(
    case: Case,
    verdict: Verdict,
    implementation: str,
    device: torch.device,
    kept: Kept,
    where: str = "",
) -> str:
    """Return the message about one failure, with the two commands that repeat it.

    ``where``: the name of the device, where it is not to be asked for here."""
    check = verdict.failure.check if verdict.failure else "nothing"
    dtypes = ", ".join(dict.fromkeys(spec.dtype for spec in operands(case))) or "no tensors"
    return "\n".join(
        (
            f"{case.op} ({dtypes}): {check} failed for {implementation} on {device}, case {verdict.id}",
            call(case),
            findings(verdict),
            environment.line(implementation, where or device_name(device)),
            *_saved(kept, case),
            "replay it:",
            f"    {_replayed(case.op) or reproduce_command(kept.path or Path('CASE.json'), implementation, device)}",
            *_script(kept),
        )
    )


def device_name(device: torch.device) -> str:
    """Return the name of a GPU, or "cpu"."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else str(device)


def by_semantics() -> str:
    """Return what is added to a line where other semantics than CUDA's count."""
    return f", {semantics.OPTION} {semantics.CPU}" if semantics.of_cpu() else ""


def _saved(kept: Kept, case: Case) -> list[str]:
    written = [_relative(path) for path in (kept.path, None if kept.no_script else kept.script) if path is not None]
    lines = [f"saved {' and '.join(written)}"] if written else []
    if kept.path is None:
        lines += [f"the case cannot be saved, {kept.unsaved}; make CASE.json of it:", cases.in_one_line(case)]
    return lines


def _script(kept: Kept) -> list[str]:
    if kept.no_script:
        return [f"without the harness: no script was made, {kept.no_script}"]
    return ["without the harness:", f"    python {shlex.quote(_relative(kept.script))}"]


def _replayed(op: str) -> str:
    """Return how else a case of an op is replayed; empty where there is no other way."""
    spec = specs.registry().get(op)
    return spec.again if spec is not None else ""


def reproduce_command(path: Path, implementation: str, device: torch.device) -> str:
    """Return the command that replays a saved case."""
    command = f"python -m conformance reproduce {shlex.quote(_relative(path))}"
    # Named even where it is the default: the command is pasted into reports.
    command += f" --implementation {shlex.quote(implementation or DEFAULT)}"
    command += "".join(f" --specs {shlex.quote(name)}" for name in specs.brought())
    command += f" {semantics.OPTION} {semantics.CPU}" if semantics.of_cpu() else ""
    return command if device.type == "cpu" else f"{command} --device {device}"


def _relative(path: Path) -> str:
    """Return the path as it is typed in the current directory."""
    relative = os.path.relpath(path)
    return str(path.absolute()) if relative.startswith("..") else relative
