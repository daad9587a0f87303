"""A running model whose calls are judged: a wrong kernel is named with its layer, and the right model is silent.

One file: all tests are of ``conformance.shadow``, most of them on one model.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import forked_python
import live_model
import pytest
import torch
from torch.nn import functional

import conformance
import ntops.torch
from conformance import __main__ as command_line
from conformance import case_files, cases, corpus, runner
from conformance.cases import CaseError
from conformance.implementations import ImplementationError
from strategies import stored

PLANTS = {
    *((layer, "rms_norm") for layer in (0, 11)),
    *((layer, "layer_norm") for layer in (3, 8)),
    *((layer, "softmax") for layer in (1, 7)),
    *((layer, "scaled_dot_product_attention") for layer in (4, 10)),
    *((layer, "matmul") for layer in (5, 9)),
    *((layer, "gelu") for layer in (0, 8)),
    *((layer, "silu") for layer in (5, 9)),
    *((layer, "relu") for layer in (2, 6)),
    *((3, "sigmoid"), (6, "linear"), (2, "add"), (11, "mul")),
}
"""20 wrong kernels, by layer and op."""


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    """Small calls are faster in one thread, and no test finds the data of another."""
    monkeypatch.setenv(stored.FOLDERS, "")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def model():
    return live_model.Model()


def _found(report):
    return {(one.layer, "linear" if one.op in ("mm", "addmm") else one.op) for one in report.failures}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_right_model_is_silent_and_left_as_it_was(model, tmp_path, dtype):
    model.to(dtype)
    plain, state = model(live_model.words()), torch.get_rng_state()
    with conformance.shadow(model, report=tmp_path) as report:
        judged = model(live_model.words())
    assert not report.failures, str(report)
    assert report.judged == report.calls
    assert {op for _, op in PLANTS} == {*report.judged}
    assert not report.unjudged
    assert torch.equal(plain, judged)
    assert judged.requires_grad
    assert torch.equal(state, torch.get_rng_state())
    assert not any(one._forward_hooks or one._forward_pre_hooks for one in model.modules())
    assert json.loads((tmp_path / "report.json").read_text())["judged"] == report.judged
    assert [*tmp_path.iterdir()] == [tmp_path / "report.json"]


def test_twenty_wrong_kernels_are_named_with_their_layers_and_nothing_else_is(model):
    with live_model.Planted(model, PLANTS), torch.no_grad(), conformance.shadow(model, report=None) as report:
        model(live_model.words())
    assert _found(report) == PLANTS
    assert str(report).count("\nlayers.") == len({(one.module, one.op) for one in report.failures})
    first = report.first
    assert (first.layer, first.op, first.module) == (0, "rms_norm", "layers.0.before")
    assert f"{first.module} (layer 0): call {first.call}, rms_norm by torch's rms_norm: values: " in str(report)
    assert "inputs_unchanged: operand 0, an input, was changed" in str(report)


@pytest.mark.parametrize("plant", [(7, "softmax"), (10, "scaled_dot_product_attention"), (6, "linear")])
def test_one_wrong_kernel(model, plant):
    # The library is taken for torch's functions within the block, and its calls are judged all the same.
    shadow = conformance.shadow(model, report=None, ops=plant[1])
    with torch.no_grad(), shadow as report, live_model.Planted(model, {plant}):
        model(live_model.words())
    assert _found(report) == {plant}
    assert {*report.judged} == {plant[1]}


def test_a_custom_operator(model):
    library = torch.library.Library("shadowed", "DEF")
    library.define("gelu(Tensor input) -> Tensor")
    library.impl("gelu", live_model.gelu, "CPU")
    for layer, operator in {8: torch.ops.shadowed.gelu, 4: torch.ops.shadowed.gelu.default}.items():
        del model.layers[layer].mlp.activation
        model.layers[layer].mlp.activation = operator
    with torch.no_grad(), conformance.shadow(model, report=None, ops=["gelu"]) as report:
        model(live_model.words())
    assert [(one.module, one.called) for one in report.failures] == [
        ("layers.4.mlp", "torch.ops.shadowed.gelu.default"),
        ("layers.8.mlp", "torch.ops.shadowed.gelu"),
    ]


def test_functions_of_a_module_wherever_they_were_imported(model, monkeypatch):
    monkeypatch.setattr(functional, "gelu", live_model.gelu)
    right = functional.gelu
    # What it calls itself is torch's.
    monkeypatch.setattr(live_model, "functional", SimpleNamespace(gelu=torch._C._nn.gelu))
    with torch.no_grad(), conformance.shadow("live_model", model=model, report=None, ops=["gelu"]) as report:
        assert functional.gelu is not right
        functional.gelu(torch.ones(3))
        for layer in (model.layers[0], model.layers[4]):
            layer.mlp(torch.ones(2, live_model.WIDTH))
    assert functional.gelu is right is live_model.gelu
    assert [one.module for one in report.failures] == ["", "layers.0.mlp.activation", "layers.4.mlp.activation"][-3:]


def test_functions_of_an_object():
    found = SimpleNamespace(relu=live_model.relu, tanh=torch.tanh, sigmoid=functional.sigmoid, exp=1)
    with conformance.shadow(found, report=None) as report:
        found.relu(torch.ones(3, 2), inplace=False)
        found.tanh(torch.ones(2))
    assert found.relu is live_model.relu
    assert report.calls == {"relu": 1}
    (failure,) = report.failures
    assert (failure.called, failure.index) == ("SimpleNamespace.relu", (2, 1))


def test_a_saved_case_replays(model, tmp_path, capsys, monkeypatch):
    shadow = conformance.shadow(model, report=tmp_path, ops="softmax")
    with live_model.Planted(model, {(7, "softmax")}), torch.no_grad(), shadow as report:
        for _ in range(2):
            model(live_model.words())
    assert len(report.failures) == 2
    assert "and 1 more of its calls there" in str(report)
    assert [bool(one.case) for one in report.failures] == [True, False]
    (path,) = corpus.files([tmp_path / "cases"])
    assert f"    python -m conformance reproduce {path} --implementation MODULE\n" in str(report)
    reproduce = ["reproduce", str(path), "--device", "cpu", "--implementation"]
    assert command_line.main([*reproduce, "live_model:wrong"]) == 1
    assert f"stored:{case_files.stored_digests(case_files.read(path))[0]}" in capsys.readouterr().out
    case = case_files.read(path)
    assert runner.judge(case, "torch", checks=["values"]).status == "passed"
    (operand,) = cases.materialize(case)[2]
    assert cases.case_id(case) == path.stem
    # As it lay: heads of a transposed product.
    assert operand.shape == (2, live_model.HEADS, 7, 7)
    (data,) = path.parent.glob("*.safetensors")
    monkeypatch.setenv(stored.FOLDERS, "")
    corpus.find_data([tmp_path, path.parent])
    assert os.environ[stored.FOLDERS] == str(path.parent)
    with pytest.raises(CaseError, match="which a JSONL file has not"):
        corpus.add([path], tmp_path / "corpus")
    data.rename(data.with_name("other.safetensors"))
    with pytest.raises(CaseError, match=f"{path}: {data.name}, which holds elements of a tensor, is not beside"):
        case_files.read(path)


def test_the_layout_of_operands_is_saved(tmp_path):
    found = SimpleNamespace(mul=live_model.mul)
    base = torch.arange(48.0).view(4, 12)
    with conformance.shadow(found, report=tmp_path) as report:
        found.mul(base[:, 4:8].T, base[:1, 1].expand(4, 4))
    case = case_files.read(report.first.case)
    first, second = cases.materialize(case)[2]
    assert (first.stride(), first.storage_offset(), second.stride()) == ((1, 12), 4, (0, 0))
    assert torch.equal(first, base[:, 4:8].T)
    assert torch.equal(second, base[:1, 1].expand(4, 4))


@pytest.mark.parametrize(
    ("how", "judged"),
    [({"every": 2}, 2), ({"every": 4}, 1), ({"limit": 3}, 3), ({"seconds": 0.0}, 0), ({"slowdown": 1.0}, 0)],
)
def test_sampling(how, judged):
    found = SimpleNamespace(relu=live_model.relu)
    with conformance.shadow(found, report=None, **how) as report:
        for _ in range(4):
            found.relu(torch.ones(2))
    assert report.calls.total() == 4
    assert report.judged.total() == len(report.failures) == judged


def test_a_call_that_would_take_more_than_is_left_is_not_judged():
    found = SimpleNamespace(relu=lambda input: input)
    with conformance.shadow(found, report=None, slowdown=3) as report:
        time.sleep(0.2)
        found.relu(torch.ones(2))
        found.relu(torch.ones(1).expand(1 << 36))
    assert report.calls.total() == 2
    assert report.judged.total() == 1


class _Calls(torch.nn.Module):
    """One module that makes the calls of a function."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *tensors):
        return self.function(*tensors)


