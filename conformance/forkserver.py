"""Start processes of the judge and of what it judges: anew, which takes seconds of imports, or, on a machine without a
GPU, forked from a server that has made these imports and does nothing else.

The server never calls torch, and imports nothing that is judged: it has no threads of torch's and no CUDA context,
which would not survive a fork. Each process imports the implementation itself, in the environment of the time.

The server of judged processes loads this file by its path: nothing of the harness is imported there.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import gc
import importlib
import importlib.util
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import IO, Any, Protocol


class ServerError(RuntimeError):
    """The process that forks others failed."""


JUDGE, JUDGED = "judge", "judged"
"""The programs: ``judge_main.main`` and ``runtime.main``."""
_STATUS = struct.Struct("i")
_LENGTH = struct.Struct("<I")
_UNREAD = ("HOME", "USERPROFILE", "PY_COLORS")
"""Variables that none of the imports reads, and that differ from one of our tests to the next; as does PYTEST_*."""


class Process(Protocol):
    """A process in a session of its own."""

    @property
    def pid(self) -> int: ...

    def ended(self, seconds: float) -> bool:
        """Tell whether the process ends within the time. It is not reaped: its number stays that of its session."""
        ...

    def wait(self, timeout: float) -> int:
        """Reap it, once, and return its status as subprocess.Popen has it. Raises subprocess.TimeoutExpired."""
        ...


def start(program: str, environment: Mapping[str, str], printed: IO[bytes], descriptors: Sequence[int]) -> Process:
    """Start a process that runs a program with these descriptors of sockets. It prints to ``printed``."""
    if _gpu():
        return _Started(program, environment, printed, descriptors)
    return _server(environment, program).fork(environment, printed, descriptors)


def _main(program: str) -> Callable[..., object]:
    """Make the imports of a program, and return its function."""
    # torch imports this, and SymPy with it, where a gradient is first asked for: 0.35 s of each process.
    importlib.import_module("torch.fx.experimental.symbolic_shapes")
    if program == JUDGED:
        return _by_path("runtime").main
    from conformance import judge_main
    from conformance import spec as specs

    specs.registry()
    return judge_main.main


def _by_path(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _gpu() -> bool:
    # Looks at device files, since torch would initialise CUDA.
    return any(Path("/dev").glob("nvidia[0-9]*")) or any(Path("/dev", name).exists() for name in ("kfd", "dxg"))


def _command(call: str) -> list[str]:
    # The process can import what this one can. This file is loaded by its path.
    load = (
        "from importlib.util import module_from_spec, spec_from_file_location",
        f"spec = spec_from_file_location('processes', {__file__!r})",
        "processes = module_from_spec(spec)",
        "spec.loader.exec_module(processes)",
    )
    return [sys.executable, "-u", "-c", "; ".join(("import sys", f"sys.path[:] = {sys.path!r}", *load, call))]


class _Started(subprocess.Popen[bytes]):
    """A process started anew."""

    def __init__(
        self, program: str, environment: Mapping[str, str], printed: IO[bytes], descriptors: Sequence[int]
    ) -> None:
        super().__init__(
            _command(f"processes.run({program!r}, {[*descriptors]})"),
            stdin=subprocess.DEVNULL,
            stdout=printed,
            stderr=printed,
            pass_fds=descriptors,
            env=environment,
            # In its own session, so that Ctrl-C reaches this process alone, and that all of it can be killed.
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


def run(program: str, descriptors: Sequence[int]) -> None:
    """Run a program in this process, which was started anew."""
    dies_with_parent()
    main = _main(program)
    _tidy()
    main(*descriptors)


class _Forked:
    """A process that the server has forked. ``status``: a socket on which its keeper sends its number and, when it has
    ended, its status; the keeper reaps it when the socket is closed."""

    def __init__(self, status: socket.socket) -> None:
        self._status = status
        self.reaped = False

    @functools.cached_property
    def pid(self) -> int:
        # Not before it is needed: the server may still be importing.
        if not (said := self._said()):
            raise ServerError("the process that forks others ended before it had forked one; its stderr says why")
        return _STATUS.unpack(said)[0]

    def ended(self, seconds: float) -> bool:
        return bool(self.pid and select.select([self._status], (), (), seconds)[0])

    def wait(self, timeout: float) -> int:
        if not self.ended(timeout):
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout)
        with self._status:
            said = self._said()
            self.reaped = True
        # A keeper that was killed says nothing, and its child was killed with it.
        return _STATUS.unpack(said)[0] if said else -signal.SIGKILL

    def _said(self) -> bytes:
        """Return a number, or nothing where the keeper is gone."""
        with contextlib.suppress(ConnectionError):
            return self._status.recv(_STATUS.size)
        return b""


class _Server:
    """A handle of the process that forks."""

    def __init__(self, environment: Mapping[str, str], program: str) -> None:
        self._program, self._read = program, _what_is_read(environment)
        self._forked: weakref.WeakSet[_Forked] = weakref.WeakSet()
        self._socket, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                self.command(theirs.fileno()),
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env=environment,
                start_new_session=True,
            )

    def command(self, descriptor: int) -> list[str]:
        """Return the command of the process, which is asked over the socket ``descriptor``."""
        return _command(f"processes.serve({descriptor}, {self._program!r})")

    def serves(self, environment: Mapping[str, str], program: str) -> bool:
        """Tell whether a process of the program that is started anew would find the same when it imports."""
        alike = self._program == program and self._read == _what_is_read(environment)
        return alike and self._process.poll() is None

    def fork(self, environment: Mapping[str, str], printed: IO[bytes], descriptors: Sequence[int]) -> _Forked:
        status, keeper = socket.socketpair()
        # The state that a process started anew would inherit.
        place = json.dumps({"environment": {**environment}, "path": sys.path, "directory": os.getcwd()}).encode()
        # If the server is dead already, the status says so.
        with keeper, contextlib.suppress(ConnectionError):
            socket.send_fds(self._socket, [b"\0"], [printed.fileno(), keeper.fileno(), *descriptors])
            status.sendall(_LENGTH.pack(len(place)) + place)
        self._forked.add(forked := _Forked(status))
        return forked

    def is_used(self) -> bool:
        """Tell whether a process that it has forked may still run."""
        return any(not forked.reaped for forked in self._forked)

    def close(self) -> None:
        """End the server, and with it what it has forked."""
        self._socket.close()
        self._process.wait()


_running: list[_Server] = []
"""The one that was asked last at the end."""
_MOST = 6
"""The most servers at once, unless more are in use: where the environment changed, there are several of a program. Each
takes the memory of its imports."""


def _server(environment: Mapping[str, str], program: str) -> _Server:
    found = next((server for server in _running if server.serves(environment, program)), None)
    if found is not None:
        _running.remove(found)
    else:
        # What a server has forked ends with it.
        unused = next((server for server in _running if not server.is_used()), None)
        if len(_running) >= _MOST and unused is not None:
            _running.remove(unused)
            unused.close()
        found = _Server(environment, program)
    _running.append(found)
    return found


@atexit.register
def _close() -> None:
    while _running:
        _running.pop().close()


def _what_is_read(environment: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value for name, value in environment.items() if name not in _UNREAD and not name.startswith("PYTEST_")
    }


def serve(descriptor: int, program: str) -> None:
    """Run the server: fork for each byte that comes over the socket ``descriptor``, until its other end is closed. With
    the byte come the file that the process prints to, its keeper's socket, and its own descriptors."""
    main = _main(program)
    # Imported objects stay: the collector does not visit them, which would copy their pages.
    gc.collect()
    gc.freeze()
    # Keepers are not waited for.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    asked = socket.socket(fileno=descriptor)
    while True:
        _, descriptors, _, _ = socket.recv_fds(asked, 1, 8)
        if not descriptors:
            os._exit(0)
        if not os.fork():
            asked.close()
            _keep(main, *descriptors)
        for one in descriptors:
            os.close(one)


