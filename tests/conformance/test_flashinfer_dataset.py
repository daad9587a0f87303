"""Saved cases become a data set of FlashInfer Trace, and workloads of one become cases that the suite replays."""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import forked_python
import live_model
import pytest
import torch
from safetensors.torch import load_file

import conformance
from conformance import __main__ as command_line
from conformance import case_files, cases, corpus, flashinfer_dataset, flashinfer_trace, runner
from conformance import spec as specs
from conformance.cases import Case, DType, Ints, NonFinite, Same, View
from conformance.implementations import Implementation
from strategies import stored
from strategies.specs import Layout, TensorSpec

X, Y = TensorSpec((3, 4), "float32"), TensorSpec((3, 4), "float32", seed=1)
ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _data(monkeypatch):
    monkeypatch.setenv(stored.FOLDERS, "")


@pytest.fixture
def command(capsys):
    """Run a command of the line; return its status, and what it printed and told of errors."""

    def run(*arguments):
        status = command_line.main([*map(str, arguments)])
        return status, *capsys.readouterr()

    return run


def written(tmp_path, *found):
    """The data set of some cases, and the lines for people."""
    told = flashinfer_dataset.write(
        [(Path(f"{place}.json"), one) for place, one in enumerate(found)], tmp_path / "data"
    )
    return tmp_path / "data", told


def definitions(root):
    return {path.stem: json.loads(path.read_bytes()) for path in sorted(root.glob("definitions/*/*.json"))}


def workloads(root, name):
    (path,) = root.glob(f"workloads/*/{name}.jsonl")
    return [json.loads(line) for line in path.read_text().splitlines()]


def shapes(about, axes, kind):
    sizes = {name: axis.get("value", axes.get(name)) for name, axis in about["axes"].items()}
    return {
        name: None if one["shape"] is None else [sizes[axis] for axis in one["shape"]]
        for name, one in about[kind].items()
    }


def is_valid(root):
    """The rules of flashinfer_bench.data and its ``gen_inputs``: names, axes, dtypes, references, workloads."""
    for name, about in definitions(root).items():
        assert (root / "definitions" / about["op_type"] / f"{name}.json").is_file()
        assert about["name"] == name
        assert name.isidentifier()
        assert not about["inputs"].keys() & about["outputs"].keys()
        for axis in about["axes"].values():
            assert axis["type"] in ("const", "var")
            assert axis["type"] == "var" or axis["value"] > 0
        used = [one["shape"] or () for kind in ("inputs", "outputs") for one in about[kind].values()]
        assert {axis for shape in used for axis in shape} == {*about["axes"]}
        variable = {axis for axis, one in about["axes"].items() if one["type"] == "var"}
        assert variable <= {axis for one in about["inputs"].values() for axis in one["shape"] or ()}
        tree = ast.parse(about["reference"])
        assert [node.name for node in tree.body if isinstance(node, ast.FunctionDef)] == ["run"]
        assert [alias.name for node in tree.body if isinstance(node, ast.Import) for alias in node.names] == ["torch"]
        names: dict = {}
        exec(about["reference"], names)
        for line in workloads(root, name):
            assert (line["definition"], line["solution"], line["evaluation"]) == (name, None, None)
            work = line["workload"]
            assert work["axes"].keys() == variable
            assert work["uuid"]
            assert work["inputs"].keys() == about["inputs"].keys()
            wanted, args = shapes(about, work["axes"], "inputs"), []
            for of, given in work["inputs"].items():
                if given["type"] == "scalar":
                    assert wanted[of] is None
                    assert type(given["value"]) in (int, float)
                    args.append(given["value"])
                    continue
                one = load_file(root / given["path"])[given["tensor_key"]]
                assert given["path"].startswith("blob/workloads/")
                assert one.is_contiguous()
                assert (list(one.shape), str(one.dtype)) == (wanted[of], f"torch.{about['inputs'][of]['dtype']}")
                args.append(one)
            result = names["run"](*args)
            for one, (of, shape) in zip(
                result if isinstance(result, tuple) else (result,),
                shapes(about, work["axes"], "outputs").items(),
                strict=True,
            ):
                assert (list(one.shape), str(one.dtype)) == (shape, f"torch.{about['outputs'][of]['dtype']}")
    return True


def read(path):
    """A case whose op may be known to nobody."""
    return cases.parsed(path.read_bytes(), Case, "a case")


def judged(definition, path, function):
    """The verdict on a saved case of the op of a definition."""
    spec = flashinfer_trace.operator(definition)
    with specs.registered(spec):
        own = Implementation("own", SimpleNamespace(**{spec.name: function}))
        return runner.judge(case_files.read(path), own, "cpu", ["values", "inputs_unchanged"])


# --- writing -----------------------------------------------------------------------------------------------------


