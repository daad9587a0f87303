"""Forked or started anew, a child finds the same, and ends the same."""

from __future__ import annotations

import contextlib
import socket
import tempfile

import pytest

from conformance import forkserver
from conformance.cases import Case
from conformance.worker import Child, _environment
from strategies.specs import TensorSpec

TELLS = """
import os, sys
print(os.getcwd(), os.environ["HOME"], "ntops" in sys.modules, os.getsid(0) == os.getpid(), os.read(0, 1))
"""


def test_a_forked_child_finds_what_one_that_is_started_anew_finds(tmp_path, monkeypatch):
    (tmp_path / "tells.py").write_text(TELLS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    servers = []
    for gpu, home in ((False, "here"), (False, "there"), (True, "anew")):
        monkeypatch.setenv("HOME", home)
        monkeypatch.setattr(forkserver, "_gpu", lambda gpu=gpu: gpu)
        with contextlib.closing(Child("tells", "cpu")) as child:
            child.ready()
            assert child.output() == f"{tmp_path} {home} False True b''\n"
        servers.append(forkserver._server(_environment(), forkserver.JUDGED))
    assert servers[0] is servers[1]
    assert servers[0].serves({**_environment(), "PYTEST_CURRENT_TEST": "another"}, forkserver.JUDGED)
    assert not servers[0].serves({**_environment(), "OMP_NUM_THREADS": "7"}, forkserver.JUDGED)


@pytest.mark.slow
@pytest.mark.parametrize("gpu", [False, True])
def test_how_it_ended_is_told(gpu, monkeypatch):
    monkeypatch.setattr(forkserver, "_gpu", lambda: gpu)
    with contextlib.closing(Child("crashing", "cpu", timeout=60.0)) as child:
        for op, how in (("abs", "ended itself with exit status 3"), ("exp", "ended by SIGKILL")):
            verdict = child.judge(Case(op=op, args=(TensorSpec((40,), "float32"),)))
            assert how in verdict.failure.message


@pytest.fixture
def forked(monkeypatch):
    """Processes are forked, as they are without a GPU."""
    monkeypatch.setattr(forkserver, "_gpu", lambda: False)


@pytest.mark.usefixtures("forked")
def test_a_server_that_ended_is_replaced_and_its_children_end_with_it():
    with contextlib.closing(Child("crashing", "cpu", timeout=60.0)) as child:
        child.ready()
        server = forkserver._server(_environment(), forkserver.JUDGED)
        server._process.kill()
        server._process.wait()
        case = Case(op="relu", args=(TensorSpec((2,), "float32"),))
        assert child.judge(case).failure.check == "crash"
        assert child.judge(case).status == "passed"
        assert forkserver._server(_environment(), forkserver.JUDGED) is not server


@pytest.mark.slow
@pytest.mark.usefixtures("forked")
def test_a_server_whose_processes_run_is_not_closed_for_another(monkeypatch):
    """A judged process was killed so, and said to be out of memory, where its judge needed a seventh server."""
    monkeypatch.setattr(forkserver, "_running", [])
    monkeypatch.setattr(forkserver, "_MOST", 1)
    with tempfile.TemporaryFile() as printed:

        def started(number):
            ours, theirs = socket.socketpair()
            with theirs:
                environment = {**_environment(), "NUMBER": number}
                return ours, forkserver.start(forkserver.JUDGED, environment, printed, [theirs.fileno()])

        link, process = started("1")
        with link:
            for number in ("2", "3"):
                other, another = started(number)
                other.close()
                assert another.wait(60.0) == 0
                assert len(forkserver._running) == 2
                assert not process.ended(1.0)
        assert process.wait(60.0) == 0
    forkserver._close()


@pytest.mark.usefixtures("forked")
def test_a_server_that_cannot_import_is_told(monkeypatch, capfd):
    monkeypatch.setattr(forkserver, "_running", [])
    monkeypatch.setattr(forkserver, "_command", lambda call: ["sh", "-c", "echo no such module >&2"])
    child = Child("torch", "cpu")
    with pytest.raises(forkserver.ServerError, match="its stderr says why"):
        child.ready()
    assert "no such module" in capfd.readouterr().err
    forkserver._close()


@pytest.mark.usefixtures("forked")
def test_another_process_joins_a_server_and_what_it_asked_for_ends_with_it(monkeypatch):
    """As workers do. That ends too where it would not notice, in native code; the server stays."""
    environment = _environment()
    server = forkserver._server(environment, forkserver.JUDGED)
    shared = forkserver.share()
    assert forkserver.share() == shared
    monkeypatch.setattr(forkserver, "_running", [])
    forkserver.join([*shared, (forkserver.JUDGED, {}, "/no/such/server")])
    joined = forkserver._server(environment, forkserver.JUDGED)
    assert isinstance(joined, forkserver._Joined)
    ours, theirs = socket.socketpair()
    with ours, tempfile.TemporaryFile() as printed:
        with theirs:
            process = forkserver.start(forkserver.JUDGED, environment, printed, [theirs.fileno()])
        assert process.pid
        # As the system does when the process that asked is killed.
        process._status.close()
        assert ours.recv(1) == b""
    forkserver._close()
    assert server.is_alive()
