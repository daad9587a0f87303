"""``torch.nn.functional.layer_norm``: (input - mean) / sqrt(variance + eps) * weight + bias over the last dims."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import mpmath
import numpy as np
import torch
from hypothesis import strategies as st

from conformance import bounds, cuda_refusals, oracle
from conformance.cases import Case
from conformance.ops import _elementwise as elementwise
from conformance.ops import _expectations as expectations
from conformance.ops import _gradients_rows as gradients
from conformance.ops import _large, _models, _scenes
from conformance.ops import _norms as norms
from conformance.spec import Call, Expected, OpSpec
from strategies import dtypes as dtype_names
from strategies import models, tensors


@st.composite
def cases(draw: st.DrawFn, dtypes: Sequence[str]) -> Case:
    input, shape = draw(norms.inputs([name for name in dtypes if name in norms.DTYPES]))
    affine = norms.parameters(draw, shape, ("weight", "bias"), input.dtype)
    eps = draw(st.sampled_from((None, None, None, *norms.EPSILONS)))
    return elementwise.case("layer_norm", (input, shape), eps=eps, **affine)


@st.composite
def refused(draw: st.DrawFn, dtypes: Sequence[str]) -> Case:
    dtype = draw(dtype_names.dtypes([name for name in dtypes if name in norms.DTYPES]))
    match draw(st.sampled_from(("shapes", "shapes", "integer", "weight dtype", "bias shape"))):
        case "integer":
            return draw(norms.integers("layer_norm"))
        case "weight dtype":
            # The CPU takes float32 parameters of half inputs; CUDA does not.
            other = draw(dtype_names.dtypes([name for name in norms.DTYPES if name != dtype]))
            affine = {"weight": draw(tensors.tensors((5,), other)), "bias": draw(tensors.tensors((5,), other))}
            left_out = draw(st.sampled_from(("neither", "weight", "bias")))
            affine.pop(left_out, None)
            return Case(op="layer_norm", args=(draw(tensors.tensors((3, 5), dtype)), (5,)), kwargs=affine)
        case "bias shape":
            bias = draw(tensors.tensors(draw(st.sampled_from(((3,), (1,), (3, 5)))), dtype))
            return Case(op="layer_norm", args=(draw(tensors.tensors((3, 5), dtype)), (5,)), kwargs={"bias": bias})
    return draw(norms.refused_shapes("layer_norm", dtype))


def expected(call: Call) -> Expected:
    input, shape, weight, bias, eps = _arguments(*call.args, **call.kwargs)
    if not input.numel():
        return expectations.exactly(call, input)
    dtype, x = input.dtype, norms.rows(input, shape)
    w, b = norms.parameter(weight, 1.0, x.shape[1]), norms.parameter(bias, 0.0, x.shape[1])
    terms, low = max(x.shape[1], 1), None
    with np.errstate(all="ignore"):
        mean = x.sum(axis=1, keepdims=True) / terms
        centered = x - mean
        squares = (centered**2).sum(axis=1, keepdims=True)
        scale = squares / terms + eps
        total = np.abs(x).sum(axis=1, keepdims=True)
        judged = norms.in_range(total, (x**2).sum(axis=1, keepdims=True), scale, dtype)
        scaled = centered / np.sqrt(scale) * w
        value = scaled + b
        if dtype == torch.float64:
            value, low = norms.exactly(partial(_row, mpmath.mpf(eps)), value, judged[:, 0], x, w, b)
        size = np.abs(x) + total / terms
        bound = bounds.layer_norm(value, size, 1 / np.sqrt(scale), w, b, dtype)
        # Before the bias it is no overflow either, also when it is off by its bound.
        reach = np.abs(scaled) + bounds.layer_norm(scaled, size, 1 / np.sqrt(scale), w, np.zeros_like(w), dtype)
        judged = judged & oracle.in_range(reach, dtype) & ~(np.isinf(reach) & np.isfinite(w) & np.isfinite(x))
        # Without eps, equal elements are nothing over nothing, or what their mean was rounded by over itself.
        none = (np.abs(centered) <= bounds.difference(size, dtype)).all(axis=1, keepdims=True)
        judged = judged & ~(none & norms.lacks_bits(eps, dtype))
        # Infinity times what may be zero or of either sign.
        judged = judged & ~(np.isinf(w) & (np.abs(centered) <= bounds.difference(size, dtype)))
    low = None if low is None else low.reshape(input.shape)
    value, bound, judged = (array.reshape(input.shape) for array in (value, bound, judged))
    return expectations.within(call, value, bound, dtype, low=low, judged=judged)


def _arguments(input, normalized_shape, weight=None, bias=None, eps=1e-5):
    return input, normalized_shape, weight, bias, float(eps)


def _row(eps: mpmath.mpf, row: list[mpmath.mpf], weight: list[mpmath.mpf], bias: list[mpmath.mpf]) -> list[mpmath.mpf]:
    mean = mpmath.fsum(row) / len(row)
    centered = [x - mean for x in row]
    variance = mpmath.fsum(centered, squared=True) / len(row) + eps
    if not variance:
        return [mpmath.nan] * len(row)
    return [x / mpmath.sqrt(variance) * w + b for x, w, b in zip(centered, weight, bias, strict=True)]


SPEC = OpSpec(
    name="layer_norm",
    reference=torch.nn.functional.layer_norm,
    cases=cases,
    large=_large.normalized(cases, models.HIDDEN),
    scenes=_scenes.of_norms(cases),
    refused=refused,
    dtypes=norms.DTYPES,
    batch=norms.batch,
    parts=norms.parts,
    features=norms.features_of,
    widened=norms.widened,
    expected=expected,
    gradients=gradients.layer_norm,
    # Per element: the mean, a difference, its square and their sum, the scale, weight and bias.
    benchmarks=norms.benchmarks("layer_norm", ("weight", "bias"), 7),
    sampled=_models.norm("layer_norm", 2.5, ("weight", "bias"), 7),
    cuda_refuses=partial(cuda_refusals.cuda_refuses, "layer_norm"),
)
