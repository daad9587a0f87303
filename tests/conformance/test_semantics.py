"""``--semantics cpu``: torch's CPU is taken as it is, and a library that answers as it does is right."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import forked_python
import pytest
import torch
from op_tools import call

from conformance import __main__ as command_line
from conformance import cpu_cuda_differences, cuda_refusals, deviations, metrics, runner, semantics
from conformance.cases import Case, encode
from conformance.checks import DEVIATION
from conformance.compare import compare
from conformance.implementations import Implementation
from conformance.spec import registry
from strategies.specs import Special, TensorSpec

LIKE_CPU = """
import torch

def gelu(input, approximate="none"):
    # As torch's CPU has it wherever it has vectors to fill: 1 + erf comes before the half, and inf gives NaN.
    found = torch.nn.functional.gelu(input, approximate=approximate)
    return torch.where(input == torch.inf, torch.nan, found) if approximate == "none" else found

abs, mm = torch.abs, torch.mm
"""
GELU_OF_INF = Case(op="gelu", args=(TensorSpec((40,), "float32", specials=(Special(0, "inf"),)),))
DIFFERENCES = (*cpu_cuda_differences.STAND_INS, *cuda_refusals.REFUSALS)
BY_MEANING = (
    "half sums and products with scalars on the CPU",
    "half products with a tensor of one element on the CPU",
    "gelu of large numbers on the CPU",
    "half means of other dtypes on the CPU",
    "beta of half types in CPU products of nothing",
    "the scale of half dropout on the CPU",
)
"""Deviations of torch's CPU that its semantics are."""


@pytest.fixture
def like_cpu(tmp_path):
    path = tmp_path / "like_cpu.py"
    path.write_text(LIKE_CPU)
    return str(path)


def save(folder: Path, case: Case) -> str:
    path = folder / "case.json"
    path.write_bytes(encode(case))
    return str(path)


@pytest.mark.parametrize("difference", DIFFERENCES, ids=lambda one: one.name)
def test_torch_needs_none_of_the_differences(difference):
    with semantics.within(semantics.CPU):
        assert cpu_cuda_differences.find(difference.case.op, call(difference.case)) in (None, products_for_speed())
        assert cuda_refusals.find(difference.case.op, call(difference.case)) is None
        verdict = runner.judge(difference.case, "torch", "cpu", ["values", "errors", "metadata", "out_argument"])
    assert verdict.status == "passed", verdict.findings


def products_for_speed():
    return next(one for one in cpu_cuda_differences.STAND_INS if one.check == cpu_cuda_differences.SPEED)


@pytest.mark.parametrize("name", BY_MEANING)
def test_what_torchs_cpu_means_is_right(name):
    case = next(one.case for one in deviations.DEVIATIONS if one.name == name)
    checks = ["values", "special_values", "layouts"]
    with semantics.within(semantics.CPU):
        assert runner.judge(case, "torch", "cpu", checks).status == "passed"
    if not name.startswith("gelu"):
        # What gelu gives for inf depends on the CPU.
        assert runner.judge(case, "torch", "cpu", checks).status == DEVIATION


@pytest.mark.parametrize("name", ["softmax across rows on the CPU", "large elements in uneven rows of CPU layer_norm"])
def test_who_calls_torch_is_excused_as_torch_is(name):
    case = next(one.case for one in deviations.DEVIATIONS if one.name == name)
    function = getattr(torch.nn.functional, case.op)

    def own(*args, **kwargs):
        return function(*args, **kwargs)

    def other(*args, **kwargs):
        return function(*args, **kwargs) * 1.5

    provided = [Implementation("own", SimpleNamespace(**{case.op: one}), {}) for one in (own, other)]
    assert [runner.judge(case, one, "cpu", ["values"]).status for one in provided] == ["failed", "failed"]
    with semantics.within(semantics.CPU):
        verdicts = [runner.judge(case, one, "cpu", ["values"]) for one in provided]
    assert [one.status for one in verdicts] == [DEVIATION, "failed"]
    assert [one.message for one in verdicts[0].findings] == [name]


def test_what_torch_lacks_is_judged():
    case = Case(op="fused_gated_mlp", args=(TensorSpec((3, 4), "float32"), *[TensorSpec((5, 4), "float32")] * 2))
    wrong = Implementation("wrong", SimpleNamespace(fused_gated_mlp=lambda *args, **kwargs: torch.zeros(3, 5)), {})
    with semantics.within(semantics.CPU):
        assert runner.judge(case, wrong, "cpu", ["values"]).failure.check == "values"


def test_other_results_are_wrong_all_the_same():
    given = call(GELU_OF_INF)
    right = torch.nn.functional.gelu(given.args[0].double()).float()
    with semantics.within(semantics.CPU):
        expected = registry()["gelu"].expected(given)
    for first, passes in ((torch.inf, True), (torch.nan, True), (-torch.inf, False), (0.0, False)):
        right[0] = first
        assert compare(right, expected).passed is passes
    right[0], right[1] = torch.nan, torch.nan
    assert not compare(right, expected).passed


