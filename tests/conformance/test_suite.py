"""``pytest conformance``: options, exit codes, the table and the metrics, saved cases."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import forked_python
import hanging
import hypothesis.core
import pytest
import torch

from conformance import __main__ as command_line
from conformance import case_files, cases, corpus, forkserver, plain_calls, runner
from conformance.cases import Case
from conformance.spec import SpecError, bring, brought, registry
from strategies.specs import TensorSpec

pytest_plugins = ["pytester"]

ROOT = Path(__file__).parents[2]
SUITE = str(ROOT / "conformance")
USAGE = pytest.ExitCode.USAGE_ERROR
QUICK = ("--op", "relu", "--dtype", "float32", "--max-examples", "12", "--device", "cpu")


@pytest.fixture(scope="session")
def _torch_is_whole():
    """Make torch import what it imports late. A run in this process forgets the modules that it was first to import,
    and torch's cannot be imported twice."""
    operand = TensorSpec((3,), "float32")
    for op, arguments in {"add": (operand, operand), "softmax": (operand, 0), "relu": (operand,)}.items():
        case_files.result_elements(Case(op=op, args=arguments))
    runner.judge(Case(op="add", args=(operand, 1.0), kwargs={"out": TensorSpec((2,), "float32")}), "torch")


@pytest.fixture
def suite(pytester, monkeypatch, _torch_is_whole):
    """Run the suite in this process, in an empty folder, without the saved cases of the package."""
    monkeypatch.delenv("CI", raising=False)
    # Runs on the CPU set it; here it is forgotten afterwards.
    monkeypatch.setenv("TRITON_INTERPRET", os.environ.get("TRITON_INTERPRET", "1"))
    monkeypatch.setattr(corpus, "SHIPPED", pytester.path / "none")
    monkeypatch.setattr(corpus, "LARGE", pytester.path / "none")
    # A script takes seconds: it has tests of its own.
    monkeypatch.setattr(plain_calls.Pool, "chosen", lambda pool, few, each: [])
    # --hypothesis-seed sets it for good, and then no database of examples is looked at.
    monkeypatch.setattr(hypothesis.core, "global_force_seed", hypothesis.core.global_force_seed)

    def run(*arguments, implementation="torch"):
        return pytester.runpytest_inprocess(
            SUITE, "-p", "no:cacheprovider", "-p", "no:benchmark", "--implementation", implementation, *arguments
        )

    return run


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--op", "ad"], "unknown op 'ad'; did you mean add? Valid are abs, add, "),
        (["--op", "sofmax"], "unknown op 'sofmax'; did you mean softmax or log_softmax or amax? Valid are abs, add, "),
        (
            ["--dtype", "floa16"],
            "unknown dtype 'floa16'; did you mean float16 or bfloat16 or float64? Valid are float32, ",
        ),
        (["--check", "value"], "unknown check 'value'; did you mean values? Valid are memory, guard_bands, "),
        (["--hypothesis-profile", "fast"], "unknown profile 'fast'; valid are smoke, ci, deep"),
        (["--hypothesis-profile", "smok"], "unknown profile 'smok'; did you mean smoke? Valid are smoke, ci, deep"),
        (["--implementation", "no_such"], "'no_such' failed: ModuleNotFoundError*Valid are ntops.torch, torch, any"),
        (["--implementation", "defects:no_such"], "defects has no 'no_such'"),
        (["--device", "tpu"], "unknown device 'tpu'; valid are auto, cpu, cuda"),
        (["--op", "mm", "--dtype", "int8"], "takes the dtypes that were asked for: mm takes float32"),
        (["--corpus", "no_such"], "--corpus no_such: not a folder"),
        (["--database", "no_such"], "database 'no_such': not a folder"),
        (["--metrics", "no_such/metrics.json"], "there is no folder no_such"),
        (["--max-examples", "0"], "--max-examples: invalid"),
        (["--case-timeout", "-1"], "--case-timeout: invalid"),
        (["--import-timeout", "inf"], "--import-timeout: invalid"),
        (["--hypothesis-seed", "now"], "--hypothesis-seed 'now': not a whole number"),
    ],
)
def test_usage_errors(suite, arguments, message):
    result = suite(*arguments)
    assert result.ret == USAGE
    result.stderr.fnmatch_lines([f"*{message}*".replace("[", "[[]")])


