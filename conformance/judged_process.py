"""A process that holds an implementation, for callers that hold the oracle and the verdict themselves."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Callable, Generator, Mapping
from typing import IO, TypeVar

import torch

from conformance import forkserver, plain_process
from conformance.calls import Lost
from conformance.implementations import Implementation, ImplementationError, load_judged
from conformance.remote_calls import Judged
from conformance.runner import CRASH, TIMEOUT
from conformance.worker import GRACE, IMPORT

PRINTED = 2000
"""The most characters that are shown of the output of a process that died."""
_T = TypeVar("_T")


class Ended(Exception):
    """The process ended during a call, or was ended after its time. The message says how.

    ``check``: "crash" or "timeout"."""

    def __init__(self, check: str, message: str) -> None:
        super().__init__(message)
        self.check = check


class JudgedProcess:
    """The process of the implementation ``name`` on a device. One that died is followed by another.

    ``timeout``: seconds that a call may take; 0 is no limit. ``functions``: as of ``load_judged``.
    Raises ImplementationError.
    """

    def __init__(
        self, name: str, device: torch.device, timeout: float, functions: Mapping[str, str] | None = None
    ) -> None:
        self.name, self.device, self.timeout = name, device, timeout
        self._functions = functions
        self._process: forkserver.Process | None = None
        self._late = False
        self._start()

    def _start(self) -> None:
        self._printed: IO[bytes] = open(os.memfd_create("printed"), "w+b", buffering=0)  # noqa: SIM115
        ours, theirs = socket.socketpair()
        with theirs:
            environment = plain_process.environment(os.environ)
            self._process = forkserver.start(forkserver.JUDGED, environment, self._printed, [theirs.fileno()])
        judged = Judged(ours.detach())
        try:
            with self._limited(max(self.timeout, IMPORT)):
                self.implementation = load_judged(self.name, judged, self.device, self._functions)
        except Lost as lost:
            told = f"implementation {self.name!r}: importing it failed: {self._end(lost)}"
            raise ImplementationError(told) from None
        except ImplementationError:
            self.close()
            raise

    def asked(self, ask: Callable[[Implementation], _T]) -> _T:
        """Return what ``ask`` makes of the implementation, whose calls are made in the process. Raises Ended."""
        if self._process is None:
            self._start()
        try:
            with self._limited(self.timeout):
                return ask(self.implementation)
        except Lost as lost:
            raise self._end(lost) from None

    def close(self) -> None:
        """End the process, if there is one."""
        if self._process is not None:
            self._kill()
            self._process.wait(GRACE)
            self._process = None
            self._printed.close()

    @contextlib.contextmanager
    def _limited(self, seconds: float) -> Generator[None]:
        """Kill the process if the context takes longer than so many seconds."""
        self._late = False

        def late() -> None:
            self._late = True
            self._kill()

        timer = threading.Timer(seconds, late)
        timer.daemon = True
        if seconds:
            timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _kill(self) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, 9)

    def _end(self, lost: Lost) -> Ended:
        """Reap the lost process; return how it ended."""
        assert self._process is not None
        self._process.ended(GRACE if not str(lost) else 0)
        self._kill()
        status = self._process.wait(GRACE)
        self._process = None
        self._printed.seek(0)
        last = self._printed.read().decode(errors="replace").strip()[-PRINTED:]
        self._printed.close()
        told = f"; it printed last:\n{last}" if last else ""
        if self._late:
            return Ended(TIMEOUT, f"no result after {self.timeout:g} s{told}")
        noted = "".join(f"; {note}" for note in getattr(lost, "__notes__", ()))
        return Ended(CRASH, f"{str(lost) or f'the process ended with status {status}'}{noted}{told}")