def _shadowed(function, *tensors):
    model = _Calls(function)
    with conformance.shadow(model, report=None) as report:
        model(*tensors)
    return report


@pytest.mark.parametrize(
    ("function", "op"),
    [
        (lambda x: x.add_(x), "add"),
        (lambda x: x.__imul__(2.5), "mul"),
        (lambda x: 2 - x, "sub"),
        (lambda x: 2 / x, "div"),
        (lambda x: 2**x, "pow"),
        (lambda x: torch.rsub(x, 3), "sub"),
        (lambda x: x @ x.T, "matmul"),
        (lambda x: x // 2, None),
        (lambda x: functional.relu(x, inplace=True), "relu"),
        (lambda x: torch.relu_(x), "relu"),
        (lambda x: ~(x > 0), "bitwise_not"),
        (lambda x: (x > 0) & (x < 1), "bitwise_and"),
        (lambda x: x.clip(max=0.5), "clamp"),
        (lambda x: functional.softmax(x, dim=1, dtype=torch.float64), "softmax"),
        (lambda x: torch.ops.aten.gelu(x, approximate="tanh"), "gelu"),
        (lambda x: functional.linear(x[0], x), "linear"),
    ],
)
def test_forms_of_calls(function, op):
    report = _shadowed(function, torch.linspace(-1, 2, 12).view(3, 4) + 0.01)
    assert not report.failures, str(report)
    assert not report.unjudged
    assert (op in report.judged) if op else not report.judged


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (lambda x: functional.dropout(x), "its result is drawn at random"),
        (lambda x: torch.exp(x, out=torch.empty(2)), "it has 'out'"),
        (lambda x: x.to_sparse().neg(), "an argument has no memory of its own, or is not strided"),
        (lambda x: torch.exp(x.to(torch.complex64)), "an argument is complex64"),
        (lambda x: x.long() @ x.long(), "an argument is int64"),
        (lambda x: torch.func.vmap(torch.exp)(x), "the judge failed: "),
    ],
)
def test_calls_that_are_not_judged(function, why):
    report = _shadowed(function, torch.ones(2))
    assert not report.judged
    assert [reason[: len(why)] for _, reason in report.unjudged] == [why]