def test_calls_that_differ_in_sizes_elements_and_floats_are_one_definition(tmp_path):
    found = [
        Case(
            op="rms_norm",
            args=(TensorSpec((rows, 16), "bfloat16", seed=rows), (16,), TensorSpec((16,), "bfloat16")),
            kwargs={"eps": eps},
        )
        for rows, eps in ((3, 1e-5), (5, 1e-3))
    ]
    root, told = written(tmp_path, *found)
    assert is_valid(root)
    ((name, about),) = definitions(root).items()
    assert name.startswith("rms_norm_bfloat16_2d_1d_")
    assert about["op_type"] == "rms_norm"
    assert told == [f"wrote {root / 'definitions/rms_norm' / name}.json: 2 workloads"]
    assert {axis: one.get("value") for axis, one in about["axes"].items()} == {"input_0": None, "d16": 16}
    assert about["inputs"]["input"]["shape"] == about["outputs"]["output"]["shape"] == ["input_0", "d16"]
    assert (about["inputs"]["eps"]["shape"], about["inputs"]["eps"]["dtype"]) == (None, "float32")
    assert "torch.nn.functional.rms_norm(input, (16,), weight, eps=eps)" in about["reference"]
    for case, line in zip(found, workloads(root, name), strict=True):
        assert line["workload"]["uuid"] == cases.case_id(case)
        assert line["workload"]["inputs"]["eps"] == {"type": "scalar", "value": case.kwargs["eps"]}
        elements = load_file(root / line["workload"]["inputs"]["input"]["path"])["input"]
        assert torch.equal(elements, cases.materialize(case)[2][0])


def test_other_arguments_and_dtypes_are_other_definitions(tmp_path):
    half = TensorSpec((3, 4), "float16")
    found = [
        Case(op="sum", args=(X, 0)),
        Case(op="sum", args=(X, 1)),
        Case(op="sum", args=(X, Ints((0, 1))), kwargs={"keepdim": True, "dtype": DType("float16")}),
        Case(op="sum", args=(half, 1)),
        Case(op="mul", args=(X, Same(0))),
        Case(op="mul", args=(X, NonFinite("-inf"))),
        Case(op="matmul", args=(X, Same(0, turned=True))),
    ]
    root, _ = written(tmp_path, *found)
    assert is_valid(root)
    calls = [about["reference"].rpartition("return ")[2].strip() for about in definitions(root).values()]
    assert sorted(calls) == [
        "torch.matmul(input, input.transpose(-2, -1))",
        "torch.mul(input, float('-inf'))",
        "torch.mul(input, input)",
        "torch.sum(input, [0, 1], dtype=torch.float16, keepdim=True)",
        *["torch.sum(input, dim)"] * 3,
    ]
    # The names stay the same, whatever else is written.
    (tmp_path / "again").mkdir()
    again, _ = written(tmp_path / "again", found[3])
    assert {*definitions(again)} < {*definitions(root)}


def test_broadcasting_that_differs_splits_a_definition(tmp_path):
    pairs = (((3, 1), (1, 5)), ((1, 4), (7, 1)), ((3, 1), (1, 5)))
    found = [
        Case(op="add", args=tuple(TensorSpec(shape, "float32", seed=seed) for shape in pair))
        for seed, pair in enumerate(pairs)
    ]
    root, _ = written(tmp_path, *found)
    assert is_valid(root)
    assert sorted(len(workloads(root, name)) for name in definitions(root)) == [1, 2]


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        (Case(op="abs", args=(X,), kwargs={"out": Y}), "the call writes an operand"),
        (Case(op="relu", args=(X,), kwargs={"inplace": True}), "the call writes an operand"),
        (Case(op="abs", args=(TensorSpec((2,), "float64"),)), "no dtype float64"),
        (Case(op="abs", args=(TensorSpec((2,), "uint8"),)), "no dtype uint8"),
        (Case(op="sum", args=(X, 0), kwargs={"dtype": DType("float64")}), "no dtype float64, which its result has"),
        (Case(op="abs", args=(TensorSpec((2, 0), "float32"),)), "no sizes of 0"),
        (Case(op="dropout", args=(X,)), "drawn at random"),
        (Case(op="rotary_position_embedding", args=(X, Y, Y)), "torch has no function rotary_position_embedding"),
        (Case(op="add", args=(X, View(0, 0, 0, 3))), "share memory"),
        (Case(op="mul", args=(X, 2.0), form="NumPy scalars"), "'NumPy scalars'"),
        (Case(op="mm", args=(X, X)), "torch refuses torch.mm(input, mat2): RuntimeError"),
    ],
    ids=lambda one: cases.case_id(one) if isinstance(one, Case) else "",
)
def test_what_the_format_cannot_say_is_left_out_and_named(case, reason, tmp_path, command):
    saved = tmp_path / "saved"
    path = corpus.keep(case, "", saved)
    status, out, told = command("trace", "write", path, "--out", tmp_path / "data")
    assert (status, out, told.count("\n")) == (command_line.BAD_INPUT, "", 1)
    assert str(path) in told
    assert reason in told
    assert [*tmp_path.iterdir()] == [saved]
    # Beside another it is left out, and the other is written.
    corpus.keep(Case(op="cos", args=(X,)), "", saved)
    status, out, _ = command("trace", "write", saved, "--out", tmp_path / "data")
    left_out, wrote = out.splitlines()
    assert status == command_line.PASSED
    assert wrote.endswith(": 1 workload")
    assert left_out.startswith(f"left out {path}: ")
    assert reason in left_out


