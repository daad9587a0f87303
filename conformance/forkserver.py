"""Start processes of the judge and of what it judges: anew, which takes seconds of imports, or, on a machine without a
GPU, forked from a server that has made these imports and does nothing else.

The server never calls torch, and imports nothing that is judged: it has no threads of torch's and no CUDA context,
which would not survive a fork. Each process imports the implementation itself, in the environment of the time.

One file: the server of judged processes loads it by its path, and nothing else of the harness.
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
import tempfile
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import IO, Any, Protocol


class ServerError(RuntimeError):
    """The process that forks others failed."""


JUDGE, JUDGED = "judge", "judged"
"""The programs: ``judge_main.main`` and ``runtime.main``."""
_STATUS = struct.Struct("i")
_LENGTH = struct.Struct("<I")
_FORK, _LISTEN = b"\0", b"\1"
"""The requests to a server: to fork, and to take requests from further sockets as well."""
_UNREAD = ("HOME", "USERPROFILE", "PY_COLORS", "COLUMNS", "LINES")
"""Variables that none of the imports reads, and that differ from one of our tests or workers to the next; as does
PYTEST_*."""


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
        self._note(program, _what_is_read(environment))
        self._socket, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                self.command(theirs.fileno()),
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env=environment,
                start_new_session=True,
            )

    def _note(self, program: str, read: Mapping[str, str]) -> None:
        self._program, self._read = program, dict(read)
        self._forked: weakref.WeakSet[_Forked] = weakref.WeakSet()
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def command(self, descriptor: int) -> list[str]:
        """Return the command of the process, which is asked over the socket ``descriptor``."""
        return _command(f"processes.serve({descriptor}, {self._program!r})")

    def serves(self, environment: Mapping[str, str], program: str) -> bool:
        """Tell whether a process of the program that is started anew would find the same when it imports."""
        alike = self._program == program and self._read == _what_is_read(environment)
        return alike and self.is_alive()

    def is_alive(self) -> bool:
        return self._process.poll() is None

    def shared(self) -> tuple[str, dict[str, str], str]:
        """Return what another process joins it by. Raises OSError."""
        if self._folder is None:
            # Nobody else may enter it.
            folder = tempfile.TemporaryDirectory(prefix="ntops-")
            with socket.socket(socket.AF_UNIX) as listening:
                listening.bind(f"{folder.name}/server")
                listening.listen()
                socket.send_fds(self._socket, [_LISTEN], [listening.fileno()])
            self._folder = folder
        return self._program, self._read, f"{self._folder.name}/server"

    def fork(self, environment: Mapping[str, str], printed: IO[bytes], descriptors: Sequence[int]) -> _Forked:
        status, keeper = socket.socketpair()
        # The state that a process started anew would inherit.
        place = json.dumps({"environment": {**environment}, "path": sys.path, "directory": os.getcwd()}).encode()
        # If the server is dead already, the status says so.
        with keeper, contextlib.suppress(ConnectionError):
            socket.send_fds(self._socket, [_FORK], [printed.fileno(), keeper.fileno(), *descriptors])
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


class _Joined(_Server):
    """A handle of a server that another process has started, at the address of a socket. Raises OSError."""

    def __init__(self, program: str, read: Mapping[str, str], address: str) -> None:
        self._note(program, read)
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(address)

    def is_alive(self) -> bool:
        # If it is not, what is forked says so.
        return True

    def close(self) -> None:
        self._socket.close()


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


def share() -> list[tuple[str, dict[str, str], str]]:
    """Return what other processes of this machine ``join`` the servers of this one by."""
    shared = []
    for server in _running:
        # The name of the folder may be too long.
        with contextlib.suppress(OSError):
            shared.append(server.shared())
    return shared


def join(shared: Iterable[tuple[str, dict[str, str], str]]) -> None:
    """Use servers of another process, where they find what those of this one would."""
    for one in shared:
        with contextlib.suppress(OSError):
            _running.append(_Joined(*one))


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
    the byte come the file that the process prints to, its keeper's socket, and its own descriptors; or a socket over
    which others ask, too."""
    main = _main(program)
    # Imported objects stay: the collector does not visit them, which would copy their pages.
    gc.collect()
    gc.freeze()
    # Keepers are not waited for.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    asked, listening = [socket.socket(fileno=descriptor)], list[socket.socket]()
    while True:
        for one in select.select([*asked, *listening], (), ())[0]:
            if one in listening:
                asked.append(one.accept()[0])
            else:
                _serve(one, asked, listening, main)


def _serve(
    link: socket.socket, asked: list[socket.socket], listening: list[socket.socket], main: Callable[..., object]
) -> None:
    """Do what is asked on one of the sockets ``asked``, the first of which is the owner's."""
    what, descriptors, _, _ = socket.recv_fds(link, 1, 8)
    if what == _LISTEN:
        listening.append(socket.socket(fileno=descriptors[0]))
        return
    if not descriptors:
        if link is asked[0]:
            os._exit(0)
        asked.remove(link)
        link.close()
    elif not os.fork():
        for other in (*asked, *listening):
            other.close()
        _keep(main, *descriptors)
    for descriptor in descriptors:
        os.close(descriptor)


def _keep(main: Callable[..., object], printed: int, status: int, *descriptors: int) -> None:
    """Fork the child, and send how it ends: this process does not import, judge or print, so that nothing of it can end
    it. It dies with the server, and the child with it, which also ends when who asked for it is gone."""
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
        if hasattr(os, "pidfd_open"):
            end = os.pidfd_open(child)
            if end not in select.select([told, end], (), ())[0]:
                os.kill(child, signal.SIGKILL)
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
