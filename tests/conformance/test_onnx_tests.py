"""``conformance export-onnx``: a saved case as a test that ONNX's own runner reads, and that a right backend passes."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest
import torch
from test_adapters import CALLS, LACKS, X

from conformance import __main__ as command_line
from conformance import cases, corpus, runner
from conformance.cases import Case
from strategies import stored, tensors
from strategies.specs import Special, TensorSpec

EXPORTED = [case for case in CALLS if case.op not in LACKS["onnx_runtime"]]


def exported(case, tmp_path, capsys):
    path = corpus.keep(case, "", tmp_path / "saved")
    status = command_line.main(["export-onnx", str(path), str(tmp_path / "exported")])
    out, told = capsys.readouterr()
    folder = tmp_path / "exported" / f"test_{cases.case_id(case).replace('-', '_')}"
    assert out == (f"wrote {folder}\n" if status == command_line.PASSED else "")
    return status, folder, told


def arrays(folder, kind):
    onnx = pytest.importorskip("onnx")
    paths = sorted((folder / "test_data_set_0").glob(f"{kind}_*.pb"))
    assert [path.name for path in paths] == [f"{kind}_{place}.pb" for place in range(len(paths))]
    return [onnx.numpy_helper.to_array(onnx.load_tensor(path)) for path in paths]


@pytest.mark.parametrize("case", EXPORTED, ids=cases.case_id)
def test_onnxs_own_runner_reads_it_and_a_right_backend_passes(case, tmp_path, capsys):
    onnxruntime = pytest.importorskip("onnxruntime")
    from onnx.backend.test.loader import load_model_tests
    from onnx.backend.test.runner import Runner

    status, folder, told = exported(case, tmp_path, capsys)
    assert status == command_line.PASSED, told
    (test,) = load_model_tests(str(tmp_path), kind="exported")
    assert (test.name, test.model_dir) == (folder.name, str(folder))
    session = onnxruntime.InferenceSession(str(folder / "model.onnx"), providers=["CPUExecutionProvider"])
    inputs, outputs = arrays(folder, "input"), arrays(folder, "output")
    names = [one.name for one in session.get_inputs()]
    assert [list(one.shape) for one in session.get_inputs()] == [list(one.shape) for one in inputs]
    found = session.run(None, dict(zip(names, inputs, strict=True)))
    Runner.assert_similar_outputs(outputs, found, test.rtol, test.atol)
    (result,) = found
    if not result.size:
        return
    wrong = ~result if result.dtype == bool else result + 1 if result.dtype.kind == "i" else result * 1.01 + 0.01
    with pytest.raises(AssertionError):
        Runner.assert_similar_outputs(outputs, [wrong.astype(result.dtype)], test.rtol, test.atol)


HALF = TensorSpec((3, 40), "float16", seed=5)


@pytest.mark.parametrize(
    "case",
    [
        Case(op="gelu", args=(HALF,)),
        Case(op="softmax", args=(HALF, -1)),
        Case(op="mm", args=(HALF, TensorSpec((40, 7), "float16", seed=6))),
        Case(op="exp", args=(TensorSpec((50,), "float32", specials=(Special(0, "nan"), Special(1, "-inf"))),)),
        Case(op="layer_norm", args=(TensorSpec((3, 4), "float32", values="large_mean"), (4,))),
        Case(op="sin", args=(TensorSpec((9,), "float64"),)),
    ],
    ids=lambda case: case.op,
)
def test_the_tolerances_are_those_of_the_bound(case, tmp_path, capsys):
    """torch, rounded to float64 and off by less than the bound, passes; four units in the last place off fail."""
    pytest.importorskip("onnxruntime")
    status, folder, told = exported(case, tmp_path, capsys)
    assert status == command_line.PASSED, told
    limits = json.loads((folder / "data.json").read_bytes())
    (right,) = arrays(folder, "output")
    by_torch = runner.prepare(case, "cpu").reference.value.numpy()
    np.testing.assert_allclose(by_torch, right, **limits)
    largest = np.nanargmax(np.abs(np.where(np.isfinite(right), right, 0)))
    off = right.reshape(-1).copy()
    bound = limits["atol"] + limits["rtol"] * abs(float(off[largest]))
    off[largest] += max(4 * np.spacing(off[largest]), 1.5 * bound)
    with pytest.raises(AssertionError):
        np.testing.assert_allclose(off.reshape(right.shape), right, **limits)
    # Of elementwise functions it is a few units in the last place.
    if case.op in ("exp", "gelu", "sin"):
        assert bound <= 4 * np.spacing(np.abs(off[largest]))


def test_heads_and_positions_of_a_rotary_embedding_change_places(tmp_path, capsys):
    pytest.importorskip("onnxruntime")
    table = TensorSpec((3, 2), "float32")
    case = Case(op="rotary_position_embedding", args=(TensorSpec((2, 3, 5, 4), "float32"), table, table))
    status, folder, told = exported(case, tmp_path, capsys)
    assert status == command_line.PASSED, told
    assert [one.shape for one in arrays(folder, "input")] == [(2, 5, 3, 4), (2, 3, 2), (2, 3, 2)]
    assert [one.shape for one in arrays(folder, "output")] == [(2, 5, 3, 4)]


def test_a_case_with_data_is_exported(tmp_path, capsys, monkeypatch):
    pytest.importorskip("onnxruntime")
    pytest.importorskip("safetensors")
    monkeypatch.setenv(stored.FOLDERS, "")
    data = torch.arange(12.0).view(3, 4)
    spec = tensors.keep(data, data.stride(), 0, tmp_path / "saved")
    stored.look_in(tmp_path / "saved")
    status, folder, told = exported(Case(op="relu", args=(spec,)), tmp_path, capsys)
    assert status == command_line.PASSED, told
    assert np.array_equal(arrays(folder, "input")[0], data.numpy())


@pytest.mark.parametrize(
    ("case", "message"),
    [
        (Case(op="clamp", args=(X, 0.0)), "has no clamp"),
        (Case(op="add", args=(X, X), kwargs={"alpha": 2}), "ONNX has no such call: ONNX has no alpha"),
        (Case(op="add", args=(X, "x")), "torch refuses the call: TypeError"),
        (Case(op="gelu", args=(TensorSpec((3,), "bfloat16"),)), "next to nothing of torch.bfloat16"),
        (Case(op="mm", args=(TensorSpec((3, 4), "float32", values="near_overflow"),) * 2), "torch refuses the call"),
        (
            Case(op="mm", args=(TensorSpec((4, 4), "float32", values="near_overflow"), cases.Same(0))),
            "elements that are not judged",
        ),
    ],
    ids=str,
)
def test_what_cannot_be_exported_is_bad_input(case, message, tmp_path, capsys):
    pytest.importorskip("onnxruntime")
    status, folder, told = exported(case, tmp_path, capsys)
    assert status == command_line.BAD_INPUT
    assert message in told
    assert not folder.exists()


def test_without_onnx_the_extra_is_told(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    monkeypatch.delitem(sys.modules, "conformance.implementations.onnx_runtime", raising=False)
    status, _, told = exported(Case(op="relu", args=(X,)), tmp_path, capsys)
    assert status == command_line.BAD_INPUT
    assert "pip install 'ntops[onnxruntime]'" in told
