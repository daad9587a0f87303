"""Cases judged in a child process, which may die of them: a fresh one then takes over."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, TypeVar

import msgspec
import torch

from conformance import cases, processes
from conformance.cases import Case
from conformance.checks import FAILED, Finding
from conformance.child_main import Importing, Item, Ready, Reply, Request, Setup, Unusable
from conformance.implementations import Implementation, ImplementationError
from conformance.repro import ReproError
from conformance.runner import CRASH, TIMEOUT, DeviceError, Verdict

CASE_TIMEOUT = 120.0
"""Seconds for one case, unless the user says otherwise."""
ITEM = 30
"""A test of an op as a whole may take so many times as long as one case."""
START = 600.0
"""Seconds that a child may take to import the harness, and to find its device."""
IMPORT = 60.0
"""Seconds, at least, that it may take to import what it judges, unless the user says otherwise."""
IMPORT_LIMIT = f"for importing the implementation; 0 is no limit (default: that of a case, at least {IMPORT:g})"
SILENCE = 10.0
"""Seconds until the user is told that it still imports; told again each time that this has doubled."""
GRACE = 60.0
"""Seconds in which a child that is told to abort writes its stacks."""
DEATH = 60.0
"""Seconds in which a child that was killed is gone; a driver takes a while to stop its GPU."""
TAIL = 25
"""Lines of what a child printed last, and of its stack, that are shown when it dies."""
_GLANCE = 0.5
"""Seconds between looks at whether a child still lives: a process that it forked may keep the socket open."""

_T = TypeVar("_T")


class HarnessError(RuntimeError):
    """The harness itself failed in the child; the message has the child's traceback."""


class _Death(Exception):
    """The child gave no answer. ``check`` is what the failure is called, the message says how it ended."""

    def __init__(self, check: str, message: str) -> None:
        super().__init__(message)
        self.check = check


