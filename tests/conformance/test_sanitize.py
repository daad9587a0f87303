"""Every operator's saved cases run under each sanitizer, without a GPU: under a stand-in."""

import os
import re
import sys
import textwrap
from pathlib import Path

import msgspec
import pytest
import torch
from sanitizer_output import CLEAN, CLEAN_RACECHECK, RACECHECK

from conformance import case_files, cases, compilation, corpus, sequences
from conformance.cases import Case
from conformance.sanitize import batches, controls, driver, kernels, reports
from conformance.sanitize.__main__ import main
from conformance.sanitize.driver import Outcome, Plan
from conformance.sequences import CallSequence, Step
from strategies.specs import TensorSpec

# --- the cases -----------------------------------------------------------------------------------------------------


def saved(folder: Path, *shapes: tuple[int, ...], dtype: str = "float32") -> list[Path]:
    folder.mkdir(exist_ok=True)
    for shape in shapes:
        case = Case(op="relu", args=(TensorSpec(shape, dtype),))
        (folder / f"{cases.case_id(case)}.json").write_bytes(cases.encode(case))
    return corpus.files([folder])


def test_small_cases_come_first_and_large_ones_not_at_all(tmp_path):
    files = saved(tmp_path, (90, 90), (3,), (17, 5))
    sizes = [cases.elements(case_files.read(file)) for file in batches.chosen(files, None, 0, 1000)["relu"]]
    assert sizes == [3, 85]


def test_of_few_cases_each_has_something_new(tmp_path):
    files = saved(tmp_path, (3,), (5,), (6,), (7, 3, 2))
    files = saved(tmp_path, (9,), dtype="bfloat16") + [file for file in files if file.exists()]
    found = [cases.operands(case_files.read(file))[0] for file in batches.chosen({*files}, None, 3, 1000)["relu"]]
    assert {(spec.dtype, len(spec.shape)) for spec in found} == {("float32", 1), ("bfloat16", 1), ("float32", 3)}


def test_every_op_has_saved_cases_within_the_budget():
    from conformance import spec as specs
    from conformance.sanitize.__main__ import ELEMENTS

    assert set(batches.chosen(corpus.files([corpus.SHIPPED]), None, 3, ELEMENTS)) == set(specs.registry())


def driven(tmp_path: Path, plan: Plan) -> Outcome:
    (tmp_path / "plan").write_bytes(msgspec.json.encode(plan))
    assert driver.main([str(tmp_path / "plan"), str(tmp_path / "outcome")]) == 0
    return msgspec.json.decode((tmp_path / "outcome").read_bytes(), type=Outcome)


def test_a_saved_sequence_is_no_case(tmp_path):
    relu = Case(op="relu", args=(TensorSpec((3,), "float32"),))
    sequence = CallSequence(steps=(Step(relu), Step(relu)))
    (tmp_path / "relu-sequence-0123456789.json").write_bytes(sequences.encode(sequence))
    assert batches.chosen([*saved(tmp_path / "cases", (3,)), *corpus.files([tmp_path])], None, 0, 1000).keys() == {
        "relu"
    }


