"""Write a saved case as a test of an ONNX backend: a model of one operator, its inputs, and the oracle's result.

The folder is one of those that ``onnx.backend.test`` reads: ``model.onnx``, ``test_data_set_0/input_N.pb`` and
``output_N.pb``, and ``data.json`` with the tolerances.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from conformance import cases, corpus, float_formats, forms, runner
from conformance.cases import Case, CaseError
from conformance.implementations import NotProvided, load
from conformance.runner import Prepared
from conformance.spec import Expected

ADAPTER = "conformance.implementations.onnx_runtime"
"""The implementation that knows which node a call is."""


def write(case: Case, out: Path) -> Path:
    """Write the test of a case into a folder of its own in ``out``, and return that.

    Raises CaseError: ONNX has no such call, torch refuses it, or its result cannot be said with one tolerance.
    Raises ImplementationError: onnx or ONNX Runtime is not installed.
    """
    implementation = load(ADAPTER)
    adapter, function = implementation.provider, implementation.function(case.op)
    prepared = runner.prepare(case, "cpu")
    if prepared.refusal is not None:
        raise CaseError(f"torch refuses the call: {prepared.refusal.__name__}")
    node = _node(prepared, adapter, function)
    value, rtol, atol = _answer(prepared)
    result = value.transpose(*node.turned).contiguous() if node.turned else value
    operands = [(adapter.TYPES[one.dtype], one.shape) for one in node.operands]
    model = adapter.model(node.operator, operands, (adapter.TYPES[result.dtype], result.shape), node.attributes)
    model.producer_name, model.doc_string = "conformance", f"{cases.case_id(case)}: {case.note}"
    try:
        adapter.check(model)
    except NotProvided as error:
        raise CaseError(f"ONNX has no such {node.operator}: {error}") from None
    folder = out / f"test_{cases.case_id(case).replace('-', '_')}"
    data = folder / "test_data_set_0"
    data.mkdir(parents=True, exist_ok=True)
    corpus.write(folder / "model.onnx", model.SerializeToString())
    for kind, tensors in (("input", node.operands), ("output", (result,))):
        for place, tensor in enumerate(tensors):
            name = f"x{place}" if kind == "input" else "y"
            corpus.write(data / f"{kind}_{place}.pb", adapter.encoded(tensor, name))
    corpus.write(folder / "data.json", json.dumps({"rtol": rtol, "atol": atol}).encode() + b"\n")
    return folder


def _node(prepared: Prepared, adapter: Any, function: Any) -> Any:
    """Return the one node that the adapter makes of a call."""
    if function is None:
        raise CaseError(f"{ADAPTER} has no {prepared.case.op}")
    try:
        with adapter.recorded() as nodes:
            function(*prepared.given.args, **prepared.given.kwargs)
    except NotProvided as error:
        raise CaseError(f"ONNX has no such call: {error}") from None
    (node,) = nodes
    return node


def _answer(prepared: Prepared) -> tuple[torch.Tensor, float, float]:
    """Return the oracle's result, rounded to the dtype of the result, and the relative and absolute tolerance.

    The relative one is a unit in the last place; the absolute one is so large that every result passes that is within
    the bound, in the arithmetic of the dtype, in which NumPy compares.
    """
    reference = prepared.reference.value
    expected = forms.expected(prepared.spec, prepared.case, prepared.call)
    if not isinstance(reference, torch.Tensor) or not isinstance(expected, Expected):
        raise CaseError("it has several results")
    if expected.instead is not None:
        raise CaseError("its result is random")
    if expected.judged is not None and not expected.judged.all():
        raise CaseError("its result has elements that are not judged: intermediate results leave the range")
    if expected.bound is None:
        return expected.value, 0.0, 0.0
    form, oracle = float_formats.FORMATS[reference.dtype], expected.value.numpy()
    finite = np.isfinite(oracle)
    reach = np.where(finite, expected.bound.numpy() + float_formats.ulp(oracle, reference.dtype) / 2, 0.0)
    if np.any(finite & (np.abs(oracle) + reach > form.max)):
        raise CaseError("its result has elements that may overflow or not")
    rounded = expected.value.to(reference.dtype)
    right = rounded.numpy()
    ends = [torch.from_numpy(np.asarray(oracle + side * reach)).to(reference.dtype).numpy() for side in (-1, 1)]
    relative = 2.0 ** (1 - form.precision)
    distances = [np.abs(end[finite].astype(np.float64) - right[finite]) for end in ends]
    beyond = [distance - relative * np.abs(right[finite].astype(np.float64)) for distance in distances]
    absolute = max(0.0, *(float(one.max(initial=0.0)) for one in beyond))
    while not all(np.isclose(end, right, relative, absolute, equal_nan=True).all() for end in ends):
        absolute = max(2 * absolute, form.subnormal)
    return rounded, relative, absolute