def test_strides_are_lost_and_a_folder_that_is_there_stays(tmp_path, command):
    path = corpus.keep(Case(op="cos", args=(TensorSpec((3, 4), "float32", layout=Layout(order=(1, 0))),)), "", tmp_path)
    status, out, _ = command("trace", "write", path, path, "--out", tmp_path / "data")
    assert status == command_line.PASSED
    assert f"the format has no strides: those of 1 case are lost, such as {path.stem}" in out
    assert is_valid(tmp_path / "data")
    before = sorted(tmp_path.rglob("*"))
    assert command("trace", "write", path, "--out", tmp_path / "data")[0] == command_line.BAD_INPUT
    assert sorted(tmp_path.rglob("*")) == before


def test_the_saved_cases_of_the_package_are_valid(tmp_path, command):
    status, out, _ = command(
        "trace", "write", corpus.SHIPPED / "mm.jsonl", "abs-a40dab400a", "--out", tmp_path / "data"
    )
    assert status == command_line.PASSED
    assert out.count("wrote") == len(definitions(tmp_path / "data")) > 2
    assert is_valid(tmp_path / "data")


# --- there and back ----------------------------------------------------------------------------------------------


@pytest.fixture
def dataset(tmp_path, command):
    """The data set of the calls of a model, and its definitions by op."""
    model = live_model.Model(2)
    with torch.no_grad(), conformance.shadow(model, report=tmp_path / "shadow", keep=1) as report:
        model(live_model.words())
    status, out, _ = command("trace", "write", tmp_path / "shadow" / "workload", "--out", tmp_path / "data")
    assert status == command_line.PASSED
    assert "left out" not in out
    assert not report.failures
    assert is_valid(tmp_path / "data")
    lines = [len(workloads(tmp_path / "data", name)) for name in definitions(tmp_path / "data")]
    assert sum(lines) == len(corpus.files([tmp_path / "shadow" / "workload"]))
    return {path.parent.name: path for path in sorted((tmp_path / "data").glob("definitions/*/*.json"))}


def test_calls_of_a_model_come_back_and_a_wrong_function_fails(dataset, tmp_path, command):
    assert {"addmm", "gelu", "rms_norm", "scaled_dot_product_attention", "softmax"} <= {*dataset}
    for op, path in dataset.items():
        folder = tmp_path / op
        status, out, told = command("trace", "read", path, "--out", folder)
        assert (status, told) == (command_line.PASSED, "")
        right = flashinfer_trace.operator(path).reference
        before = corpus.files([tmp_path / "shadow" / "workload"])
        uuids = {one.stem for one in before if case_files.read(one).op == op}
        found = corpus.files([folder])
        assert out == f"wrote {len(found)} cases of {len(uuids)} workloads of {path.stem} to {folder}\n"
        assert {read(one).note.split()[1] for one in found} == uuids
        for one in found:
            assert judged(path, one, right).status == "passed"
            wrong = judged(path, one, lambda *args, right=right: right(*args) * 1.001)
            assert (wrong.status, wrong.failure.check) == ("failed", "values")


@pytest.mark.slow
def test_the_suite_replays_a_workload_that_was_read(dataset, tmp_path, command):
    gelu, softmax = dataset["gelu"], dataset["softmax"]
    for path in (gelu, softmax):
        command("trace", "read", path, "--out", tmp_path / path.parent.name)
    library = tmp_path / "library.py"
    library.write_text(
        f"import torch\n\n\ndef {gelu.stem}(input):\n    return torch.nn.functional.gelu(input)\n\n\n"
        f"def {softmax.stem}(input, dim):\n    return torch.softmax(input * 1.01, dim)\n"
    )
    metrics = tmp_path / "metrics.json"
    (tmp_path / "own").mkdir()
    line = [sys.executable, "-m", "conformance", "run", "--implementation", str(library), "--device", "cpu"]
    for path in (gelu, softmax):
        line += ["--specs", str(path), "--workload", str(tmp_path / path.parent.name), "--op", path.stem]
    line += ["--corpus", "own", "-k", "test_saved", "-n", "0", "-p", "no:cacheprovider", "--metrics", str(metrics)]
    made = forked_python.run(line, cwd=tmp_path, timeout=280)
    assert made.returncode == 1, made.stdout + made.stderr
    records = {record["op"]: record for record in json.loads(metrics.read_bytes())["records"]}
    assert {op: (one["passed"], one["failed"]) for op, one in records.items()} == {
        gelu.stem: (1, 0),
        softmax.stem: (0, 1),
    }