def test_each_case_is_called_once_and_exceptions_are_counted(tmp_path, monkeypatch):
    (tmp_path / "some_library.py").write_text(
        "from conformance.implementations import NotProvided\n"
        "seen = []\n\n\n"
        "def relu(input):\n    seen.append(len(input))\n"
        "    if len(input) == 4:\n        raise NotProvided\n"
        "    if len(input) == 5:\n        raise ValueError\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    files = tuple(map(str, saved(tmp_path / "cases", (3,), (4,), (5,), (6,))))
    outcome = driven(tmp_path, Plan("some_library", "cpu", files))
    assert outcome == Outcome(called=2, refused=1, not_provided=1)
    assert sorted(sys.modules["some_library"].seen) == [3, 4, 5, 6]


def test_every_configuration_is_called_some_with_each_case(tmp_path, monkeypatch):
    (tmp_path / "tiled_library.py").write_text(
        "import contextlib\n"
        "seen, current = [], None\n\n\n"
        "def relu(input):\n    seen.append((len(input), current))\n\n\n"
        "@contextlib.contextmanager\n"
        "def conformance_configurations(op, number):\n"
        "    global current\n    current = number\n    yield ['small', 'middle', 'large']\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    files = batches.chosen(saved(tmp_path / "cases", (3,), (4,), (5,)), None, 0, 10)["relu"]
    outcome = driven(tmp_path, Plan("tiled_library", "cpu", tuple(map(str, files)), configurations=2))
    assert outcome == Outcome(called=3, configurations=3)
    assert sys.modules["tiled_library"].seen == [(3, None), (3, 0), (3, 1), (4, None), (4, 2), (5, None)]


def test_no_such_implementation_is_said(tmp_path):
    assert "no_such_library" in driven(tmp_path, Plan("no_such_library", "cpu")).failed


# --- the command ---------------------------------------------------------------------------------------------------


STAND_IN = """\
#!{python}
import os, subprocess, sys
from pathlib import Path

if sys.argv[1] == "--version":
    print("NVIDIA (R) Compute Sanitizer\\nCopyright (c)\\nVersion 2025.3.1.0 (build 1) (public-release)")
    sys.exit()
arguments = sys.argv[1:]
tool = arguments[arguments.index("--tool") + 1]
program = arguments[arguments.index({python!r}):]
assert os.environ["PYTORCH_NO_CUDA_MEMORY_CACHING"] == "1"
# There is no GPU here: the same on the CPU.
plan = Path(program[-2])
control = '"control":""' not in plan.read_text()
plan.write_text(plan.read_text().replace('"cuda"', '"cpu"'))
with open({log!r}, "a") as log:
    print(tool, "control" if control else "cases", *arguments, file=log)
status = 0
if {runs!r}:
    status = subprocess.run(program).returncode
elif not control:
    Path(program[-1]).write_text('{{"called": 2}}')
printed = Path({folder!r}, tool)
print(printed.read_text() if printed.exists() else {clean!r})
sys.exit(status)
"""


@pytest.fixture(params=[False])
def stand_in(request, tmp_path, monkeypatch):
    """A compute-sanitizer on PATH that prints what the files in the folder say, and a GPU that is not there.

    Its parameter: whether it runs the program; else it says that two cases were called.
    """
    folder = tmp_path / "prints"
    folder.mkdir()
    program = tmp_path / "bin" / "compute-sanitizer"
    program.parent.mkdir()
    text = STAND_IN.format(
        python=sys.executable, log=str(tmp_path / "log"), folder=str(folder), clean=CLEAN, runs=request.param
    )
    program.write_text(text)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=os.pathsep)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a GPU")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    return folder


ONE = ("--implementation", "torch", "--op", "relu", "--cases", "2", "-n", "1")


@pytest.mark.parametrize("stand_in", [True], indirect=True)
def test_what_runs_under_it_calls_the_implementation(stand_in, capsys):
    assert main([*ONE, "--tool", "synccheck"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"^relu +2 +0$", out, re.MULTILINE)


@pytest.fixture
def loadable(monkeypatch):
    """The implementation need not be loaded to see that it can be."""
    monkeypatch.setattr(batches, "check", lambda plan, timeout: None)


def test_all_tools_run_and_a_clean_implementation_passes(stand_in, loadable, tmp_path, capsys):
    (stand_in / "racecheck").write_text(CLEAN_RACECHECK)
    assert main([*ONE, "--", "--num-cuda-barriers", "64"]) == 0
    out = capsys.readouterr().out
    assert "Version 2025.3.1.0" in out
    assert re.search(r"^operator +calls +memcheck +racecheck +initcheck +synccheck$", out, re.MULTILINE)
    assert re.search(r"^relu +2 +0 +0 +0 +0$", out, re.MULTILINE)
    assert "racecheck: 0 found in 2 calls of 1 operators" in out
    log = (tmp_path / "log").read_text().splitlines()
    assert [line.split()[0] for line in log] == list(reports.TOOLS)
    assert all("--num-cuda-barriers 64" in line for line in log)


def test_what_is_found_fails_and_says_where(stand_in, loadable, tmp_path, capsys):
    (stand_in / "racecheck").write_text(RACECHECK)
    logs = tmp_path / "logs"
    logs.mkdir()
    assert main([*ONE, "--tool", "racecheck", "--log", str(logs)]) == 1
    out = capsys.readouterr().out
    assert re.search(r"^relu +2 +2$", out, re.MULTILINE)
    assert "racecheck relu: 2 found, first multiply at mm_hopper.py:196: Race reported between Read access" in out
    assert "racecheck relu: note: Detected overflow of tracked cuda::barrier structures" in out
    assert RACECHECK in (logs / "racecheck_relu.txt").read_text()


def test_controls_stand_beside_and_do_not_count(stand_in, loadable, capsys):
    assert main([*ONE, "--tool", "memcheck", "--control"]) == 0
    assert "memcheck does not find 'planted: read past the end'" in capsys.readouterr().out


def test_a_process_that_does_not_end_is_ended_and_told_of(stand_in, loadable, capsys):
    program = batches.find(None)
    # However slow the machine: it would not end by itself.
    program.write_text(program.read_text().replace("status = 0\n", "import time; time.sleep(10**6)\n"))
    assert main([*ONE, "--tool", "memcheck", "--timeout", "1"]) == 2
    out = capsys.readouterr().out
    assert re.search(r"^relu +0 +!$", out, re.MULTILINE)
    assert "memcheck relu: cannot tell: it took more than 1 s and was ended" in out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--op", "no_such_op"], "unknown op 'no_such_op'"),
        (["--implementation", "no_such_library", "--op", "relu"], "importing 'no_such_library' failed"),
        (["--sanitizer", "/no/such/program"], "/no/such/program is no program"),
        (["--log", "/no/such/folder"], "there is no such folder"),
        (["--max-elements", "0", "--corpus", "/no/such/folder"], "no saved case of at most 0 elements"),
    ],
)
def test_what_cannot_be_run_is_one_line(stand_in, arguments, says, capsys):
    assert main(arguments) == 2
    err = capsys.readouterr().err
    assert says in err
    assert err.count("\n") == 1


