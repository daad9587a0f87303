"""Processes that run ``child_main``: started anew, which takes seconds of imports, or, on a machine without a GPU,
forked from one that has made these imports and does nothing else.

That one never calls torch, and imports nothing that is judged: it has no threads of torch's and no CUDA context, which
would not survive a fork. What is judged each child imports for itself, in the environment of the time.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import gc
import importlib
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from multiprocessing import Pipe, connection
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO, Protocol

import msgspec


class ServerError(RuntimeError):
    """The process that forks others failed."""


_STATUS = struct.Struct("i")
_UNREAD = ("HOME", "USERPROFILE", "PY_COLORS")
"""Variables that none of the imports reads, and that differ from one of our tests to the next; as does PYTEST_*."""


class Process(Protocol):
    """A process in a session of its own."""

    @property
    def pid(self) -> int: ...

    def ended(self, seconds: float) -> bool:
        """Whether the process ends within the time. It is not reaped: its number stays that of its session."""
        ...

    def wait(self, timeout: float) -> int:
        """Reap it, once: its status as subprocess.Popen has it. Raises subprocess.TimeoutExpired."""
        ...


def start(environment: Mapping[str, str], printed: IO[bytes]) -> tuple[Process, Connection]:
    """A process that runs ``child_main.main``, and the connection to it. It prints to ``printed``."""
    ours, theirs = Pipe()
    with theirs:
        if _gpu():
            return _Started(environment, printed, theirs), ours
        return _server(environment).fork(environment, printed, theirs, ours), ours


def _gpu() -> bool:
    # By its device files, since torch would initialise CUDA.
    return any(Path("/dev").glob("nvidia[0-9]*")) or any(Path("/dev", name).exists() for name in ("kfd", "dxg"))


def _command(call: str) -> list[str]:
    # What can be imported here can be imported there.
    return [sys.executable, "-u", "-c", f"import sys; sys.path[:] = {sys.path!r}; {call}"]


class _Started(subprocess.Popen[bytes]):
    """A process started anew."""

    def __init__(self, environment: Mapping[str, str], printed: IO[bytes], theirs: Connection) -> None:
        super().__init__(
            _command(f"from conformance.child_main import main; main({theirs.fileno()})"),
            stdin=subprocess.DEVNULL,
            stdout=printed,
            stderr=printed,
            pass_fds=[theirs.fileno()],
            env=environment,
            # Of its own, so that Ctrl-C reaches this process alone, and that all of it can be killed.
            start_new_session=True,
        )

    def ended(self, seconds: float) -> bool:
        end = time.monotonic() + seconds
        while os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None:
            if time.monotonic() >= end:
                return False
            time.sleep(0.01)
        return True


# --- forked ------------------------------------------------------------------------------------------------------


class _Place(msgspec.Struct, frozen=True):
    """Where a process finds itself: what one that is started anew would inherit."""

    environment: Mapping[str, str]
    path: list[str]
    directory: str


class _Forked:
    """A process that the server has forked. ``status``: a socket on which its keeper says its number and, when it has
    ended, how; the keeper reaps it when this is closed."""

    def __init__(self, status: socket.socket) -> None:
        self._status = status

    @functools.cached_property
    def pid(self) -> int:
        # Not before it is needed: the server may still be importing.
        if not (said := self._status.recv(_STATUS.size)):
            raise ServerError("the process that forks others ended before it had forked one; its stderr says why")
        return _STATUS.unpack(said)[0]

    def ended(self, seconds: float) -> bool:
        return bool(self.pid and connection.wait([self._status], seconds))

    def wait(self, timeout: float) -> int:
        if not self.ended(timeout):
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout)
        with self._status:
            said = self._status.recv(_STATUS.size)
        # A keeper that was killed says nothing, and its child was killed with it.
        return _STATUS.unpack(said)[0] if said else -signal.SIGKILL


class _Server:
    """The process that forks, from the side of those who ask it to."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._socket, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                _command(f"from conformance.processes import serve; serve({theirs.fileno()})"),
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env=environment,
                start_new_session=True,
            )
        self._read = _what_is_read(environment)

    def serves(self, environment: Mapping[str, str]) -> bool:
        """Whether a process that is started anew would find the same when it imports."""
        return self._process.poll() is None and self._read == _what_is_read(environment)

    def fork(self, environment: Mapping[str, str], printed: IO[bytes], theirs: Connection, ours: Connection) -> _Forked:
        status, keeper = socket.socketpair()
        # Where the server is dead already, the status tells.
        with keeper, contextlib.suppress(ConnectionError):
            socket.send_fds(self._socket, [b"\0"], [theirs.fileno(), printed.fileno(), keeper.fileno()])
            ours.send_bytes(msgspec.json.encode(_Place(environment, sys.path, os.getcwd())))
        return _Forked(status)

    def close(self) -> None:
        """End it, and with it what it has forked."""
        self._socket.close()
        self._process.wait()


_running: list[_Server] = []
_MOST = 3
"""Servers at once: more than one where the environment changed. Each takes the memory of its imports."""


def _server(environment: Mapping[str, str]) -> _Server:
    found = next((server for server in _running if server.serves(environment)), None)
    if found is None:
        if len(_running) == _MOST:
            _running.pop(0).close()
        _running.append(found := _Server(environment))
    return found


@atexit.register
def _close() -> None:
    while _running:
        _running.pop().close()


def _what_is_read(environment: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value for name, value in environment.items() if name not in _UNREAD and not name.startswith("PYTEST_")
    }


def serve(descriptor: int) -> None:
    """The program of the server: fork for each byte that comes over the socket ``descriptor``, until its other end is
    closed. With the byte come the child's connection, the file that it prints to, and its keeper's socket."""
    from conformance import child_main
    from conformance import spec as specs

    specs.registry()
    # What was imported stays: neither is it looked for garbage, nor copied for that.
    gc.collect()
    gc.freeze()
    # Keepers are not waited for.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    asked = socket.socket(fileno=descriptor)
    while True:
        _, descriptors, _, _ = socket.recv_fds(asked, 1, 3)
        if not descriptors:
            os._exit(0)
        if not os.fork():
            asked.close()
            _keep(*descriptors, child_main.main)
        for one in descriptors:
            os.close(one)


def _keep(judged: int, printed: int, status: int, main: Callable[[int], object]) -> None:
    """Fork the child, and say how it ends: a process that does not import, judge or print cannot die of it. It goes
    when the server goes, and the child with it."""
    dies_with_parent()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    if not (child := os.fork()):
        os.close(status)
        _become(judged, printed)
        main(judged)
    os.close(judged)
    os.close(printed)
    with contextlib.suppress(ConnectionError), socket.socket(fileno=status) as told:
        told.send(_STATUS.pack(child))
        ended = os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
        assert ended is not None
        told.send(_STATUS.pack(ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status))
        # Until then the child's number stays its own.
        told.recv(1)
    os._exit(0)


def _become(judged: int, printed: int) -> None:
    """What a process that is started anew is by itself."""
    os.setsid()
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    for stream in (1, 2):
        os.dup2(printed, stream)
    os.close(printed)
    with Connection(os.dup(judged)) as theirs:
        place = msgspec.json.decode(theirs.recv_bytes(), type=_Place)
    os.environ.clear()
    os.environ.update(place.environment)
    sys.path[:] = place.path
    os.chdir(place.directory)
    importlib.invalidate_caches()


def dies_with_parent() -> None:
    """A parent that is killed closes its sockets, but who hangs in native code does not see it."""
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)
