"""``torch.nn.functional.log_softmax(input, dim, dtype=None)``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import mpmath
import msgspec
import numpy as np
import torch

from conformance import bounds, oracle
from conformance.ops import _expectations as expectations
from conformance.ops import _large, _scenes, _sizes, _special_rows, softmax
from conformance.running import Running, exact
from conformance.spec import Call, Expected, OpSpec
from strategies import models


def log_softmax(input: torch.Tensor, dim: int, dtype: torch.dtype | None = None) -> torch.Tensor:
    """torch's function without its private argument."""
    return torch.nn.functional.log_softmax(input, dim, dtype=dtype)


def _renamed(strategy: Callable[[Sequence[str]], Any]) -> Callable[[Sequence[str]], Any]:
    """Return softmax's calls as calls of this op."""

    def draws(dtypes: Sequence[str]) -> Any:
        return strategy(dtypes).map(lambda case: msgspec.structs.replace(case, op="log_softmax"))

    return draws


def _exact(row: list[mpmath.mpf]) -> list[mpmath.mpf]:
    largest = max(row)
    if any(mpmath.isnan(x) for x in row) or mpmath.isinf(largest):
        return [mpmath.nan] * len(row)
    logarithm = mpmath.log(mpmath.fsum(mpmath.exp(x - largest) for x in row))
    return [x - largest - logarithm for x in row]


def values(rows: np.ndarray, dtype: torch.dtype) -> tuple[np.ndarray, np.ndarray | None, np.ndarray]:
    """The results, their low parts in float64, and the bounds."""
    value, bound = plainly(rows, dtype)
    if dtype == torch.float64:
        return *oracle.by_mpmath(_exact, np.ascontiguousarray(rows)), bound
    return value, None, bound


def plainly(rows: np.ndarray, dtype: torch.dtype) -> tuple[np.ndarray, np.ndarray]:
    """The results, of float64 computed in float64, too, and the bounds."""
    below = rows.max(axis=-1, keepdims=True) - rows
    terms = np.exp(-below)
    total = terms.sum(axis=-1, keepdims=True)
    value = -below - np.log(total)
    weighted = np.where(terms > 0, terms * below, 0.0).sum(axis=-1, keepdims=True) / total
    return value, bounds.log_softmax(value, below, weighted, np.log(total), dtype)


def expected(call: Call) -> Expected:
    input, dim, dtype = softmax.arguments(*call.args, **call.kwargs)
    if not input.numel():
        return expectations.exactly(call, input.to(dtype))
    x = oracle.operand(input, dtype)
    with np.errstate(all="ignore"):
        found = values(np.moveaxis(x.reshape(x.shape or (1,)), dim, -1), dtype)
    value, low, bound = (None if one is None else np.moveaxis(one, -1, dim).reshape(x.shape) for one in found)
    assert value is not None
    assert bound is not None
    return expectations.within(call, value, bound, dtype, low=low)


def gradient(call: Call, dout: torch.Tensor) -> dict[int | str, Running]:
    """g - exp(result) sum(g); the result may be stored."""
    input, dim = call.args[:2]
    if not input.numel():
        return {0: exact(torch.zeros(input.shape), dout.dtype)}
    with np.errstate(all="ignore"):
        x, g = (exact(tensor.reshape(tensor.shape or (1,)), dout.dtype) for tensor in (input, dout))
        x, g = (one.laid(lambda array: np.moveaxis(array, dim, -1)) for one in (x, g))
        value, _, bound = values(x.value, dout.dtype)
        # What is not finite, or was cast, spoils its row.
        error = np.where(x.error.any(axis=-1, keepdims=True), np.inf, bound)
        result = Running(value, error, dout.dtype).computed().stored()
        powers = result.applied(np.exp, lambda value: bounds.ulps("exp", value, dout.dtype))
        found = g - powers * g.sum(-1, keepdims=True)
        return {0: found.laid(lambda array: np.moveaxis(array, -1, dim).reshape(input.shape))}


_CASES = _renamed(softmax.cases)

SPEC = OpSpec(
    name="log_softmax",
    reference=log_softmax,
    cases=_CASES,
    large=_large.normalized(_CASES, (*models.WIDTHS, *models.VOCABULARIES)),
    scenes=_scenes.of_rows(_CASES),
    apart=(
        _scenes.plain_rows(_CASES),
        _special_rows.masked_rows(_CASES),
        _special_rows.marked_rows(_CASES),
        _special_rows.filtered_rows(_CASES),
    ),
    refused=_renamed(softmax.refused),
    dtypes=(*softmax.DTYPES, *softmax.CAST),
    batch=softmax.batch,
    parts=softmax.parts,
    expected=expected,
    gradients=gradient,
    benchmarks=tuple(softmax.benchmark(*shape, op="log_softmax") for shape in _sizes.BENCHMARK_ROWS),
)
