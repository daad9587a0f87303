"""Run the judge and the judged process, and start fresh ones when the judged process dies.

One file: all of it is the life of these two processes, which one object keeps.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from multiprocessing import Pipe
from types import SimpleNamespace
from typing import IO, Any, TypeVar

import msgspec
import torch

from conformance import cases, forkserver, plain_process, sequences, stopwatch
from conformance import spec as specs
from conformance.cases import Case
from conformance.checks import FAILED, Finding
from conformance.implementations import TORCH, Implementation, ImplementationError
from conformance.judge_main import (
    Asked,
    Count,
    Explore,
    Gone,
    Importing,
    Item,
    Numbers,
    Play,
    Ready,
    Reply,
    Request,
    Script,
    Setup,
    Unusable,
)
from conformance.repro import ReproError
from conformance.runner import CRASH, OUT_OF_MEMORY, TIMEOUT, DeviceError, Verdict
from conformance.semantics import CUDA
from conformance.sequences import CallSequence
from conformance.stopwatch import Stopwatch

CASE_TIMEOUT = 120.0
"""Seconds for one case, unless the user says otherwise."""
ITEM = 30
"""A test of an op as a whole may take so many times as long as one case."""
SEQUENCE = 3
"""A sequence of calls, likewise."""
SEARCH = 5
"""A search, which makes hundreds of calls and judges none, may take so many times as long as one case."""
JUDGE = 10
"""The judge's own work on a case may take so many times as long as the case's calls may."""
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
"""The most lines of a child's last output, and of its stack, that are shown when it dies."""
_GLANCE = 0.5
"""Seconds between looks at whether the processes still live: processes that they forked may keep a socket open."""
_LAST_WORD = 5.0
"""Seconds that the judge has for its answer when the judged has ended."""

_T = TypeVar("_T")


class HarnessError(RuntimeError):
    """The harness itself failed in the child; the message has the child's traceback."""


class _Death(Exception):
    """The child gave no answer. ``check`` names the failure, the message says how it ended."""

    def __init__(self, check: str, message: str, killed: bool = False, judge: bool = False) -> None:
        super().__init__(message)
        self.check = check
        self.killed = killed
        """SIGKILL ended it, as where memory runs out."""
        self.judge = judge
        """The judge ended, and not the judged process."""


