"""What people read about a case and its failure: one place, so that every command says it in the same words."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import torch

from conformance.cases import Argument, Case, DType, Ints, NonFinite, Same, Variant, View, operands
from conformance.checks import FAILED, UNCLAIMED
from conformance.implementations import DEFAULT
from conformance.runner import Verdict
from strategies import layouts
from strategies.specs import TensorSpec

_SIGNS = {FAILED: "failed", UNCLAIMED: "does not hold (not claimed)"}


def tensor(spec: TensorSpec) -> str:
    """Shape, strides, dtype and recipe of one tensor argument."""
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
    """The call, an argument to a line."""

    def text(argument: Argument) -> str:
        match argument:
            case TensorSpec():
                return tensor(argument)
            case Same(operand, shift):
                return f"operand {operand} itself" if not shift else f"operand {operand}, {-shift} elements earlier"
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
    return "\n".join((f"{case.op}(", *lines, ")"))


def findings(verdict: Verdict) -> str:
    """Each check that failed, or that does not hold, with its message."""
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
    path: Path,
    script: Path,
    no_script: str = "",
) -> str:
    """All about one failure, and the two commands that repeat it; ``no_script`` says why there is no script."""
    check = verdict.failure.check if verdict.failure else "nothing"
    dtypes = ", ".join(dict.fromkeys(spec.dtype for spec in operands(case))) or "no tensors"
    return "\n".join(
        (
            f"{case.op} ({dtypes}): {check} failed for {implementation} on {device}, case {verdict.id}",
            call(case),
            findings(verdict),
            f"saved {_relative(path)}" + ("" if no_script else f" and {_relative(script)}"),
            "replay it:",
            f"    {reproduce_command(path, implementation, device)}",
            "without the harness:" if not no_script else f"without the harness: no script was made, {no_script}",
            *([] if no_script else [f"    python {shlex.quote(_relative(script))}"]),
        )
    )


def reproduce_command(path: Path, implementation: str, device: torch.device) -> str:
    """The command that replays a saved case."""
    command = f"python -m conformance reproduce {shlex.quote(_relative(path))}"
    # Named even where it is the default: the command is pasted into reports.
    command += f" --implementation {shlex.quote(implementation or DEFAULT)}"
    return command if device.type == "cpu" else f"{command} --device {device}"


def _relative(path: Path) -> str:
    """The path as it is typed in the current directory."""
    relative = os.path.relpath(path)
    return str(path.absolute()) if relative.startswith("..") else relative
