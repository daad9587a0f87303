"""What ends a run early, or leaves it nowhere to write: a full disk, Ctrl-C, and not enough memory for an oracle."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import forked_python
import pytest
from test_suite import QUICK, SUITE, _torch_is_whole, suite  # noqa: F401

from conformance import case_files, cases, corpus, interrupts, journal
from conformance.cases import Case
from conformance.failure_causes import Failed
from conformance.journal import Found, Header, Journal
from conformance.metrics import Tally
from conformance.runner import Verdict
from conformance.worker import Child
from strategies.specs import TensorSpec

pytest_plugins = ["pytester"]

ROOT = Path(__file__).parents[2]
SMALL = TensorSpec((3,), "float32")
FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.fixture
def full_disk(monkeypatch):
    """Files can be made, and nothing can be written to them."""

    def no_space(*_):
        raise FULL

    monkeypatch.setattr(Path, "write_bytes", no_space)
    monkeypatch.setattr(journal.os, "write", no_space)


@pytest.mark.slow
def test_a_full_disk_hides_no_failure(suite, pytester, full_disk):  # noqa: F811
    arguments = (*QUICK[:4], "--max-examples", "30", "--device", "cpu", "--check", "values", "--hypothesis-seed", "1")
    files = ("--metrics", "m.json", "--write-known-failures", "k.json")
    result = suite(*arguments, *files, implementation="defects:nan_lost")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    said = result.stdout.str()
    assert "relu (float32): values failed for defects:nan_lost on cpu, case relu-" in said
    case = re.search(r"^the case cannot be saved, No space left on device; make CASE.json of it:\n(.*)$", said, re.M)
    assert case_files.decode(case.group(1)).op == "relu"
    result.stdout.fnmatch_lines(
        [
            "    python -m conformance reproduce CASE.json --implementation defects:nan_lost",
            "without the harness: no script was made, since it cannot be written: No space left on device",
            "op *cases *passed *failed*",
            "relu *",
            "metrics cannot be written to m.json: No space left on device",
            "known failures cannot be written to k.json: No space left on device",
        ]
    )
    result.stdout.re_match_lines([r".*what is judged cannot be noted in .*: No space left on device"])
    assert [path.name for path in pytester.path.glob("*.json")] == []


def test_a_full_disk_is_no_passed_run(suite, full_disk):  # noqa: F811
    result = suite(*QUICK, "-n", "0")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["*what is judged cannot be noted in *: No space left on device", "relu *"])


def test_metrics_that_cannot_be_written_fail_the_run(suite, monkeypatch):  # noqa: F811
    monkeypatch.setattr(corpus.Path, "write_bytes", lambda *_: (_ for _ in ()).throw(FULL))
    result = suite(*QUICK, "--metrics", "m.json")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.assert_outcomes(passed=3, skipped=1)
    result.stdout.fnmatch_lines(["relu *", "metrics cannot be written to m.json: No space left on device"])


def test_nothing_is_left_of_a_file_that_could_not_be_written(tmp_path):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            corpus.write(tmp_path / "a.json", b"x" * 200)
        with contextlib.closing(Journal(tmp_path, Header("torch", "gw0"))) as ours:
            ours.begin(Case(op="relu", args=(SMALL, SMALL)))
            assert ours.trouble().endswith(": File too large")
            assert ours.trouble() == "", "told once"
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert [path.name for path in tmp_path.iterdir()] == [journal.FOLDER]


HANGS = """
import itertools, pathlib, time
import torch

calls = itertools.count()

def abs(input, *, out=None):
    return torch.abs(input) + 1

def neg(input, *, out=None):
    if next(calls) > 20:
        pathlib.Path("hangs").touch()
        time.sleep(1000)
    return torch.neg(input) + 1