def _keep(main: Callable[..., object], printed: int, status: int, *descriptors: int) -> None:
    """Fork the child, and send how it ends: this process does not import, judge or print, so that nothing of it can end
    it. It dies with the server, and the child with it."""
    dies_with_parent()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    with contextlib.suppress(ConnectionError), socket.socket(fileno=status) as told:
        (length,) = _LENGTH.unpack(_exactly(told, _LENGTH.size))
        place = json.loads(_exactly(told, length))
        if not (child := os.fork()):
            told.close()
            dies_with_parent()
            _become(place, printed)
            _tidy()
            main(*descriptors)
            os._exit(0)
        for one in (printed, *descriptors):
            os.close(one)
        told.send(_STATUS.pack(child))
        ended = os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
        assert ended is not None
        told.send(_STATUS.pack(ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status))
        # Until the socket is closed the child's number stays its own.
        told.recv(1)
    os._exit(0)


def _exactly(link: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        if not (part := link.recv(size - len(data))):
            raise ConnectionError("who asked for a process is gone")
        data += part
    return data


def _become(place: Mapping[str, Any], printed: int) -> None:
    """Give this process what one that is started anew has by itself. ``place``: what it inherits."""
    os.setsid()
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    for stream in (1, 2):
        os.dup2(printed, stream)
    os.close(printed)
    os.environ.clear()
    os.environ.update(place["environment"])
    sys.path[:] = place["path"]
    os.chdir(place["directory"])
    importlib.invalidate_caches()


def _tidy() -> None:
    """Leave nothing in the main module that a script has not, and no object out of the garbage collector's sight."""
    names = vars(sys.modules["__main__"])
    for name in [name for name in names if not name.startswith("__")]:
        del names[name]
    gc.unfreeze()


def dies_with_parent() -> None:
    """Have this process killed with its parent: a closed socket would tell it, but not while it hangs in native
    code."""
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)
