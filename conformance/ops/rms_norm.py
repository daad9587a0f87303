"""``torch.nn.functional.rms_norm``: input / sqrt(mean(input^2) + eps) * weight over the last dims."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import mpmath
import numpy as np
import torch
from hypothesis import strategies as st

from conformance import bounds, float_formats
from conformance.cases import Case
from conformance.ops import _elementwise as elementwise
from conformance.ops import _expectations as expectations
from conformance.ops import _gradients_rows as gradients
from conformance.ops import _large, _models, _scenes
from conformance.ops import _norms as norms
from conformance.spec import Call, Expected, OpSpec
from strategies import dtypes as dtype_names
from strategies import models


@st.composite
def cases(draw: st.DrawFn, dtypes: Sequence[str]) -> Case:
    floats = [name for name in dtypes if name in norms.DTYPES]
    input, shape = draw(norms.inputs(floats))
    affine = norms.parameters(draw, shape, ("weight",), draw(dtype_names.dtypes(floats)))
    eps = draw(st.sampled_from((None, None, None, *norms.EPSILONS)))
    return elementwise.case("rms_norm", (input, shape), eps=eps, **affine)


@st.composite
def refused(draw: st.DrawFn, dtypes: Sequence[str]) -> Case:
    if not draw(st.integers(0, 4)):
        return draw(norms.integers("rms_norm"))
    dtype = draw(dtype_names.dtypes([name for name in dtypes if name in norms.DTYPES]))
    return draw(norms.refused_shapes("rms_norm", dtype))


def expected(call: Call) -> Expected:
    input, shape, weight, eps = _arguments(*call.args, **call.kwargs)
    if not input.numel():
        return expectations.exactly(call, input)
    dtype, x = input.dtype, norms.rows(input, shape)
    compute = float_formats.compute_dtype(dtype)
    # torch's rule since 2.4: the epsilon of the dtype in which is computed.
    eps = torch.finfo(compute).eps if eps is None else float(eps)
    w = norms.parameter(weight, 1.0, x.shape[1])
    terms, low = max(x.shape[1], 1), None
    with np.errstate(all="ignore"):
        squares = (x**2).sum(axis=1, keepdims=True)
        scale = squares / terms + eps
        judged = norms.in_range(np.abs(x).sum(axis=1, keepdims=True), squares, scale, dtype)
        # A weight of another dtype may be beyond what the compute dtype holds.
        judged = judged & (np.isfinite(w) <= (np.abs(w) <= float_formats.FORMATS[compute].max))
        scaled = x / np.sqrt(scale)
        # Infinity times what may have underflowed to zero.
        judged = judged & ~(np.isinf(w) & (scaled != 0) & (np.abs(scaled) < torch.finfo(compute).tiny))
        value = scaled * w
        if dtype == torch.float64:
            value, low = norms.exactly(partial(_row, mpmath.mpf(eps)), value, judged.all(axis=1), x, w)
        bound = bounds.rms_norm(value, w, dtype)
        # What overflows float64 is judged where it does so, too, if it is off by its bound.
        least = (1 - bounds.rms_norm(np.ones(()), np.ones(()), dtype)) * scaled * w
        judged = judged & ~(np.isinf(value) & np.isfinite(scaled) & np.isfinite(w) & np.isfinite(least))
    low = None if low is None else low.reshape(input.shape)
    value, bound, judged = (array.reshape(input.shape) for array in (value, bound, judged))
    return expectations.within(call, value, bound, dtype, low=low, judged=judged)


def _arguments(input, normalized_shape, weight=None, eps=None):
    return input, normalized_shape, weight, eps


def _row(eps: mpmath.mpf, row: list[mpmath.mpf], weight: list[mpmath.mpf]) -> list[mpmath.mpf]:
    mean = mpmath.fsum(row, squared=True) / len(row) + eps
    if not mean:
        return [mpmath.nan] * len(row)
    return [x / mpmath.sqrt(mean) * w for x, w in zip(row, weight, strict=True)]


SPEC = OpSpec(
    name="rms_norm",
    reference=torch.nn.functional.rms_norm,
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
    gradients=gradients.rms_norm,
    # Per element: its square and their sum, the scale and the weight.
    benchmarks=norms.benchmarks("rms_norm", ("weight",), 4),
    sampled=_models.norm("rms_norm", 3, ("weight",), 4),
)
