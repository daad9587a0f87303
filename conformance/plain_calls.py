"""The check ``plain``: a script of a few lines makes the call in a process of its own, as a user would.

An implementation can tell the judged process from others: by its parents, its command line, the files of its callers.
The script's process holds an interpreter, torch and the implementation, and has to give what the judged one gave.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from conformance import cases, forms, runner, runtime
from conformance import spec as specs
from conformance.calls import Outcome
from conformance.cases import Case
from conformance.checks import FAILED, PASSED, Finding
from conformance.checks.call_record import difference, malformed
from conformance.checks.result import judged, wrong
from conformance.implementations import Implementation, module_of
from conformance.runner import Verdict

PLAIN = "plain"
"""The name of the check."""
FEW, SHARE = 3, 10
"""The least number of cases of one op, and one in so many drawn cases of each dtype, where that is more."""
SMALL = 1 << 21
"""The most elements of the operands of one case."""
TELLING = ("PYTEST", "HYPOTHESIS")
"""Prefixes of the variables of the environment that tell that a test runs."""
_SCRIPT = """import torch
{load}

{device}# As where operands are drawn.
torch.rand(1)
results = []
for name, args, kwargs in torch.load({given!r}, weights_only=False):
    try:
        results.append(getattr({name}, name)(*args, **kwargs))
    except Exception as error:
        results.append(f"{{type(error).__name__}}: {{error}}")
torch.save(results, {made!r})
"""
_LINES = 5
"""The number of last lines of a script's output that are shown."""


@dataclasses.dataclass
class Pool:
    """Cases that passed, of which some are made once more by a script at the end of the run."""

    _found: dict[str, dict[str, dict[str, Case]]] = dataclasses.field(default_factory=dict)
    """The cases by op and dtype, and by their ids."""
    _first: list[Case] = dataclasses.field(default_factory=list)

    def take(self, case: Case, verdict: Verdict, replayed: bool = False) -> None:
        """Note a case and the verdict on it. ``replayed``: it failed in an earlier run."""
        if not fits(case, verdict):
            return
        if replayed:
            self._first.append(case)
        kept = self._found.setdefault(case.op, {}).setdefault(cases.dtype_of(case), {})
        kept[verdict.id] = case
        if len(kept) > SHARE:
            # The larger ones stay: they show more.
            kept.pop(min(kept, key=lambda identity: (cases.size(kept[identity]), identity)))

    def chosen(self, most: int) -> list[Case]:
        """Return at most so many cases of each op, of all dtypes in turn, and those that failed in an earlier run."""
        found = list(self._first)
        for dtypes in self._found.values():
            rows = [sorted(kept.values(), key=cases.size, reverse=True) for kept in dtypes.values()]
            turns = [row[turn] for turn in range(SHARE) for row in rows if turn < len(row)]
            found += turns[:most]
        return found


def fits(case: Case, verdict: Verdict) -> bool:
    """Tell whether a script can repeat the call with the same result: it is a small legal one that passed, is not
    random, writes nothing but its result and has the plain form."""
    spec = specs.registry()[case.op]
    small = sum(torch.Size(operand.shape).numel() for operand in cases.operands(case)) <= SMALL
    legal = verdict.status == PASSED and not verdict.refused and not case.form
    # What a call writes to a KV cache is no result.
    writes_cache = "out" not in case.kwargs and case.kwargs.get("inplace") is not True and bool(spec.writes(case))
    return legal and small and "distribution" not in spec.checks and not writes_cache


def judge(
    chosen: Sequence[Case], implementation: Implementation, device: torch.device, seconds: float | None = None
) -> list[Verdict]:
    """Judge whether a script gives what the judged process gives; return a verdict on each case.

    ``seconds``: the time limit of the script. Raises ``calls.Lost``: the judged process ended.
    """
    prepared = [runner.prepare(case, device) for case in chosen]
    ours = [one.invoke(implementation.maker(one.case.op)) for one in prepared]
    # torch cannot resize what a script loads.
    kept = [place for place, one in enumerate(prepared) if not _resizes(one)]
    prepared, ours = [prepared[place] for place in kept], [ours[place] for place in kept]
    if not prepared:
        return []
    made, problem = _made(prepared, implementation, device, seconds)
    if problem:
        return [_verdict(prepared[0].case, problem)]
    return [
        _verdict(one.case, _differing(one, implementation, first, second))
        for one, first, second in zip(prepared, ours, made, strict=True)
    ]


def _resizes(prepared: runner.Prepared) -> bool:
    """Tell whether torch resizes an operand, which it is given as ``out``."""
    operands = zip(prepared.inputs, prepared.reference.operands, strict=True)
    return any(before.shape != after.shape for before, after in operands)


def _verdict(case: Case, message: str) -> Verdict:
    status = FAILED if message else PASSED
    return Verdict(cases.case_id(case), case.op, status, (Finding(PLAIN, status, message),))