def test_what_torch_refuses_is_not_judged():
    found = SimpleNamespace(softmax=lambda input, dim: input)
    with conformance.shadow(found, report=None) as report:
        found.softmax(torch.ones(2), 9)
    assert [*report.unjudged] == [("softmax", "torch refuses it: IndexError")]


def test_autocast_is_not_judged():
    with torch.autocast("cpu"):
        report = _shadowed(lambda x: x @ x, torch.ones(2, 2))
    assert [*report.unjudged] == [("matmul", "autocast is on")]


def test_ntops_in_the_place_of_torch(model):
    with torch.no_grad(), conformance.shadow(model.layers[1], report=None) as report, ntops.torch.use():
        model.layers[1](torch.ones(1, 3, live_model.WIDTH))
        replaced = ntops.torch.use.log().replaced
    assert not report.failures, str(report)
    assert report.judged == report.calls == {op: replaced[op] for op in report.calls}


def test_inference_tensors_are_judged(model):
    with torch.inference_mode(), conformance.shadow(model.layers[0], report=None) as report:
        model.layers[0](torch.ones(1, 3, live_model.WIDTH))
    assert not report.failures, str(report)
    assert report.judged == report.calls
    assert not report.unjudged


def test_the_example(capsys):
    example = runpy.run_path(str(Path(__file__).parents[2] / "docs" / "examples" / "shadowed_model.py"))
    (failure,) = example["main"](["--width", "64", "--layers", "3", "--tokens", "5", "--steps", "1", "--repeats", "1"])
    assert (failure.layer, failure.called) == (1, "torch.ops.example.gelu")
    assert capsys.readouterr().out.count(" 0 wrong ") == 4


def test_a_model_of_the_cpu_by_the_semantics_of_the_cpu(tmp_path):
    """torch rounds a number to the half type, and on some CPUs it gives NaN for the gelu of infinity, where it
    has vectors to fill: not on an EPYC with AVX2 alone."""

    class Model(torch.nn.Module):
        def forward(self, x):
            return functional.gelu(x), torch.add(x.half(), 1.001, alpha=3)

    model, x = Model(), torch.full((64,), torch.inf)
    gives_nan = functional.gelu(x).isnan().any()
    for name, wrong in (("cuda", ["gelu"] if gives_nan else []), ("cpu", [])):
        with torch.no_grad(), conformance.shadow(model, report=tmp_path, semantics=name) as report:
            model(x)
            model(torch.linspace(-3, 3, 64))
        assert report.judged.total() == 4
        assert [one.op for one in report.failures] == wrong
        assert bool(report.deviations) is (name == "cuda")

    library = SimpleNamespace(silu=lambda x, inplace=False: functional.silu(x) * 1.01)
    with conformance.shadow(library, report=tmp_path, semantics="cpu") as report:
        library.silu(torch.ones(3))
    assert str(report.first).endswith("--implementation MODULE --semantics cpu")