class Child:
    """Two processes for an implementation on a device, the judge and the judged, started at once and, when one died,
    anew for the next case. Neither CUDA nor the implementation is touched in this process.

    ``worker``: GPUs are taken in turn. ``timeout``: seconds for one case. ``import_timeout``: seconds for importing the
    implementation; None is ``timeout``, or ``IMPORT`` if that is more. 0 is no limit. ``semantics``: as of
    ``runner.choose_semantics``. Raises ImplementationError or DeviceError: for a text that can be no name.
    """

    def __init__(
        self,
        implementation: str,
        device: str = "auto",
        worker: int = 0,
        checks: Sequence[str] | None = None,
        timeout: float = 0.0,
        import_timeout: float | None = None,
        semantics: str = CUDA,
    ) -> None:
        # Names come from the command line, which may hold any bytes.
        if not implementation.isprintable():
            raise ImplementationError(f"implementation {implementation!r}: not a name")
        if not device.isprintable():
            raise DeviceError(f"device {device!r}: not a name")
        self.timeout = timeout
        self.import_timeout = (timeout and max(timeout, IMPORT)) if import_timeout is None else import_timeout
        self._setup = Setup(implementation, device, worker, checks, specs.brought(), semantics)
        self._printed = _in_memory()
        # Every child appends to it, so that it can be cut while one writes.
        fcntl.fcntl(self._printed, fcntl.F_SETFL, os.O_APPEND)
        self._ready = False
        self._about: Ready | None = None
        self._start()

    def ready(self) -> None:
        """Wait for the child; while importing takes long, a line on stderr says so. Raises DeviceError or
        ImplementationError, also where importing ends the process or passes its time."""
        if self._judge is None:
            self._start()
        if self._ready:
            return
        try:
            answer = self._receive(Importing | Unusable | Gone, START)
        except _Death as death:
            raise DeviceError(f"the process that judges did not start: {death}") from None
        try:
            if isinstance(answer, Importing):
                answer = self._receive(Ready | Unusable | Gone, self.import_timeout, self._still_importing)
        except _Death as death:
            name = self._setup.implementation
            raise ImplementationError(f"implementation {name!r}: importing it failed: {death}") from None
        if isinstance(answer, Unusable):
            self.close()
            raise (DeviceError if answer.what == "device" else ImplementationError)(answer.message)
        self._ready, self._about = True, answer

    @property
    def about(self) -> Ready:
        """The first child's description of itself. Raises what ``ready`` raises."""
        if self._about is None:
            self.ready()
        assert self._about is not None
        return self._about

    @property
    def implementation(self) -> Implementation:
        """The implementation by name, and what it provides; its functions are called in the child alone."""
        provider = SimpleNamespace(**dict.fromkeys(self.about.provides, _elsewhere))
        return Implementation(self._setup.implementation, provider, self.about.claims, self.about.left_out)

    @property
    def device(self) -> torch.device:
        return torch.device(self.about.device)

    def judge(
        self, case: Case, thorough: bool = True, checks: Sequence[str] | None = None, search: str = ""
    ) -> Verdict:
        """Judge a case in the child, as ``runner.judge``. The death or timeout of the child is a failure like any.

        Raises HarnessError: the harness itself failed.
        """
        return self._judged_as(
            Request(cases.canonical(case), thorough, checks, search=search), cases.case_id(case), case.op
        )

    def play(self, sequence: CallSequence) -> Verdict:
        """Judge a sequence in the child, as ``sequence_judge.judge``, likewise."""
        request, identity = Play(sequences.canonical(sequence)), sequences.sequence_id(sequence)
        return self._judged_as(request, identity, sequence.ops[0], SEQUENCE)

    def plain(self, chosen: Sequence[Case]) -> list[Verdict]:
        """Judge cases by a script in the child, as ``plain_calls.judge``, likewise."""
        if not chosen:
            return []
        try:
            return [*self._ask(Script([*map(cases.canonical, chosen)], START), ITEM * self.timeout).verdicts]
        except _Death as death:
            finding = Finding(death.check, FAILED, f"making calls for a script to repeat: {death}")
            return [Verdict(cases.case_id(chosen[0]), chosen[0].op, FAILED, (finding,))]

    def _judged_as(self, request: Request | Play, identity: str, op: str, times: int = 1) -> Verdict:
        try:
            verdict = self._ask(request, times * self.timeout, of_calls=True).verdict
        except _Death as death:
            if isinstance(request, Request) and (death.killed or death.judge):
                case = request.case
                if self._beyond(case, death, request.thorough, request.checks):
                    return Verdict(identity, op, OUT_OF_MEMORY)
            return Verdict(identity, op, FAILED, (Finding(death.check, FAILED, str(death)),))
        assert verdict is not None
        return verdict

    def _beyond(self, case: Case, death: _Death, thorough: bool, checks: Sequence[str] | None) -> bool:
        """Tell whether the judge lacks the memory for the oracle of a case, by judging torch on it in another child."""
        setup = self._setup
        if setup.implementation == TORCH:
            return death.judge
        apart = Child(TORCH, setup.device, setup.worker, setup.checks, self.timeout, semantics=setup.semantics)
        with contextlib.closing(apart):
            return apart.judge(case, thorough, checks).status == OUT_OF_MEMORY

    def script(self, case: Case, verdict: Verdict, *_: Any) -> str:
        """Write a script in the child, as ``repro.script``, since that has to ask torch on the device. Raises
        ReproError."""
        try:
            reply = self._ask(Request(cases.canonical(case), verdict=verdict), self.timeout)
        except _Death as death:
            raise ReproError(f"writing it ended with {death.check}") from None
        if reply.no_script:
            raise ReproError(reply.no_script)
        return reply.script

    def numbers(self, op: str) -> Sequence[float]:
        """Return the numbers in the code of an op, as of ``code_numbers.of``; none where asking for them ends the
        process."""
        try:
            return self._ask(Numbers(op), self.timeout).numbers
        except _Death:
            return ()

    def explore(self, starts: Sequence[Case], calls: int, elements: int, seed: str) -> Sequence[Case]:
        """Search for calls that come to new places of the code, as ``code_search.search``, the last of which may end
        the process; none where it takes too long."""
        try:
            request = Explore([*map(cases.canonical, starts)], calls, elements, seed)
            return self._ask(request, SEARCH * self.timeout).found
        except _Death:
            return ()

    def count(self, starts: Sequence[Case]) -> Sequence[tuple[Case, int]]:
        """Find how often calls have to be made, as ``code_counts.counted``; none where asking for it ends the process,
        or takes too long."""
        try:
            reply = self._ask(Count([*map(cases.canonical, starts)]), SEARCH * self.timeout)
        except _Death:
            return ()
        return list(zip(reply.found, reply.times, strict=True))

    def run(self, arguments: Sequence[str]) -> tuple[str, str]:
        """Run one item of pytest in the child; return whether it passed, failed or was skipped, and why."""
        try:
            reply = self._ask(Item(arguments), ITEM * self.timeout)
        except _Death as death:
            return FAILED, f"{death.check}: {death}"
        return reply.outcome, reply.message

    def output(self) -> str:
        """Return what children have printed since the last call, without the last words of those that died."""
        return self._cut(0)

    def close(self) -> None:
        """End the processes, if there are any. The next case starts others."""
        if self._judge is not None:
            self._connection.close()
            for process in (self._judge, self._judged):
                process.ended(GRACE)
            self._kill()

    def _start(self) -> None:
        self._judge: forkserver.Process | None
        environment = _environment()
        # A new one: a judge that was killed left its own running.
        self._timed = _in_memory()
        stopwatch.prepare(self._timed)
        self._stopwatch = Stopwatch(self._timed.fileno())
        self._connection, asked = Pipe()
        with asked:
            judges, judged = socket.socketpair()
            with judges, judged:
                self._judged = forkserver.start(
                    forkserver.JUDGED, plain_process.environment(environment), self._printed, [judged.fileno()]
                )
                descriptors = [asked.fileno(), judges.fileno(), self._timed.fileno()]
                self._judge = forkserver.start(forkserver.JUDGE, environment, self._printed, descriptors)
        self._ready, self._begun = False, 0
        with contextlib.suppress(ConnectionError):
            self._connection.send_bytes(msgspec.json.encode(self._setup))

    def _ask(self, request: Asked, timeout: float, of_calls: bool = False) -> Reply:
        """Return the judge's reply. ``of_calls``: the timeout is one of the calls in the judged process alone."""
        self.ready()
        self._begun = os.fstat(self._printed.fileno()).st_size
        try:
            # If the child is dead already, receiving tells.
            with contextlib.suppress(ConnectionError):
                self._connection.send_bytes(msgspec.json.encode(request))
            reply = self._receive(Reply | Gone, timeout, of_calls=of_calls)
        except _Death:
            raise
        except BaseException:
            # Interrupted: what the child answers later must not be taken for the answer to the next request.
            if self._judge is not None:
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
        self,
        kind: type[_T] | Any,
        seconds: float,
        waiting: Callable[[float], object] = lambda seconds: None,
        of_calls: bool = False,
    ) -> Any:
        """Return the judge's next message. Raises _Death, and then both processes are gone. ``waiting``: called after
        ``SILENCE`` seconds, and each time that these have doubled. ``of_calls``: as of ``_ask``."""
        judge, begin, silence = self._judge, time.monotonic(), SILENCE
        before, watch = self._stopwatch.seconds(), self._stopwatch.seconds if of_calls else None
        end = begin + seconds * (JUDGE if of_calls else 1) if seconds else float("inf")
        assert judge is not None

        def left() -> float:
            longest = end - time.monotonic()
            return min(longest, before + seconds - watch()) if watch is not None and seconds else longest

        try:
            while not self._connection.poll(max(0.0, min(_GLANCE, left()))):
                if time.monotonic() >= begin + silence:
                    waiting(silence)
                    silence *= 2
                if judge.ended(0) and not self._connection.poll(0):
                    raise EOFError
                # A process that the judged one forked may keep its socket open, so that the judge does not see its end.
                if self._judged.ended(0) and not self._connection.poll(_LAST_WORD):
                    raise self._died(self._judged)
                if left() <= 0:
                    # Before the judge notices that the judged process ends.
                    by_judge = watch is not None and not self._stopwatch.is_running()
                    # The handler of this signal writes the stacks, also where native code holds the interpreter's lock.
                    os.kill(self._judged.pid, signal.SIGABRT)
                    self._judged.ended(GRACE)
                    self._kill()
                    limit = seconds * (JUDGE if by_judge else 1)
                    raise _Death(TIMEOUT, f"no result after {limit:g} s{self._tail()}")
            answer = msgspec.json.decode(self._connection.recv_bytes(), type=kind)
        except (EOFError, ConnectionError):
            raise self._died(judge) from None
        except KeyboardInterrupt:
            # Its later answer must not be taken for another one, and nobody waits for its end.
            self._kill()
            raise
        if isinstance(answer, Gone):
            raise self._died(self._judged, answer.note)
        return answer

    def _died(self, process: forkserver.Process, note: str = "") -> _Death:
        """End both processes after one has ended, and make the exception that says so. ``note``: as of ``Gone``."""
        ended = process.ended(GRACE)
        statuses = self._kill()
        status = statuses[process is self._judged]
        judge = process is not self._judged
        # One that still runs is killed here, which says nothing of it.
        how = _ending(status) if ended else f"the process closed its connection, and still ran {GRACE:g} s later"
        return _Death(CRASH, f"{how}{note and f'; {note}'}{self._tail()}", ended and status == -signal.SIGKILL, judge)

    def _kill(self) -> tuple[int, int]:
        """End both processes, and all that they started; return how the judge and the judged ended."""
        judge, self._judge = self._judge, None
        assert judge is not None
        self._connection.close()
        for process in (judge, self._judged):
            # The whole session: what the process started goes with it.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        return _status(judge), _status(self._judged)

    def _tail(self) -> str:
        """Return the child's last output while it judged its last case, and the innermost part of its stack."""
        printed, fatal, stack = self._cut(self._begun).rpartition("Fatal Python error")
        if not fatal:
            printed, stack = stack, ""
        lines = [*printed.strip().splitlines()[-TAIL:], *(fatal + stack).splitlines()[:TAIL]]
        # The extension modules that faulthandler lists are of no use to anybody.
        lines = [f"\n    {line[:200]}".rstrip() for line in lines if not line.startswith("Extension modules:")]
        return "".join(("; it printed last:", *lines)) if lines else ""

    def _cut(self, begin: int) -> str:
        """Remove what was printed from there on, and return it."""
        descriptor = self._printed.fileno()
        text = os.pread(descriptor, os.fstat(descriptor).st_size - begin, begin)
        self._printed.truncate(begin)
        return text.decode(errors="replace")


def _in_memory() -> IO[bytes]:
    """Open a file that a full disk does not touch, where the system has such."""
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("printed"), "w+b", buffering=0)
    return tempfile.TemporaryFile(buffering=0)


def _environment() -> dict[str, str]:
    """Return the environment of this process. Under pytest-xdist torch and NumPy take their share of the cores, unless
    the user says otherwise: threads of small calls wait for one another longer than they compute."""
    workers = os.environ.get("PYTEST_XDIST_WORKER_COUNT")
    share = {"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // int(workers)))} if workers else {}
    return {**share, **os.environ}


def seconds(text: str) -> float:
    """Return the value of an option ``--case-timeout`` or ``--import-timeout``. Raises ValueError."""
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


def _status(process: forkserver.Process) -> int:
    try:
        return process.wait(DEATH)
    except subprocess.TimeoutExpired:
        raise HarnessError(f"process {process.pid} does not end although it was killed {DEATH:g} s ago") from None


def _elsewhere(*arguments: Any, **options: Any) -> Any:
    raise HarnessError("an implementation that a child process has loaded is called there alone")
