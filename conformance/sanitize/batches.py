"""Run processes under a sanitizer: the task of each, its options and its result."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO

import msgspec

from conformance import cases, features, sequences
from conformance import spec as specs
from conformance.cases import Case
from conformance.sanitize import reports
from conformance.sanitize.driver import ALLOCATING, CONSAN_ENVIRONMENT, Outcome, Plan

_OPTIONS: Mapping[str, Sequence[str]] = {
    # memcheck need not report the driver's own calls of CUDA: an implementation that cannot be called raises. Padding
    # behind each allocation keeps an access past its end out of the next one.
    "memcheck": ("--report-api-errors", "no", "--padding", "4096"),
}
_COMMON = (
    *("--target-processes", "application-only"),  # not Triton's compilers
    *("--destroy-on-device-error", "kernel"),  # the cases after it run, too
    *("--show-backtrace", "device"),
    *("--launch-timeout", "0"),
    *("--require-cuda-init", "no"),
    *("--check-exit-code", "no"),
)


stopped = threading.Event()
"""Set where the user interrupts: processes that run are ended, and none waits for its limit."""

NAME = "compute-sanitizer"
TOOLKIT = "/usr/local/cuda/bin"


class SanitizerError(RuntimeError):
    """Nothing can be run under this sanitizer. The message is for people."""


@dataclasses.dataclass(frozen=True)
class Batch:
    """One process: an operator's cases, or a control, under one tool."""

    tool: str
    name: str
    plan: Plan


@dataclasses.dataclass(frozen=True)
class Result:
    """The result of a batch."""

    batch: Batch
    outcome: Outcome
    report: reports.Report
    problem: str = ""
    """Why it did not come to its end."""

    @property
    def found(self) -> bool:
        return self.report.count > 0


def find(path: Path | None) -> Path:
    """Return compute-sanitizer: the one given, of PATH, of the wheel ``nvidia-cuda-sanitizer-api``, or of the CUDA
    toolkit.

    Raises SanitizerError.
    """
    wheels = [Path(folder, "nvidia", "cu13", "bin") for folder in sys.path]
    folders = (os.environ.get("PATH", ""), *map(str, wheels), TOOLKIT)
    # A path with a folder in it is taken as it is.
    found = shutil.which(path or NAME, path=os.pathsep.join(folders))
    if found is None:
        what = f"{path} is no program" if path else f"{NAME} is not on PATH"
        hint = "it comes with the CUDA toolkit, and as the package nvidia-cuda-sanitizer-api"
        raise SanitizerError(f"{what}; {hint}")
    return Path(found)


def version(sanitizer: Path) -> str:
    """Return the line that names its version. Raises SanitizerError where it does not start."""
    try:
        printed = subprocess.run([sanitizer, "--version"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise SanitizerError(f"{sanitizer} does not start: {error}") from None
    return next((line for line in printed.splitlines() if line.startswith("Version")), printed.strip())


def chosen(files: Iterable[Path], ops: Sequence[str] | None, number: int, max_elements: int) -> dict[str, list[Path]]:
    """Return the files of cases of each op within ``max_elements``, the small ones first; sequences are left out.

    ``number``: at most so many of each op (0: all), each the one with the most features that those before it lack.
    """
    read: list[tuple[Path, Case]] = []
    for file in files:
        # The process that calls the case would refuse to read it.
        with contextlib.suppress(cases.TooLarge):
            case = sequences.read(file, max_elements=max_elements)
            if isinstance(case, Case):
                read.append((file, case))
    by_op: dict[str, list[tuple[Path, Case]]] = {op: [] for op in sorted(ops or specs.registry())}
    for file, case in sorted(read, key=lambda one: (cases.elements(one[1]), one[0].name)):
        if case.op in by_op:
            by_op[case.op].append((file, case))
    return {op: _various(found, number) for op, found in by_op.items() if found}


def _various(ordered: list[tuple[Path, Case]], number: int) -> list[Path]:
    if not 0 < number < len(ordered):
        return [file for file, _ in ordered]
    left = [(file, set(features.names(features.of_arguments(case)))) for file, case in ordered]
    kept: list[Path] = []
    seen: set[str] = set()
    while len(kept) < number:
        # Of equal ones max takes the first, which is the smallest.
        best = max(left, key=lambda one: len(one[1] - seen))
        left.remove(best)
        kept.append(best[0])
        seen |= best[1]
    return [file for file, _ in ordered if file in kept]


def check(plan: Plan, timeout: float) -> None:
    """Load the implementation in a process of its own, under no sanitizer. Raises SanitizerError."""
    result = run(Batch(reports.CONSAN, "loading", plan), None, (), timeout, None)
    if result.problem:
        raise SanitizerError(result.problem)


def run(batch: Batch, sanitizer: Path | None, extra: Sequence[str], timeout: float, log: Path | None) -> Result:
    """Run a batch to its end, or for ``timeout`` seconds. ``log``: the folder for all that it prints."""
    with tempfile.TemporaryDirectory() as folder:
        plan, written, printed = (Path(folder, name) for name in ("plan.json", "outcome.json", "printed.txt"))
        plan.write_bytes(msgspec.json.encode(batch.plan))
        with printed.open("wb") as output:
            command = _command(batch.tool, sanitizer, extra, plan, written)
            status = _wait(command, _environment(batch.tool), output, timeout)
        text = printed.read_text(errors="replace")
        outcome = msgspec.json.decode(written.read_bytes(), type=Outcome) if written.exists() else None
    if log is not None:
        name = "".join(letter if letter.isalnum() else "_" for letter in f"{batch.tool} {batch.name}")
        (log / f"{name}.txt").write_text(text)
    report = reports.read(batch.tool, text)
    problem = ""
    if status is None:
        problem = f"it took more than {timeout:g} s and was ended"
    elif report.unusable:
        problem = report.unusable
    elif outcome is None or (status and not report.count):
        problem = f"exit status {status}; it printed last: {_last(text)}"
    elif outcome.failed and not report.count:
        problem = outcome.failed
    return Result(batch, outcome or Outcome(), report, problem)


def _command(tool: str, sanitizer: Path | None, extra: Sequence[str], plan: Path, written: Path) -> list[str]:
    # The process can import what this one can.
    call = "from conformance.sanitize.driver import main; sys.exit(main(sys.argv[1:]))"
    program = [sys.executable, "-u", "-c", f"import sys; sys.path[:] = {sys.path!r}; {call}", str(plan), str(written)]
    if tool == reports.CONSAN:
        return program
    return [str(sanitizer), "--tool", tool, *_COMMON, *_OPTIONS.get(tool, ()), *extra, *program]


def _environment(tool: str) -> dict[str, str]:
    return {**os.environ, **ALLOCATING, **(CONSAN_ENVIRONMENT if tool == reports.CONSAN else {})}


def _wait(command: Sequence[str], environment: Mapping[str, str], output: IO[bytes], timeout: float) -> int | None:
    """Wait for the process and return its exit status; None where the time passed. Nothing that was started stays."""
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        env=environment,
        start_new_session=True,
    )
    end = time.monotonic() + timeout if timeout else math.inf
    try:
        while time.monotonic() < end and not stopped.is_set():
            with contextlib.suppress(subprocess.TimeoutExpired):
                return process.wait(1)
        return None
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _last(text: str) -> str:
    return next((line for line in reversed(text.splitlines()) if line.strip(" =")), "nothing")[:200]