def test_reproduce_fails_without_it_and_passes_with_it(like_cpu, tmp_path, capsys):
    for case in (
        GELU_OF_INF,
        Case(op="mm", args=(TensorSpec((3, 5), "int32"), TensorSpec((5, 2), "int32"))),
        Case(op="abs", args=(TensorSpec((5,), "bool"),)),
    ):
        arguments = ["reproduce", save(tmp_path, case), "--implementation", like_cpu, "--device", "cpu"]
        assert command_line.main(arguments) == command_line.FAILED
        assert command_line.main([*arguments, "--semantics", "cpu"]) == command_line.PASSED
        assert "--semantics cpu" in capsys.readouterr().out
        assert semantics.chosen() == semantics.CUDA


def test_versus_has_no_dispute_over_what_torchs_cpu_means(like_cpu, tmp_path):
    common = [
        "versus",
        "torch",
        like_cpu,
        "--op",
        "abs",
        "--dtype",
        "bool",
        "--device",
        "cpu",
        "--folder",
        str(tmp_path),
    ]
    assert command_line.main(common) == command_line.FAILED
    file = tmp_path / "report.json"
    assert command_line.main([*common, "--semantics", "cpu", "--json", str(file)]) == command_line.PASSED
    assert json.loads(file.read_bytes())["semantics"] == "cpu"


@pytest.mark.slow
def test_the_suite_its_children_and_its_metrics(like_cpu, tmp_path):
    (tmp_path / "saved").mkdir()
    save(tmp_path / "saved", GELU_OF_INF)
    command = [sys.executable, "-m", "conformance", "run", "--implementation", like_cpu, "--device", "cpu"]
    command += ["--op", "gelu", "--op", "abs", "--dtype", "float32", "--dtype", "bool", "--corpus", "saved"]
    command += ["--max-examples", "4", "--check", "values", "--check", "errors", "-n", "0", "-p", "no:cacheprovider"]
    for name, status in (("cuda", 1), ("cpu", 0)):
        told = [*command, "--semantics", name, "--metrics", f"{name}.json"]
        made = forked_python.run(told, cwd=tmp_path, timeout=280)
        assert made.returncode == status, made.stdout
        found = json.loads((tmp_path / f"{name}.json").read_bytes())
        assert found["semantics"] == name
        assert not found["complaints"]


def test_a_script_judges_by_the_same_semantics(tmp_path):
    case = Case(op="gelu", args=(TensorSpec((40,), "float32", values="positive", specials=(Special(0, "inf"),)),))
    wrong = tmp_path / "wrong.py"
    # NaN is right at infinity, and nowhere else.
    wrong.write_text(LIKE_CPU.replace("input == torch.inf", "input > 0"))
    right = tmp_path / "right.py"
    right.write_text(LIKE_CPU)
    (tmp_path / "saved").mkdir()
    save(tmp_path / "saved", case)
    command = [sys.executable, "-m", "conformance", "run", "--implementation", str(wrong), "--device", "cpu"]
    command += ["--op", "gelu", "--dtype", "float32", "--corpus", "saved", "--max-examples", "1", "-n", "0"]
    command += ["--check", "values", "--semantics", "cpu", "-p", "no:cacheprovider"]
    made = forked_python.run(command, cwd=tmp_path, timeout=280)
    assert made.returncode == 1
    assert "reproduce saved/case.json" in made.stdout
    assert "--semantics cpu" in made.stdout
    script = next((tmp_path / "saved").glob("repro_*.py"))
    for name, status in ((str(wrong), 1), (str(right), 0)):
        made = subprocess.run([sys.executable, script, name], cwd=tmp_path, capture_output=True, text=True, timeout=120)
        assert made.returncode == status, made.stdout
        assert "by the semantics of torch's CPU" in made.stdout


def test_a_gpu_has_the_semantics_of_cuda():
    with pytest.raises(runner.DeviceError, match="--device cpu"):
        runner.choose_semantics(semantics.CPU, torch.device("cuda", 0))
    assert semantics.chosen() == semantics.CUDA


def test_calls_that_the_cpu_alone_refuses_are_no_complaint():
    case = Case(op="clamp", args=(TensorSpec((5,), "float16"), 1e6))
    for name, counted in ((semantics.CUDA, 1), (semantics.CPU, 0)):
        with semantics.within(name):
            tally = metrics.Tally()
            verdict = runner.Verdict("clamp-0000000000", "clamp", "passed", refused=True)
            tally.add(case, verdict, legal=True)
        refused = tally.sorted()[0].legal_refused
        assert (refused.count if refused else 0) == counted


def test_an_unknown_name_is_bad_input(tmp_path, capsys):
    with pytest.raises(SystemExit):
        command_line.main(["reproduce", save(tmp_path, GELU_OF_INF), "--semantics", "gpu"])
    assert "cuda" in capsys.readouterr().err