def _differing(prepared: runner.Prepared, implementation: Implementation, ours: Outcome, made: Outcome) -> str:
    """Say how a script's result differs from the judged process's, or, where determinism is not claimed, how it is
    wrong; empty: not at all."""
    if ours.error is None and (message := malformed(ours.value, prepared.reference.value)):
        # A result that is kept from calls that were differentiated knows of them.
        return f"called once more it {message}"
    message = difference(ours, made, "the judged process and a plain script")
    if message and "deterministic" not in implementation.claims(prepared.case.op):
        trial = runner.tried(prepared, implementation)
        theirs = dataclasses.replace(trial.ours, value=made.value, error=made.error, places=None, told=None)
        if trial.spec.writes(trial.case) and made.error is None:
            # Operands that the script writes are not those of this process.
            found = malformed(made.value, trial.reference.value) or judged(trial, theirs).message
        else:
            found = wrong(trial, theirs)
        message = found and f"in a plain script it is wrong: {found}"
    return message


def _made(
    prepared: Sequence[runner.Prepared], implementation: Implementation, device: torch.device, seconds: float | None
) -> tuple[list[Outcome], str]:
    """Run a script of all calls; return its results, or what is wrong with all of it."""
    module, _, path = module_of(implementation.name).partition(":")
    load = f"import {module}"
    if module.endswith(".py"):
        file = Path(module).resolve()
        module, load = file.stem, f"import sys\nsys.path.append({str(file.parent)!r})\nimport {file.stem}"
    name = f"{module}{'.' if path else ''}{path}"
    with tempfile.TemporaryDirectory() as folder:
        # Under any name: an implementation can find out its own.
        script, given, made, printed = (
            Path(folder, one) for one in (f"{secrets.token_hex(4)}.py", "operands.pt", "results.pt", "printed.txt")
        )
        torch.save([_written(one, device) for one in prepared], given)
        on = f"torch.cuda.set_device({device.index})\n" if device.index else ""
        text = _SCRIPT.format(load=load, name=name, device=on, given=str(given), made=str(made))
        script.write_text(text)
        with printed.open("wb") as output:
            ended = _run(script, output, device, seconds)
        told = "".join(f"\n    {line}" for line in printed.read_text(errors="replace").splitlines()[-_LINES:])
        if ended:
            return [], f"a plain script of some calls {ended}; it printed last:{told}"
        try:
            # Only tensors and texts: somebody else's code wrote it.
            results = torch.load(made, weights_only=True)
            return [_outcome(result) for _, result in zip(prepared, results, strict=True)], ""
        # Any error: that file may hold anything.
        except Exception as error:  # noqa: BLE001
            kind = f"{type(error).__name__}: {str(error)[:200]}"
            return [], f"a plain script of some calls left no results that can be read: {kind}{told}"


def _written(prepared: runner.Prepared, device: torch.device) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
    """Return a call as it is saved for the script."""
    operands = [runtime._copy(tensor, device) for tensor in prepared.inputs]
    args, kwargs = forms.bind(prepared.case, operands)
    return prepared.case.op, tuple(args), dict(kwargs)


def _outcome(result: Any) -> Outcome:
    if isinstance(result, str):
        return Outcome((), error=RuntimeError(result))
    return Outcome((), tuple(result) if isinstance(result, list) else result)


def environment(inherited: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without the variables that tell that pytest runs."""
    return {name: value for name, value in inherited.items() if not name.startswith(TELLING)}


def _run(script: Path, output: Any, device: torch.device, seconds: float | None) -> str:
    """Run a script; return how it ended, where that is not well."""
    # Without the paths that an interpreter finds by itself.
    paths = [os.path.abspath(path) for path in (*sys.path, "")]
    own = [path for path in dict.fromkeys(paths) if not path.startswith((sys.prefix, sys.base_prefix))]
    variables = environment(os.environ) | {"PYTHONPATH": os.pathsep.join(own)}
    if device.type == "cpu":
        variables.setdefault("TRITON_INTERPRET", "1")
    told = script.with_name("status")
    shell = subprocess.Popen(
        ["/bin/sh", "-c", _APART, sys.executable, str(script), str(told), _place_of_others()],
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        env=variables,
        # The folder of the run may tell that a harness is at hand.
        cwd=script.parent,
        start_new_session=True,
    )
    try:
        shell.wait()
        end = None if seconds is None else time.monotonic() + seconds
        while not told.exists():
            if end is not None and time.monotonic() > end:
                return f"did not end in {seconds:g} s"
            if not _lives(shell.pid) and not told.exists():
                return "was ended together with the shell that ran it"
            time.sleep(0.02)
        status = told.read_text().strip()
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(shell.pid, signal.SIGKILL)
    return f"ended with exit status {status}" if status != "0" else ""


def _lives(group: int) -> bool:
    """Tell whether a process group still has a process."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, 0)
        return True
    return False


_APART = """[ -z "$3" ] || echo "$3" > /proc/self/oom_score_adj
("$0" "$1"; echo $? > "$2.part"; mv "$2.part" "$2") &
"""
"""The script of a shell that ends at once, so that no ancestor of the script's process tells of a judge."""


def _place_of_others() -> str:
    """Return the place that other processes have in the order of being killed when memory runs out: the judge comes
    first."""
    parents = Path(f"/proc/{os.getppid()}/oom_score_adj")
    return parents.read_text().strip() if parents.exists() else ""