def test_without_a_sanitizer_or_a_gpu_it_says_so(monkeypatch, capsys, tmp_path):
    program = tmp_path / "compute-sanitizer"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main([]) == 2
    assert capsys.readouterr().err == "error: torch finds no CUDA GPU on this machine\n"
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.setattr(batches, "TOOLKIT", str(tmp_path / "no"))
    assert main([]) == 2
    assert capsys.readouterr().err.startswith("error: compute-sanitizer is not on PATH; it comes with the CUDA toolkit")


@pytest.mark.slow
def test_the_controls_compile(tmp_path, monkeypatch, capsys):
    """For Hopper; that they compute what they should is asked where they run."""
    (tmp_path / "control_library.py").write_text(
        textwrap.dedent("""\
        from conformance.sanitize import kernels

        kernels.DEVICE = "cpu"
        kernels._compare = lambda found, right: None


        def relu(input, inplace=False):
            for run in kernels.RUNS.values():
                run()
        """)
    )
    monkeypatch.syspath_prepend(tmp_path)
    arguments = ["--op", "relu", "--target", "sm_90", "--examples", "1", "--implementation", "control_library"]
    status = compilation.main([*arguments, "--processes", "1"])
    assert (status, "7 passed, 0 failed" in (out := capsys.readouterr().out)) == (0, True), out


def test_each_tool_has_a_planted_defect():
    assert set(controls.PLANTED) == {*reports.TOOLS, reports.CONSAN}
    assert set(kernels.RUNS) == {*controls.RIGHT, *controls.PLANTED.values()}
