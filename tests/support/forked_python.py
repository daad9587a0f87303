"""Run a program of Python as ``subprocess.run`` does, forked from a process that has imported torch, pytest and the
harness: a run of the suite imports them in three processes, and takes seconds before it judges anything.

Not for tests of what a process imports, or of how it is killed.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib
import json
import os
import random
import runpy
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from conformance import forkserver, spec


def run(
    command: Sequence[str | Path],
    *,
    cwd: str | Path | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float = 600,
) -> subprocess.CompletedProcess[str]:
    """Run ``sys.executable`` with a script, ``-c`` or ``-m``; return its status and what it printed, as text."""
    python, *arguments = map(str, command)
    assert python == sys.executable
    environment = dict(os.environ if env is None else env)
    if forkserver._gpu():
        # A process that has a CUDA context is not forked.
        return subprocess.run(
            [python, *arguments], cwd=cwd, env=environment, timeout=timeout, capture_output=True, text=True
        )
    with contextlib.ExitStack() as files:
        asked, out, error = (files.enter_context(tempfile.TemporaryFile()) for _ in range(3))
        asked.write(json.dumps({"arguments": arguments, "directory": str(cwd or os.getcwd())}).encode())
        asked.seek(0)
        process = _server(environment).fork(environment, error, [one.fileno() for one in (asked, out, error)])
        try:
            status = process.wait(timeout)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            raise
        printed = []
        for one in (out, error):
            one.seek(0)
            printed.append(one.read().decode())
    return subprocess.CompletedProcess([python, *arguments], status, *printed)


class _Server(forkserver._Server):
    def __init__(self, environment: Mapping[str, str]) -> None:
        super().__init__(environment, "python")

    def command(self, descriptor: int) -> list[str]:
        load = (
            "import importlib.util as util, sys",
            f"spec = util.spec_from_file_location('forked_python', {__file__!r})",
            "module = sys.modules['forked_python'] = util.module_from_spec(spec)",
            "spec.loader.exec_module(module)",
            f"module.serve({descriptor})",
        )
        return [sys.executable, "-c", "; ".join(load)]


_servers: dict[frozenset[tuple[str, str]], _Server] = {}


def _server(environment: Mapping[str, str]) -> _Server:
    """Return the server of an environment: what is imported reads it, as Hypothesis reads CI. Folders that a program
    adds to PYTHONPATH hide nothing that is imported."""
    read = forkserver._what_is_read(environment) | {"PYTHONPATH": ""}
    key = frozenset(read.items())
    if key not in _servers:
        _servers[key] = _Server({**environment, "PYTHONPATH": os.environ["PYTHONPATH"]})
        atexit.register(_servers[key].close)
    return _servers[key]


# --- in the server -----------------------------------------------------------------------------------------------


def serve(descriptor: int) -> None:
    """Make the imports, start the servers of the harness, which all that is forked uses, and fork."""
    for name in ("hypothesis", "pytest", "torch", "conformance.session"):
        importlib.import_module(name)
    spec.registry()
    # An import of ntops decides how Triton is imported.
    assert "triton" not in sys.modules
    for program in (forkserver.JUDGE, forkserver.JUDGED):
        forkserver._server(os.environ, program)
    environment, given = dict(os.environ), os.environ.get("PYTHONPATH", "").split(os.pathsep)
    installed = [path for path in sys.path if path and path not in given]
    forkserver._main = lambda program: functools.partial(_become, environment, installed)
    forkserver.serve(descriptor, "python")


class _Another(BaseException):
    """``os.execv`` of Python: the arguments."""


class _Alive:
    """A server that another process has started."""

    def poll(self) -> None:
        return None

    def wait(self) -> None:
        return None


def _become(environment: Mapping[str, str], installed: Sequence[str], asked: int, out: int, error: int) -> None:
    """Do what a Python that was started anew does with its arguments, and end as it does."""
    for descriptor, stream in ((out, 1), (error, 2)):
        os.dup2(descriptor, stream)
    with open(asked, "rb") as file:
        told = json.load(file)
    os.chdir(told["directory"])
    random.seed()
    _inherit(environment)
    os.execv = _execv
    arguments: Sequence[str] | None = told["arguments"]
    status = 0
    while arguments is not None:
        arguments, status = _executed(arguments, installed)
    with contextlib.suppress(BrokenPipeError):
        threading._shutdown()
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(status)


def _inherit(environment: Mapping[str, str]) -> None:
    """Use the servers of the harness where a process of theirs would find what one of a new server would."""
    path = os.environ.get("PYTHONPATH", "")
    for server in forkserver._running:
        server._process = _Alive()
        # A folder more at its end hides no module.
        if path.startswith(environment.get("PYTHONPATH", "")):
            server._read["PYTHONPATH"] = path


def _execv(program: str, arguments: Sequence[str]) -> None:
    assert program == sys.executable
    raise _Another(*arguments[1:])


def _executed(arguments: Sequence[str], installed: Sequence[str]) -> tuple[Sequence[str] | None, int]:
    """Return the arguments of the program that it became, if it did, and its status."""
    first, *rest = arguments
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    own = "" if first == "-c" else os.getcwd() if first == "-m" else str(Path(first).resolve().parent)
    sys.path[:] = [own, *paths, *installed]
    try:
        if first == "-m":
            sys.argv = rest
            runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
        elif first == "-c":
            sys.argv = ["-c", *rest[1:]]
            exec(compile(rest[0], "<string>", "exec"), vars(sys.modules["__main__"]))
        else:
            sys.argv = [first, *rest]
            runpy.run_path(first, run_name="__main__")
    except _Another as another:
        return another.args, 0
    except SystemExit as ended:
        return None, _status(ended.code)
    # Python prints whatever ends a program, KeyboardInterrupt too.
    except BaseException:  # noqa: BLE001
        traceback.print_exc()
        return None, 1
    return None, 0


def _status(code: Any) -> int:
    if code is None or isinstance(code, int):
        return code or 0
    print(code, file=sys.stderr)
    return 1