class Child:
    """A process of its own for an implementation on a device, started at once and, when it died, anew for the next
    case. Neither CUDA nor the implementation is touched in this process.

    ``worker``: GPUs are taken in turn. ``timeout``: seconds for one case. ``import_timeout``: seconds for importing the
    implementation; None is ``timeout``, or ``IMPORT`` if that is more. 0 is no limit.
    """

    def __init__(
        self,
        implementation: str,
        device: str = "auto",
        worker: int = 0,
        checks: Sequence[str] | None = None,
        timeout: float = 0.0,
        import_timeout: float | None = None,
    ) -> None:
        self.timeout = timeout
        self.import_timeout = (timeout and max(timeout, IMPORT)) if import_timeout is None else import_timeout
        self._setup = Setup(implementation, device, worker, checks)
        self._printed = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115  (until this object goes)
        # Every child appends to it, so that it can be cut while one writes.
        fcntl.fcntl(self._printed, fcntl.F_SETFL, os.O_APPEND)
        self._ready = False
        self._about: Ready | None = None
        self._start()

    def ready(self) -> None:
        """Wait for the child; while importing takes long, a line on stderr says so. Raises DeviceError or
        ImplementationError, also where importing ends the process or passes its time."""
        if self._process is None:
            self._start()
        if self._ready:
            return
        try:
            answer = self._receive(Importing | Unusable, START)
        except _Death as death:
            raise DeviceError(f"the process that judges did not start: {death}") from None
        try:
            if isinstance(answer, Importing):
                answer = self._receive(Ready | Unusable, self.import_timeout, self._still_importing)
        except _Death as death:
            name = self._setup.implementation
            raise ImplementationError(f"implementation {name!r}: importing it failed: {death}") from None
        if isinstance(answer, Unusable):
            self.close()
            raise (DeviceError if answer.what == "device" else ImplementationError)(answer.message)
        self._ready, self._about = True, answer

    @property
    def about(self) -> Ready:
        """What the first child said of itself. Raises what ``ready`` raises."""
        if self._about is None:
            self.ready()
        assert self._about is not None
        return self._about

    @property
    def implementation(self) -> Implementation:
        """Its name, and what it provides; to be called in the child alone."""
        provider = SimpleNamespace(**dict.fromkeys(self.about.provides, _elsewhere))
        return Implementation(self._setup.implementation, provider, self.about.claims)

    @property
    def device(self) -> torch.device:
        return torch.device(self.about.device)

    def judge(self, case: Case, thorough: bool = True, checks: Sequence[str] | None = None) -> Verdict:
        """``runner.judge`` in the child. That it dies or passes its time is a failure like any other.

        Raises HarnessError: the harness itself failed.
        """
        identity = cases.case_id(case)
        try:
            verdict = self._ask(Request(cases.canonical(case), thorough, checks), self.timeout).verdict
        except _Death as death:
            return Verdict(identity, case.op, FAILED, (Finding(death.check, FAILED, str(death)),))
        assert verdict is not None
        return verdict

    def script(self, case: Case, verdict: Verdict, *_: Any) -> str:
        """``repro.script`` in the child, which has to ask torch on the device. Raises ReproError."""
        try:
            reply = self._ask(Request(cases.canonical(case), verdict=verdict), self.timeout)
        except _Death as death:
            raise ReproError(f"writing it ended with {death.check}") from None
        if reply.no_script:
            raise ReproError(reply.no_script)
        return reply.script

    def run(self, arguments: Sequence[str]) -> tuple[str, str]:
        """Run one item of pytest in the child: whether it passed, failed or was skipped, and why."""
        try:
            reply = self._ask(Item(arguments), ITEM * self.timeout)
        except _Death as death:
            return FAILED, f"{death.check}: {death}"
        return reply.outcome, reply.message

    def output(self) -> str:
        """What children have printed since this was last asked, without the last words of those that died."""
        return self._cut(0)

    def close(self) -> None:
        """End the process, if there is one. The next case starts another."""
        if self._process is not None:
            self._connection.close()
            self._process.ended(GRACE)
            self._kill()

    def _start(self) -> None:
        self._process: processes.Process | None
        self._process, self._connection = processes.start(_environment(), self._printed)
        self._ready, self._begun = False, 0
        with contextlib.suppress(ConnectionError):
            self._connection.send_bytes(msgspec.json.encode(self._setup))

    def _ask(self, request: Request | Item, timeout: float) -> Reply:
        self.ready()
        self._begun = os.fstat(self._printed.fileno()).st_size
        try:
            # Where the child is dead already, receiving tells.
            with contextlib.suppress(ConnectionError):
                self._connection.send_bytes(msgspec.json.encode(request))
            reply = self._receive(Reply, timeout)
        except _Death:
            raise
        except BaseException:
            # Interrupted: what the child answers later must not be taken for the answer to the next request.
            if self._process is not None:
                self._kill()
            raise
        if reply.lost:
            self._kill()
        if reply.fault:
            raise HarnessError(f"the harness failed in the child process\n{reply.fault}")
        return reply

    def _still_importing(self, seconds: float) -> None:
        limit = f"after {self.import_timeout:g} s it has failed" if self.import_timeout else "there is no limit"
        name = self._setup.implementation
        print(f"still importing {name} after {seconds:g} s; {limit} (--import-timeout)", file=sys.stderr, flush=True)

    def _receive(
        self, kind: type[_T] | Any, seconds: float, waiting: Callable[[float], object] = lambda seconds: None
    ) -> Any:
        """The child's next message. Raises _Death, and then the child is gone. ``waiting``: told after ``SILENCE``
        seconds, and each time that these have doubled."""
        process, begin, silence = self._process, time.monotonic(), SILENCE
        end = begin + seconds if seconds else float("inf")
        assert process is not None
        try:
            while not self._connection.poll(max(0.0, min(_GLANCE, end - time.monotonic()))):
                if time.monotonic() >= begin + silence:
                    waiting(silence)
                    silence *= 2
                if process.ended(0) and not self._connection.poll(0):
                    raise EOFError
                if time.monotonic() >= end:
                    # The handler of this signal writes the stacks, also where native code holds the interpreter's lock.
                    os.kill(process.pid, signal.SIGABRT)
                    process.ended(GRACE)
                    self._kill()
                    raise _Death(TIMEOUT, f"no result after {seconds:g} s{self._tail()}")
            return msgspec.json.decode(self._connection.recv_bytes(), type=kind)
        except (EOFError, ConnectionError):
            process.ended(GRACE)
            raise _Death(CRASH, f"{_ending(self._kill())}{self._tail()}") from None

    def _kill(self) -> int:
        process, self._process = self._process, None
        assert process is not None
        self._connection.close()
        # The whole session: what the child started goes with it.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        try:
            return process.wait(DEATH)
        except subprocess.TimeoutExpired:
            raise HarnessError(f"process {process.pid} does not end although it was killed {DEATH:g} s ago") from None

    def _tail(self) -> str:
        """What the child printed last while it judged its last case, and the innermost part of its stack."""
        printed, fatal, stack = self._cut(self._begun).rpartition("Fatal Python error")
        if not fatal:
            printed, stack = stack, ""
        lines = [*printed.strip().splitlines()[-TAIL:], *(fatal + stack).splitlines()[:TAIL]]
        # What faulthandler adds of extension modules is of no use to anybody.
        lines = [f"\n    {line[:200]}".rstrip() for line in lines if not line.startswith("Extension modules:")]
        return "".join(("; it printed last:", *lines)) if lines else ""

    def _cut(self, begin: int) -> str:
        """Remove what was printed from there on."""
        descriptor = self._printed.fileno()
        text = os.pread(descriptor, os.fstat(descriptor).st_size - begin, begin)
        self._printed.truncate(begin)
        return text.decode(errors="replace")


def _environment() -> dict[str, str]:
    """That of this process. Under pytest-xdist torch and NumPy take their share of the cores, unless the user says
    otherwise: threads of small calls wait for one another longer than they compute."""
    workers = os.environ.get("PYTEST_XDIST_WORKER_COUNT")
    share = {"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // int(workers)))} if workers else {}
    return {**share, **os.environ}


def seconds(text: str) -> float:
    """The value of an option ``--case-timeout`` or ``--import-timeout``. Raises ValueError."""
    if not 0 <= float(text) < float("inf"):
        raise ValueError(text)
    return float(text)


def _ending(status: int) -> str:
    if status >= 0:
        return f"the process ended itself with exit status {status}"
    number = -status
    name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
    why = " (sent by the system when memory runs out, or by somebody)" if number == signal.SIGKILL else ""
    return f"the process was ended by {name}{why}"


def _elsewhere(*arguments: Any, **options: Any) -> Any:
    raise HarnessError("an implementation that a child process has loaded is called there alone")