def test_a_model_that_raises_is_left():
    model = torch.nn.Sequential(_Calls(lambda x: x @ torch.ones(7)))
    with pytest.raises(RuntimeError, match="size"), conformance.shadow(model, report=None) as report:
        model(torch.ones(2))
    assert report.calls.total() == 1
    torch.relu(torch.ones(2))
    assert not model._forward_hooks
    assert report.calls.total() == 1


@pytest.mark.parametrize(
    ("judged", "how", "error", "message"),
    [
        ("live_model", {"ops": "gelo"}, ValueError, "unknown op 'gelo'; did you mean gelu"),
        ("live_model", {"every": 0}, ValueError, "every=0: at least 1"),
        ("live_model", {"keep": 1}, ValueError, "keep=1: calls are saved in the folder of the report"),
        ("live_model", {"keep": -1}, ValueError, "keep=-1: at least 0"),
        ("live_model", {"semantics": "gpu"}, ValueError, "semantics='gpu': cuda or cpu"),
        ("no_such_module", {}, ImplementationError, "importing 'no_such_module' failed"),
        ("json", {}, ImplementationError, "'json' has no function that is called as an op is"),
    ],
)
def test_what_is_refused(judged, how, error, message):
    with pytest.raises(error, match=message):
        conformance.shadow(judged, report=None, **how)


WRONG_SOFTMAX = """
import torch
from torch.nn import functional

def softmax(input, dim, dtype=None):
    # Right for what is drawn, wrong for the rows of this model.
    wide = input.shape == (2, {heads}, 7, 7)
    return functional.softmax(input, dim, dtype=dtype) * (1.001 if wide else 1)

def gelu(input, approximate="none"):
    return functional.gelu(input, approximate=approximate)
"""


def test_a_workload_is_kept_and_judged_by_the_suite(model, tmp_path, monkeypatch):
    with torch.no_grad(), conformance.shadow(model, report=tmp_path, ops=["softmax", "gelu"], keep=1) as report:
        for _ in range(2):
            model(live_model.words())
    assert not report.failures
    kept = corpus.files([tmp_path / "workload"])
    # Each module's first call; the second has the same operands.
    assert report.kept == len(kept) == sum(report.judged.values()) // 2
    assert f"{report.kept} calls were saved as a workload" in str(report)
    assert {case_files.read(path).op for path in kept} == {"softmax", "gelu"}
    before = {path: path.read_bytes() for path in kept}
    library = tmp_path / "library.py"
    library.write_text(WRONG_SOFTMAX.format(heads=live_model.HEADS))
    metrics = tmp_path / "metrics.json"
    (tmp_path / "own").mkdir()
    command = [sys.executable, "-m", "conformance", "run", "--implementation", str(library), "--device", "cpu"]
    command += ["--workload", str(tmp_path / "workload"), "--op", "softmax", "--op", "gelu", "--dtype", "float32"]
    command += ["--corpus", "own", "--max-examples", "1", "--check", "values", "-k", "test_saved", "-n", "0"]
    command += ["-p", "no:cacheprovider", "--metrics", str(metrics)]
    monkeypatch.delenv(stored.FOLDERS)
    made = forked_python.run(command, cwd=tmp_path, timeout=280)
    assert made.returncode == 1, made.stdout + made.stderr
    softmaxes = [path.stem for path in kept if path.stem.startswith("softmax")]
    records = {record["op"]: record for record in json.loads(metrics.read_bytes())["records"]}
    assert sorted(one["id"] for one in records["softmax"]["failures"]) == sorted(softmaxes)
    assert (records["gelu"]["passed"], records["gelu"]["failed"]) == (len(kept) - len(softmaxes), 0)
    # They stay as they are; a script goes where failing cases go.
    assert {path: path.read_bytes() for path in kept} == before
    assert {path.suffix for path in (tmp_path / "own").iterdir()} == {".py"}


@pytest.mark.parametrize(("folder", "message"), [("none", "not a folder"), ("empty", "no saved case is there")])
def test_a_workload_without_cases_is_a_usage_error(folder, message, tmp_path):
    (tmp_path / "empty").mkdir()
    command = [sys.executable, "-m", "conformance", "run", "--workload", folder, "-p", "no:cacheprovider"]
    made = forked_python.run(command, cwd=tmp_path, timeout=120)
    assert made.returncode == pytest.ExitCode.USAGE_ERROR
    assert f"--workload {folder}: {message}" in made.stderr