"""


@pytest.mark.slow
@pytest.mark.parametrize("workers", ["0", "2"])
def test_ctrl_c(tmp_path, workers):
    """Once while a failing case is shrunk, and its step hangs."""
    (tmp_path / "interrupted.py").write_text(HANGS)
    command = [sys.executable, "-m", "pytest", SUITE, "-p", "no:cacheprovider", "--device", "cpu", "-n", workers]
    command += ["--implementation", "interrupted", "--dtype", "float32", "--op", "abs", "--op", "neg"]
    command += ["--check", "values", "--check", "metadata", "--metrics", "m.json", "-k", "test_legal"]
    command += ["--hypothesis-seed", "1"]
    path = f"{os.environ['PYTHONPATH']}{os.pathsep}{tmp_path}"
    run = subprocess.Popen(
        command,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # Shells have those ignore it that they run in the background, and what is ignored is inherited.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    while not ((tmp_path / "hangs").exists() and [*tmp_path.glob("failures/abs-*.json")]):
        assert run.poll() is None
        time.sleep(0.05)
    for _ in range(2):
        os.killpg(run.pid, signal.SIGINT)
        time.sleep(0.05)
    # On a machine of its own it takes a second; what hangs hangs for longer than this.
    said, _ = run.communicate(timeout=60)
    assert run.returncode == pytest.ExitCode.INTERRUPTED, said
    for op in ("abs", "neg"):
        saved = [*(tmp_path / "failures").glob(f"{op}-*.json")]
        assert saved
        assert all(path.stem in said for path in saved)
        assert re.search(rf"^{op} +\d+ +\d+ +[1-9]", said, re.M), said
    assert "timeout failed" not in said, "what was judged is not at fault"
    assert "crash failed" not in said
    assert "the run was interrupted: not all was judged that was asked for" in said
    assert "metrics written to m.json" in said
    found = json.loads((tmp_path / "m.json").read_text())
    assert {record["op"] for record in found["records"] if record["failed"]} == {"abs", "neg"}
    assert not (tmp_path / "failures" / journal.FOLDER).exists()


HEARS = """
import signal
# Shells have those ignore it that they run in the background, and what is ignored is inherited.
signal.signal(signal.SIGINT, signal.default_int_handler)
"""
ON_ITS_WAY = """
import os, pathlib, signal
import xdist.dsession

taken = xdist.dsession.DSession.worker_testreport

def worker_testreport(self, node, rep):
    if rep.when == "call":
        pathlib.Path("pressed").touch()
        os.kill(os.getpid(), signal.SIGINT)
    taken(self, node, rep)

xdist.dsession.DSession.worker_testreport = worker_testreport
"""
"""Once while a report waits to be taken, which nobody does any more after that."""
LATE = """
import itertools, os, pathlib, signal, time
import execnet.gateway_io
import xdist.workermanage
from conformance import journal

noted, ended = itertools.count(), journal.Journal.end

def end(self, verdict):
    ended(self, verdict)
    if next(noted) == 7:
        pathlib.Path("pressed").touch()
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        os.kill(os.getppid(), signal.SIGINT)
        time.sleep(1000)

journal.Journal.end = end
journal.GRACE = xdist.workermanage.NodeManager.EXIT_TIMEOUT = 0.1
execnet.gateway_io.Popen2IOMaster.kill = lambda self: None
"""
"""Once while a worker judges, which does not end, and is not ended, while the run does."""
AT_EACH_STEP = """
import os, pathlib, signal
import pytest
from conformance import interrupts

interrupts.PATIENCE = 0.0

def press():
    pathlib.Path("pressed").touch()
    os.kill(os.getpid(), signal.SIGINT)

@pytest.hookimpl(tryfirst=True)
def pytest_runtest_logreport(report):
    if report.when == "call":
        press()

@pytest.hookimpl(trylast=True)
def pytest_keyboard_interrupt():
    press()

@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish():
    press()

@pytest.hookimpl(tryfirst=True)
def pytest_terminal_summary():
    press()
