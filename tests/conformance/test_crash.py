"""Nothing is lost when what is judged kills its process, and nothing when that of the judge is killed."""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import crashing
import forked_python
import hanging
import hypothesis
import pytest

from conformance import __main__ as command_line
from conformance import case_files, cases, journal, session, worker
from conformance.cases import Case
from conformance.implementations import ImplementationError
from conformance.journal import Header, Journal
from conformance.profiles import PROFILES
from conformance.runner import Verdict
from conformance.session import Run
from conformance.worker import Child
from strategies.specs import TensorSpec

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
SMALL, LARGE = TensorSpec((2,), "float32"), TensorSpec((40,), "float32")
ENDS = {
    "relu": ("crash", "ended by SIGSEGV", "in _segfault"),
    "abs": ("crash", "ended itself with exit status 3", ""),
    "neg": ("crash", "ended by SIGABRT", "in function"),
    "exp": ("crash", "ended by SIGKILL (sent by the system when memory runs out", ""),
    "sin": ("timeout", "no result after 60 s", "in _hang"),
    "cos": ("errors", "can't allocate memory", ""),
}
"""By op of ``crashing``: the check, what the message says, and a line of the stack."""


@contextlib.contextmanager
def judging(implementation: str, timeout: float = 60.0) -> Iterator[Child]:
    with contextlib.closing(Child(implementation, "cpu", timeout=timeout)) as child:
        yield child


def run(child: Child, folder: Path, examples: int) -> Run:
    settings = hypothesis.settings(PROFILES["ci"], max_examples=examples)
    return Run(child.implementation, child.device, ("float32",), None, folder, settings, 0, child=child)


def suite(folder: Path, *arguments: str, run: Callable[..., Any] = forked_python.run) -> Any:
    """``pytest conformance`` as its user runs it, without the saved cases of the package; its status and its output."""
    command = [sys.executable, "-m", "pytest", str(ROOT / "conformance"), "-p", "no:cacheprovider", "--device", "cpu"]
    command += ["--corpus", str(folder), "--dtype", "float32", "--hypothesis-seed", "1", *arguments]
    path = f"{os.environ['PYTHONPATH']}{os.pathsep}{HERE}"
    return run(command, cwd=folder, env={**os.environ, "PYTHONPATH": path})


@pytest.mark.slow
def test_every_end_is_a_failure_and_the_next_case_is_judged(tmp_path, monkeypatch):
    hanging.only_then(monkeypatch, tmp_path)
    with judging("crashing") as child:
        for op, (check, message, stack) in ENDS.items():
            verdict = child.judge(Case(op=op, args=(LARGE,)))
            assert (verdict.status, verdict.failure.check) == ("failed", check), op
            assert message in verdict.failure.message
            assert stack in verdict.failure.message
            assert ("about to go" in verdict.failure.message) == (check != "errors")
            assert child.judge(Case(op=op, args=(SMALL,))).status == "passed", op
        # What those that died printed is in the messages.
        assert child.output() == "about to go\n"


def test_torch_out_of_memory_is_no_failure():
    # Operands of 32 MB, a result of 16 TB.
    wide, tall = TensorSpec((1, 2**22), "float64"), TensorSpec((2**22, 1), "float64")
    with judging("torch") as child:
        assert child.judge(Case(op="eq", args=(wide, tall))).status == "out_of_memory"
        assert child.judge(Case(op="eq", args=(SMALL, SMALL))).status == "passed"


