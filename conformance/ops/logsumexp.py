"""``torch.logsumexp(input, dim, keepdim=False, *, out=None)``."""

from __future__ import annotations

from typing import Any

import mpmath
import numpy as np
import torch

from conformance import bounds, oracle
from conformance.ops import _expectations as expectations
from conformance.ops import _large, _scenes, _special_rows
from conformance.ops import _reductions as reductions
from conformance.running import Running, exact
from conformance.spec import Call, Expected, OpSpec
from strategies import dtypes as dtype_names


def logsumexp(input: torch.Tensor, dim: Any, keepdim: bool = False, *, out: torch.Tensor | None = None) -> torch.Tensor:
    """torch's function, in whose table of signatures ``dim`` has another name."""
    return torch.logsumexp(input, dim, keepdim, out=out)


def _dtype(input: torch.Tensor) -> torch.dtype:
    return input.dtype if input.is_floating_point() else torch.get_default_dtype()


def _exact(row: list[mpmath.mpf]) -> list[mpmath.mpf]:
    largest = max(row)
    if any(mpmath.isnan(x) for x in row):
        return [mpmath.nan] * len(row)
    if mpmath.isinf(largest):
        return [largest] * len(row)
    return [largest + mpmath.log(mpmath.fsum(mpmath.exp(x - largest) for x in row))] * len(row)


def _values(rows: np.ndarray, dtype: torch.dtype) -> tuple[np.ndarray, np.ndarray | None, np.ndarray]:
    """The results, their low parts in float64, and the bounds."""
    largest = rows.max(axis=-1, keepdims=True)
    below = np.where(rows == largest, 0.0, largest - rows)
    terms = np.exp(-below)
    total = terms.sum(axis=-1)
    value, low = np.log(total) + largest[..., 0], None
    if dtype == torch.float64:
        high, rest = oracle.by_mpmath(_exact, np.ascontiguousarray(rows))
        value, low = high[..., 0], rest[..., 0]
    weighted = np.where(terms > 0, terms * np.where(np.isfinite(below), below, 0.0), 0.0).sum(axis=-1) / total
    return value, low, bounds.logsumexp(value, weighted, np.log(total), bounds.exponentials(below)[..., 0], dtype)


def expected(call: Call) -> Expected:
    input, dim, keepdim, _, _ = reductions.arguments(*call.args, **call.kwargs)
    dtype = _dtype(input)
    shape = reductions.result_shape(tuple(input.shape), dim, keepdim)
    rows = oracle.operand(reductions.rows(input, dim), dtype)
    if not rows.shape[-1]:
        return expectations.exactly(call, torch.full(shape, -torch.inf, dtype=dtype))
    with np.errstate(all="ignore"):
        value, low, bound = _values(rows, dtype)
    low = None if low is None else low.reshape(shape)
    return expectations.within(call, value.reshape(shape), bound.reshape(shape), dtype, low=low)


def gradient(call: Call, dout: torch.Tensor) -> dict[int | str, Running]:
    """The gradient of the result, times exp(input - result)."""
    input, dim = reductions.arguments(*call.args, **call.kwargs)[:2]
    dims = reductions.reduced(dim, input.ndim)
    whole = tuple(1 if place in dims else size for place, size in enumerate(input.shape))
    if not input.numel():
        return {0: exact(torch.zeros(input.shape), dout.dtype)}
    with np.errstate(all="ignore"):
        rows = oracle.operand(reductions.rows(input, dim), dout.dtype)
        value, _, bound = _values(rows, dout.dtype)
        result = Running(value.reshape(whole), bound.reshape(whole), dout.dtype).computed().stored()
        # What is not finite spoils its row.
        known = np.isfinite(value.reshape(whole)) & np.isfinite(oracle.operand(input, dout.dtype))
        result = Running(result.value, np.where(known, result.error, np.inf), dout.dtype)
        x, g = exact(input, dout.dtype), exact(dout, dout.dtype).laid(lambda array: array.reshape(whole))
        share = (x - result).stored().applied(np.exp, lambda value: bounds.ulps("exp", value, dout.dtype)).stored()
        return {0: g * share}


def _result(name: str) -> str:
    return name if name in dtype_names.FLOATING else "float32"


_CASES = reductions.cases("logsumexp", _result, lambda name: (), True, named=True)

SPEC = OpSpec(
    name="logsumexp",
    reference=logsumexp,
    cases=_CASES,
    large=_large.reduced(_CASES),
    scenes=_scenes.of_rows(_CASES, several=True),
    apart=(
        _scenes.plain_rows(_CASES),
        _special_rows.masked_rows(_CASES),
        _special_rows.marked_rows(_CASES, several=True),
        _special_rows.filtered_rows(_CASES),
    ),
    refused=reductions.refused("logsumexp", _result, dtype=False, empty=True, wrong_outs=dtype_names.INTEGRAL),
    dtypes=dtype_names.ALL,
    outs=reductions.OUTS,
    batch=reductions.batch,
    parts=reductions.parts,
    expected=expected,
    gradients=gradient,
    benchmarks=reductions.benchmarks("logsumexp", named=True),
)