"""
"""Again and again while the run ends, which takes longer than others are ignored for."""
AT_THE_END = AT_EACH_STEP.replace('    if report.when == "call":\n        press()', "    pass")
"""Not before all was judged."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("workers", "plugin"),
    [
        pytest.param("1", ON_ITS_WAY, id="1-on_its_way"),
        pytest.param("1", LATE, id="1-late"),
        pytest.param("0", AT_EACH_STEP, id="0-at_each_step"),
        # With a worker, it comes to that while it sends the report.
        pytest.param("1", AT_EACH_STEP, id="1-at_each_step"),
        pytest.param("0", AT_THE_END, id="0-at_the_end"),
    ],
)
def test_an_interrupt_loses_no_count(tmp_path, workers, plugin):
    (tmp_path / "interrupted.py").write_text(HANGS)
    (tmp_path / "presses.py").write_text(HEARS + plugin)
    command = [sys.executable, "-m", "pytest", SUITE, "-p", "no:cacheprovider", "--device", "cpu", "-n", workers]
    command += ["--implementation", "interrupted", "--dtype", "float32", "--op", "abs", "--check", "values"]
    command += ["--max-examples", "10", "-k", "test_legal", "-p", "presses", "--metrics", "m.json"]
    path = f"{os.environ['PYTHONPATH']}{os.pathsep}{tmp_path}"
    done = forked_python.run(command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": path})
    said = done.stdout
    assert done.returncode == pytest.ExitCode.INTERRUPTED, said + done.stderr
    assert (tmp_path / "pressed").exists()
    assert re.search(r"^abs +\d+ +\d+ +[1-9]", said, re.M), said
    assert re.search(r"^saved failures/abs-", said, re.M), said
    (record,) = json.loads((tmp_path / "m.json").read_text())["records"]
    assert record["cases"] == record["passed"] + record["failed"] + record["refused"], "each is counted once"
    assert record["failed"] == 1
    assert not (tmp_path / "failures" / journal.FOLDER).exists()


@pytest.mark.parametrize("alive", [True, False])
def test_what_an_item_found_stays_until_its_report_is_taken(tmp_path, monkeypatch, alive):
    """Whoever ends the run gets it, also while the process that judges still runs."""
    monkeypatch.setattr(journal, "GRACE", 0.0)
    case, ours = Case(op="relu", args=(SMALL,)), Journal(tmp_path, Header("torch", "gw0", "this"))
    tally = Tally()
    tally.add(case, Verdict(cases.case_id(case), "relu", "passed"))
    found = Found(tally.sorted(), tally.coverage.seen(), [Failed("wrong", "relu", "float32", "values")])
    for number in range(3):
        ours.begin(case)
        ours.end(Verdict(cases.case_id(case), "relu", "passed"))
        if number < 2:
            name = ours.finish(found)
        if number == 0:
            journal.taken(tmp_path, name)
    ours.begin(case)
    if not alive:
        ours.close()
    assert not alive or journal.recover(tmp_path, "torch", "another") == []
    ended, open_ = sorted(journal.recover(tmp_path, "torch", "this"), key=lambda left: left.found is None)
    assert (ended.found, ended.judged, ended.running) == (found, [], None)
    assert (open_.found, len(open_.judged), open_.running) == (None, 1, case)
    assert not (tmp_path / journal.FOLDER).exists()
    ours.close()


def test_an_interrupt_that_is_held_comes_at_the_release():
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    interrupts.install()
    try:
        interrupts.hold()
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            interrupts.release()
        interrupts.hold()
        interrupts.release()
    finally:
        interrupts.remove()
        assert signal.signal(signal.SIGINT, before) is signal.default_int_handler


def test_an_oracle_that_has_not_the_memory_is_no_failure():
    case = Case(op="softmax", args=(TensorSpec((2**22,), "float32"), 0))
    with contextlib.closing(Child("torch.nn.functional", "cpu")) as child:
        child.ready()
        used = int(Path(f"/proc/{child._judge.pid}/statm").read_text().split()[5]) * resource.getpagesize()
        resource.prlimit(child._judge.pid, resource.RLIMIT_DATA, (used + 2**27, resource.RLIM_INFINITY))
        verdict = child.judge(case)
        assert verdict.status == "out_of_memory", verdict.failure


def test_a_judge_that_was_killed_is_no_failure_where_torch_ends_it_too(monkeypatch):
    """As the system does where memory runs out."""

    class Killed(Child):
        def _receive(self, kind, seconds, *waiting, **of_calls):
            if self._ready and seconds == self.timeout and self.deadly(self._setup.implementation):
                os.kill(self._judge.pid, signal.SIGKILL)
            return super()._receive(kind, seconds, *waiting, **of_calls)

    monkeypatch.setattr("conformance.worker.Child", Killed)
    for deadly, status in ((lambda name: True, "out_of_memory"), (lambda name: name != "torch", "failed")):
        monkeypatch.setattr(Killed, "deadly", staticmethod(deadly), raising=False)
        with contextlib.closing(Killed("torch.nn.functional", "cpu", timeout=61.0)) as child:
            assert child.judge(Case(op="relu", args=(SMALL,))).status == status