def test_a_process_may_have_the_machines_memory_and_no_more():
    """Some systems grant any allocation."""
    code = (
        "import resource; from conformance import process_limits; process_limits.limit_memory()\n"
        "most, _ = resource.getrlimit(resource.RLIMIT_AS); assert most != resource.RLIM_INFINITY\n"
        "import mmap; mmap.mmap(-1, 1 << 20); mmap.mmap(-1, most)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert "Cannot allocate memory" in done.stderr.splitlines()[-1]


def test_what_judges_and_what_is_judged_on_a_cpu_have_that_limit():
    with judging("torch") as child:
        assert child.judge(Case(op="eq", args=(SMALL, SMALL))).status == "passed"
        for process in (child._judge, child._judged):
            most, _ = resource.prlimit(process.pid, resource.RLIMIT_AS)
            assert most != resource.RLIM_INFINITY


@pytest.mark.slow
def test_a_crash_is_shrunk_saved_and_repeated_and_the_others_are_judged(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(session, "SHRINKING", {"crash": 2, "timeout": 1})
    with judging("crashing") as child:
        report = run(child, Path("found"), 20).search("relu", "float32")
    drawn = []
    with judging("torch") as child:
        judge = child.judge
        monkeypatch.setattr(child, "judge", lambda case, *more: drawn.append(case) or judge(case, *more))
        assert run(child, Path("none"), 20).search("relu", "float32").failures == []
    (message,) = report.failures
    (record,) = report.tally.sorted()
    assert (record.failed, record.failures[0].check) == (1, "crash")
    peaceful = [case for case in drawn if math.prod(case.args[0].shape) <= crashing.SMALL]
    assert 0 < record.passed == len(peaceful) < len(drawn), "all that do not crash are judged, drawn before or after"
    (path,), (script,) = Path("found").glob("*.json"), Path("found").glob("*.py")
    assert message.startswith(f"relu (float32): crash failed for crashing on cpu, case {path.stem}")
    assert f"    python -m conformance reproduce {path} --implementation crashing\n" in message
    assert "Judged again" not in message

    assert command_line.main(["reproduce", str(path), "--implementation", "crashing", "--device", "cpu"]) == 1
    assert "crash failed: the process was ended by SIGSEGV; it printed last:" in capfd.readouterr().out
    done = subprocess.run([sys.executable, str(script.absolute())], cwd=HERE, capture_output=True, text=True)
    assert done.returncode == -signal.SIGSEGV
    assert subprocess.run([sys.executable, str(script), "torch"], capture_output=True).returncode == 0


@pytest.mark.slow
def test_a_search_in_which_all_crashes_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr("conformance.search_state.FATAL", {"crash": 2, "timeout": 1})
    with judging("crashing") as child:
        report = run(child, tmp_path, 100).search("exp", "float32")
    assert report.failures[-1].startswith("exp (float32): 2 cases failed with crash; the search was given up after ")
    assert len(report.failures) == 2


@pytest.mark.slow
def test_a_crash_that_does_not_happen_again_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(session, "SHRINKING", {"crash": 1, "timeout": 1})
    with judging("crashing") as child:
        (message,) = run(child, tmp_path, 40).search("tanh", "float32").failures
    assert "tanh (float32): crash failed for crashing on cpu" in message
    assert "Judged again, alone in a fresh process, it passed" in message


@pytest.mark.slow
def test_a_crash_in_a_test_of_an_op_as_a_whole_is_its_failure(tmp_path):
    op = "rotary_position_embedding"
    done = suite(tmp_path, "--op", op, "--implementation", "crashing", "-k", "identity or back")
    assert done.returncode == 1, done.stdout
    assert "2 failed" in done.stdout
    assert "crash: the process was ended by SIGSEGV" in done.stdout
    assert "in holds" in done.stdout


def test_an_implementation_that_ends_its_process_when_imported_is_told(tmp_path, monkeypatch):
    (tmp_path / "ends_at_import.py").write_text("import os\nos._exit(5)\n")
    monkeypatch.syspath_prepend(tmp_path)
    with (
        judging("ends_at_import") as child,
        pytest.raises(
            ImplementationError,
            match="'ends_at_import': importing it failed: the process ended itself with exit status 5",
        ),
    ):
        child.ready()


NEVER_ENDS = "import time\n\ndef wait():\n    while True:\n        time.sleep(1)\n\nwait()\n"


def test_an_import_that_never_ends_is_told_with_its_stack(tmp_path, monkeypatch, capsys):
    (tmp_path / "never_ends.py").write_text(NEVER_ENDS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("conformance.worker.SILENCE", 0.5)
    stack = r"importing it failed: no result after 3 s; it printed last:\n(.*\n)*.*never_ends.py\", line 5 in wait"
    with contextlib.closing(Child("never_ends", "cpu", import_timeout=3.0)) as child:
        with pytest.raises(ImplementationError, match=stack):
            child.ready()
        told = capsys.readouterr().err.splitlines()
    assert told[0] == "still importing never_ends after 0.5 s; after 3 s it has failed (--import-timeout)"
    assert [line.split()[4] for line in told[1:]] == ["1", "2"][: len(told) - 1]


@pytest.mark.parametrize(
    ("case", "given", "limit"), [(0.2, None, 60), (300, None, 300), (0, None, 0), (5, 2, 2), (5, 0, 0)]
)
def test_how_long_importing_may_take(case, given, limit):
    with contextlib.closing(Child("torch", "cpu", timeout=case, import_timeout=given)) as child:
        assert child.import_timeout == limit


def test_a_journal_outlives_its_process(tmp_path):
    first, second = Case(op="relu", args=(LARGE,)), Case(op="relu", args=(SMALL,))
    if not (killed := os.fork()):
        ours = Journal(tmp_path, Header("torch", "gw3"))
        ours.begin(first)
        ours.end(Verdict(cases.case_id(first), "relu", "passed"))
        ours.begin(second)
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(killed, 0)
    with contextlib.closing(Journal(tmp_path, Header("torch", "gw4"))) as alive:
        alive.begin(first)
        assert journal.recover(tmp_path, "another") == []
        (left,) = journal.recover(tmp_path, "torch")
        assert journal.recover(tmp_path, "torch") == []
    assert (left.header.worker, left.running) == ("gw3", second)
    assert [case for case, _ in left.judged] == [first]
    ((case, verdict),) = left.failing()
    assert (case, verdict.failure.check) == (second, "crash")
    assert [left.header.worker for left in journal.recover(tmp_path, "torch")] == ["gw4"], "nobody took its report"
    assert not (tmp_path / journal.FOLDER).exists()


@pytest.mark.slow
def test_workers_lose_nothing(tmp_path):
    ops = [part for op in ("relu", "neg", "eq") for part in ("--op", op)]
    done = suite(tmp_path, "-n", "2", "--implementation", "crashing:at_once", "--max-examples", "1", *ops)
    assert done.returncode == 1, done.stdout
    saved = {case_files.read(path).op for path in tmp_path.glob("*.json")}
    assert saved == {"relu", "neg"}
    for path in tmp_path.glob("*.json"):
        assert path.stem in done.stdout
    counts = {line.split()[0]: line.split()[1:4] for line in done.stdout.splitlines() if line[:4] in ("relu", "eq  ")}
    assert int(counts["relu"][2]) >= 1
    assert int(counts["eq"][0]) == int(counts["eq"][1]) > 0


@pytest.mark.slow
def test_a_killed_worker_is_reported_with_its_case(tmp_path):
    arguments = ("-k", "test_legal", "--implementation", "crashing:kills_worker", "--max-examples", "3", "--op", "relu")
    # What is killed is the parent of those that judge, which is to be no process of the tests'.
    anew = functools.partial(subprocess.run, capture_output=True, text=True)
    done = suite(tmp_path, "-n", "1", *arguments, run=anew)
    assert done.returncode == 1, done.stdout
    assert "processes that were killed while they judged" in done.stdout
    (path,) = tmp_path.glob("*.json")
    assert f"crash failed for crashing:kills_worker on cpu, case {path.stem}" in done.stdout
    assert "was killed while this case was judged" in done.stdout

    # A run without workers dies as a whole; the next one finds what it left.
    path.unlink()
    assert suite(tmp_path, *arguments, run=anew).returncode == -signal.SIGKILL
    assert not list(tmp_path.glob("*.json"))
    done = suite(tmp_path, *arguments[:-1], "eq")
    assert done.returncode == 0, done.stdout
    (path,) = tmp_path.glob("*.json")
    assert f"an earlier run of crashing:kills_worker was killed while it judged; saved {path}" in done.stdout


def test_the_time_of_a_case_is_that_of_its_calls(monkeypatch):
    with judging("torch") as child:
        child.ready()
        # A second more than the calls may take passes as soon as the verdict is waited for.
        clock = itertools.chain([0.0], itertools.repeat(61.0))
        monkeypatch.setattr(worker, "time", SimpleNamespace(monotonic=clock.__next__))
        verdict = child.judge(Case(op="exp", args=(SMALL,)))
        assert verdict.status == "passed", verdict.failure


def test_a_process_that_is_slow_to_end_is_not_said_to_be_killed(monkeypatch):
    """The harness kills it itself then: it is no sign of memory that ran out."""
    with judging("crashing") as child:
        child.ready()
        monkeypatch.setattr(worker, "GRACE", 59.0)
        process, ended = type(child._judged), type(child._judged).ended
        monkeypatch.setattr(process, "ended", lambda self, seconds: seconds != 59.0 and ended(self, seconds))
        failure = child.judge(Case(op="relu", args=(LARGE,))).failure
        assert failure.check == "crash"
        assert "closed its connection, and still ran 59 s later" in failure.message


HANGS = """
import dataclasses, hanging, time, torch
from conformance.ops import exp

def reference(*args, **kwargs):
    hanging.begins()
    time.sleep(1000)

SPEC = dataclasses.replace(exp.SPEC, name="hung_exp", reference=reference)
"""


def test_a_judge_that_does_not_end_is_ended(tmp_path, monkeypatch):
    (tmp_path / "hung_specs.py").write_text(HANGS)
    (tmp_path / "fast.py").write_text("import torch\n\nhung_exp = torch.exp\n")
    monkeypatch.setattr(worker.specs, "brought", lambda: (str(tmp_path / "hung_specs.py"),))
    hanging.only_then(monkeypatch, tmp_path)
    with judging(str(tmp_path / "fast.py")) as child:
        verdict = child.judge(Case(op="hung_exp", args=(SMALL,)))
        assert (verdict.status, verdict.failure.check) == ("failed", "timeout")
        assert f"no result after {worker.JUDGE * 60:g} s" in verdict.failure.message