def test_an_import_that_never_ends_is_a_usage_error(suite, pytester):
    pytester.makepyfile(never_ends="import time\nwhile True:\n    time.sleep(1)\n")
    result = suite("--import-timeout", "2", implementation="never_ends")
    assert result.ret == USAGE
    result.stderr.fnmatch_lines(
        ["*implementation 'never_ends': importing it failed: no result after 2 s; it printed last:", '*never_ends.py"*']
    )


def test_cuda_without_a_gpu_is_a_usage_error(suite, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    result = suite("--device", "cuda")
    assert result.ret == USAGE
    result.stderr.fnmatch_lines(["*torch finds no CUDA GPU on this machine; valid here are auto and cpu*"])


@pytest.mark.slow
def test_profiles(suite, monkeypatch):
    assert "profile smoke" in suite(*QUICK).stdout.str()
    monkeypatch.setenv("CI", "true")
    assert "profile ci, 12 cases for each op and dtype, --hypothesis-seed 0" in suite(*QUICK).stdout.str()
    deep = suite(*QUICK, "--hypothesis-profile", "deep", "--hypothesis-seed", "7").stdout.str()
    assert "profile deep, 12 cases for each op and dtype, --hypothesis-seed 7" in deep


def test_specs_are_those_of_one_run(suite, pytester, monkeypatch):
    """In the same process the next run, and the next command, knows what it is given and no more."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    one = "import dataclasses\nfrom conformance.ops import abs\nSPEC = dataclasses.replace(abs.SPEC, name='of_one')\n"
    pytester.makepyfile(of_one_run=one, of_none="")
    before = set(registry())
    assert suite("--specs", "of_one_run.py", "--device", "cpu", "--op", "of_one", "--collect-only").ret == 0
    assert (set(registry()), brought()) == (before, ())
    assert command_line.main(["list", "--specs", "of_one_run.py"]) == 0
    assert (set(registry()), brought()) == (before, ())
    with pytest.raises(SpecError):
        bring(["of_one_run.py", "of_none.py"])
    assert (set(registry()), brought()) == (before, ())


def test_passing_run(suite, pytester):
    result = suite(*QUICK, "--metrics", "metrics.json")
    assert result.ret == pytest.ExitCode.OK
    result.assert_outcomes(passed=3, skipped=1)
    result.stdout.fnmatch_lines(
        [
            "*conformance of torch on cpu*",
            "op *cases *passed *failed *judged *refused *not provided *excused *of the bound*",
            "relu *",
        ]
    )
    result.stdout.fnmatch_lines(["metrics written to metrics.json"])
    found = json.loads((pytester.path / "metrics.json").read_text())
    assert (found["implementation"], found["device"], found["profile"]) == ("torch", "cpu", "smoke")
    assert torch.__version__.startswith(found["versions"]["torch"].partition("+")[0])
    assert found["seed"] >= 0
    legal = next(record for record in found["records"] if record["dtype"] == "float32")
    assert legal["cases"] == legal["passed"] > 3
    assert legal["failed"] == 0
    assert legal["failures"] == []
    assert legal["worst"]["share"] == 0
    assert case_files.decode(json.dumps(legal["worst"]["case"])).op == "relu"
    assert not (pytester.path / "failures").exists()


@pytest.mark.slow
def test_a_seed_repeats_a_run(suite, pytester):
    for name in ("one", "two"):
        suite("--op", "add", "--dtype", "float16", "--max-examples", "20", "--hypothesis-seed", "3", "--metrics", name)
    one, two = (json.loads((pytester.path / name).read_text()) for name in ("one", "two"))
    assert one["records"] == two["records"]


@pytest.mark.slow
def test_failing_run_then_replay(suite, pytester):
    values = ("--check", "values")
    arguments = [*QUICK[:4], "--max-examples", "60", "--device", "cpu", *values, "--hypothesis-seed", "1"]
    result = suite(*arguments, "--metrics", "m.json", implementation="defects:nan_lost")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    (path,) = (pytester.path / "failures").glob("*.json")
    result.stdout.fnmatch_lines(
        [
            f"relu (float32): values failed for defects:nan_lost on cpu, case {path.stem}",
            "values failed: 1 of 1 elements are wrong; the worst is*",
            f"saved failures/{path.name} and failures/repro_{path.stem}.py",
            f"    python -m conformance reproduce failures/{path.name} --implementation defects:nan_lost",
            f"    python failures/repro_{path.stem}.py",
        ]
    )
    (failure,) = [
        f for record in json.loads((pytester.path / "m.json").read_text())["records"] for f in record["failures"]
    ]
    assert (failure["id"], failure["check"]) == (path.stem, "values")

    # The saved case comes first in the next run, from where failing cases are saved or from the folder that is named.
    before = path.read_bytes()
    for where in ([], ["--corpus", "failures"]):
        seeded = (*values, *where, "--hypothesis-seed", "1")
        result = suite(*QUICK, *seeded, "-v", implementation="defects:nan_lost")
        assert re.search(r"test_\w+\[.*?\]", result.stdout.str()).group() == f"test_saved[{path.stem}]"
        assert path.read_bytes() == before
        result = suite(*QUICK, *seeded)
        result.assert_outcomes(passed=3, skipped=1)
    assert suite("--op", "eq", *QUICK[2:]).parseoutcomes().get("passed") == 3, "a case of another op is left out"


@pytest.mark.slow
def test_the_first_failure_is_shown_at_once_and_each_cause_once(suite, pytester):
    ops = [part for op in ("abs", "exp", "relu") for part in ("--op", op)]
    arguments = (*ops, "--max-examples", "20", "--check", "values", "--check", "errors", "--hypothesis-seed", "1")
    source = """
        import torch

        def loses(function):
            def call(input, *args, **kwargs):
                result = function(input, *args, **kwargs)
                return result.nan_to_num_(0.0, torch.inf, -torch.inf) if result.is_floating_point() else result
            return call

        abs, exp, relu = map(loses, (torch.abs, torch.exp, torch.nn.functional.relu))
    """
    pytester.makepyfile(lossy=source)
    dtypes = ("--dtype", "float32", "--dtype", "float16", "--device", "cpu")
    said = suite(*arguments, *dtypes, implementation="lossy").stdout.str()
    first, _, last = said.partition("1 cause ==")
    assert first.count(" failed for lossy on cpu, case ") == last.count(" failed for lossy on cpu, case ") == 1
    assert "the first failure, in " in first
    assert re.search(
        r"^\[1\] values, \d+ failures, all with specials=nan: abs, exp, relu; float16, float32$", last, re.M
    )
    assert re.search(r"^found \d{4}-\d\d-\d\d on CPU .* with torch [^ ]+, triton [^ ]+, Python 3", last, re.M)
    assert "FAILED" not in said
    assert re.search(r"\d+ failed, \d+ passed", said.splitlines()[-1])
    (script, *_) = (pytester.path / "failures").glob("*.py")
    assert re.search(r"^# found \d{4}-\d\d-\d\d on CPU .* with torch ", script.read_text(), re.M)

    said = suite(*arguments, *dtypes, "-vv", implementation="lossy").stdout.str()
    assert re.search(r"^FAILED .* - Failed: abs \(float16\): values, case abs-", said, re.M)


def test_damaged_saved_case_is_a_failure(suite, pytester):
    pytester.mkdir("saved")
    (pytester.path / "saved" / "broken.json").write_text("{")
    result = suite(*QUICK, "--corpus", "saved")
    result.assert_outcomes(passed=3, failed=1)
    result.stdout.fnmatch_lines(["damaged case file: saved/broken.json: not a case: *"])


def test_a_case_that_is_saved_twice_is_replayed_once(suite, pytester):
    folder = pytester.mkdir("saved")
    for name in ("one", "two"):
        corpus.write(folder / f"{name}.json", cases.encode(Case(op="relu", args=(TensorSpec((3,), "float32"),))))
    suite(*QUICK, "--corpus", "saved").assert_outcomes(passed=4)


def test_implementations_that_give_nothing_to_judge(suite):
    ops = [part for op in ("abs", "add", "eq", "relu") for part in ("--op", op)]
    result = suite(*ops, "--dtype", "int8", "--max-examples", "5", implementation="defects:nothing_to_judge")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    for op, message in {
        "abs": "metadata failed: returned None instead of a tensor",
        "add": "metadata failed: returned an object of type float instead of a tensor",
        "eq": "metadata failed: returned 2 results in a tuple instead of one tensor",
        "relu": "errors failed: torch takes this call; raised SystemExit: 3",
    }.items():
        failed = f"{op} (int8): {message.partition(' ')[0]} failed for defects:nothing_to_judge on cpu, case *"
        result.stdout.fnmatch_lines([failed, message, "op *cases *", f"{op} *"])


@pytest.mark.slow
def test_a_case_that_hangs_fails_at_its_limit(suite, tmp_path, monkeypatch):
    hanging.only_then(monkeypatch, tmp_path)
    arguments = ("--op", "add", "--dtype", "int8", "--case-timeout", "0.2", "--max-examples", "5")
    result = suite(*arguments, implementation="defects:hangs")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["add (int8): timeout failed for defects:hangs on cpu, case *"])
    result.stdout.fnmatch_lines(["timeout failed: no result after 0.2 s; it printed last:", "*line * in _hangs"])


def test_what_is_lacking_is_not_provided_and_not_passed(suite):
    result = suite(*QUICK, implementation="defects:nothing")
    result.assert_outcomes(skipped=4)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.re_match_lines([r"relu +1 +0 +0 +0 +0 +1 +0 "])
    result.stdout.fnmatch_lines(
        [
            "nothing was judged: no call of defects:nothing has a verdict",
            "relu: asked for by --op, and not provided by defects:nothing",
        ]
    )


def test_a_saved_case_beyond_the_limit_is_skipped_with_what_would_run_it(suite, pytester):
    case = Case(op="relu", args=(TensorSpec((101,), "float32"),))
    corpus.write(pytester.path / f"{cases.case_id(case)}.json", cases.encode(case))
    arguments = (*QUICK, "--corpus", ".", "-k", "test_saved", "-rs")
    result = suite(*arguments, "--max-elements", "100")
    result.assert_outcomes(skipped=1, deselected=3)
    result.stdout.fnmatch_lines(["*would hold 101 elements; the limit is 100 (--max-elements raises it)*"])
    suite(*arguments, "--max-elements", "101").assert_outcomes(passed=1, deselected=3)


def test_one_check(suite):
    arguments = ("--op", "add", "--dtype", "float32", "--max-examples", "20")
    assert (
        suite(*arguments, "--check", "values", implementation="conformance.selftest.planted:add_scratch").ret
        == pytest.ExitCode.OK
    )
    assert (
        suite(*arguments, "--check", "inputs_unchanged", implementation="conformance.selftest.planted:add_scratch").ret
        == 1
    )


def test_an_implementation_cannot_break_the_harness(suite):
    suite(*QUICK, implementation="broken_harness").assert_outcomes(passed=3, skipped=1)


def test_faults_of_the_harness_are_not_failures_of_the_implementation(suite, pytester, monkeypatch):
    command = forkserver._command
    monkeypatch.setattr(forkserver, "_running", [])
    monkeypatch.setattr(forkserver, "_command", lambda call: command(f"import broken_harness; {call}"))
    result = suite(*QUICK, implementation="torch")
    forkserver._close()
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["*ZeroDivisionError: in the oracle*"])
    assert not (pytester.path / "failures").exists()


SERVERS = """
import pathlib
from conformance import forkserver

def pytest_unconfigure():
    pathlib.Path("servers").open("a").write("".join(type(server).__name__ for server in forkserver._running))
"""


@pytest.mark.slow
def test_workers_lose_nothing(tmp_path):
    """Workers of pytest-xdist count the same as one process, and share what forks processes."""
    options = ("--op", "relu", "--op", "eq", "--dtype", "float16", "--dtype", "int8", "--max-examples", "15")
    options += ("--check", "values", "--hypothesis-seed", "1", "--device", "cpu", "--metrics", "m.json")
    planted = "conformance.selftest.planted:eq_nan_equals_nan"
    path = (os.environ["PYTHONPATH"], str(Path(__file__).parent), str(tmp_path))
    (tmp_path / "servers.py").write_text(SERVERS)
    found = []
    for workers in ("0", "2"):
        folder = tmp_path / workers
        folder.mkdir()
        command = [sys.executable, "-m", "pytest", SUITE, "-n", workers, "-p", "no:cacheprovider", *options]
        command += ["--corpus", str(folder), "--implementation", planted, "-p", "servers"]
        done = forked_python.run(command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": os.pathsep.join(path)})
        assert done.returncode == pytest.ExitCode.TESTS_FAILED, done.stdout + done.stderr
        found.append((done.stdout, json.loads((tmp_path / "m.json").read_text())["records"]))
    tables = [said.partition(f"conformance of {planted} on cpu")[2].splitlines()[1:4] for said, _ in found]
    assert tables[0] == tables[1]
    assert [row.split()[0] for row in tables[0]] == ["op", "eq", "relu"]
    assert found[0][1] == found[1][1]
    assert forkserver._gpu() or (tmp_path / "servers").read_text().count("_Joined") == 4


@pytest.mark.slow
def test_commands(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    case = corpus.with_digests(Case(op="relu", args=(TensorSpec((3,), "float32"),)), "why it is kept")
    Path("failures").mkdir()
    corpus.write(Path("failures/case.json"), cases.encode(case))

    assert command_line.main(["show", "failures/case.json"]) == 0
    shown = capsys.readouterr().out
    for part in (cases.case_id(case), "why it is kept", "float32[3] strides [1]", "operand 0: tensor(["):
        assert part in shown
    assert command_line.main(["list"]) == 0
    listed = capsys.readouterr().out
    assert "softmax: float32" in listed
    assert "failures/case.json: why it is kept" in listed
    assert command_line.main(["list", "--op", "mm"]) == 0
    assert "relu" not in capsys.readouterr().out

    assert command_line.main(["reproduce", "failures/case.json", "--implementation", "torch"]) == 0
    assert f"{cases.case_id(case)}: passed for torch on" in capsys.readouterr().out
    # All checks are made, that of the call in place as well.
    planted = "conformance.selftest.planted:relu_inplace_copies"
    assert command_line.main(["reproduce", "failures/case.json", "--implementation", planted]) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["reproduce", "no_such.json"], "no_such.json: cannot be read: No such file or directory"),
        (["show", "broken.json"], "broken.json: not a case"),
        (["reproduce", "relu.json", "--implementation", "no_such"], "importing 'no_such' failed"),
        (["reproduce", "relu.json", "--device", "tpu"], "unknown device 'tpu'"),
        (["reproduce", "relu.json", "--implementation", "defects:nothing"], "does not provide this call of relu"),
        (["reproduce", "relu.json", "--max-elements", "2"], "would hold 3 elements; the limit is 2"),
        (["reproduce", "relu.json", "--max-bytes", "9"], "larger than 9 bytes"),
        (["list", "--op", "ad"], "unknown op 'ad'; did you mean add? Valid are abs, add, "),
    ],
)
def test_bad_input_to_commands(arguments, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("broken.json").write_text("{")
    corpus.write(Path("relu.json"), cases.encode(Case(op="relu", args=(TensorSpec((3,), "float32"),))))
    assert command_line.main(arguments) == 2
    written = capsys.readouterr().err
    assert written.startswith("error: ")
    assert message in written
