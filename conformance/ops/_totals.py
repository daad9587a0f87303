"""Sums and means: their specs, oracles and gradients, and calls whose terms are cast first."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st

from conformance import float_formats, oracle, product_bounds, semantics
from conformance.cases import Case, DType
from conformance.ops import _expectations as expectations
from conformance.ops import _large, _scenes, _special_rows
from conformance.ops import _reductions as reductions
from conformance.running import Running, exact
from conformance.spec import Call, Expected, OpSpec
from strategies import dtypes as dtype_names
from strategies import tensors
from strategies.specs import TensorSpec


def total(call: Call, mean: bool) -> Expected:
    """The sum, or the mean."""
    input, dim, keepdim, named, out = reductions.arguments(*call.args, **call.kwargs)
    own = input.dtype if mean or input.dtype.is_floating_point else torch.int64
    dtype = named or (own if out is None else out.dtype)
    shape = reductions.result_shape(tuple(input.shape), dim, keepdim)
    if not dtype.is_floating_point:
        result, judged = torch.sum(input, dim, keepdim, dtype=dtype), None
        if input.dtype.is_floating_point and dtype != torch.bool:
            judged = float_formats.fits(reductions.rows(input, dim), dtype).all(-1).reshape(shape)
        return expectations.exactly(call, result, judged)
    # On the CPU torch casts what is averaged to float32, whatever half type is asked for.
    cast = (
        torch.float32 if mean and semantics.of_cpu() and float_formats.compute_dtype(dtype) == torch.float32 else dtype
    )
    x = oracle.operand(_nonempty(reductions.rows(input, dim)), cast)
    count, low = x.shape[-1], None
    with np.errstate(all="ignore"):
        terms = np.isfinite(x)
        finite, plain = terms.all(-1), np.where(terms, x, 0.0)
        value, magnitude = x.sum(-1), np.abs(plain).sum(-1)
        if dtype == torch.float64:
            exactly, rest = oracle.matmul(plain.reshape(-1, count), np.ones((count, 1)))
            value = np.where(finite, exactly.reshape(value.shape), value)
            low = np.where(finite, rest.reshape(value.shape), 0.0)
        # Beside an infinity, too, finite terms may overflow. Doubled, so that an overflow of their magnitudes shows.
        judged = oracle.in_range(2 * magnitude, dtype) & np.isfinite(2 * magnitude)
        bound = np.where(finite, product_bounds.total(value, magnitude, count, dtype), 0.0)
        if mean:
            value, low = _quotient(value, low, input.numel() // max(math.prod(shape), 1))
            bound = bound / max(count, 1) + float_formats.rounding(value, float_formats.compute_dtype(dtype))
    value, bound, judged = (np.asarray(array).reshape(shape) for array in (value, bound, judged))
    low = None if low is None else low.reshape(shape)
    return expectations.within(call, value, bound, dtype, low=low, judged=judged)


def _nonempty(x: torch.Tensor) -> torch.Tensor:
    """The rows, of one 0 where they are empty."""
    return x if x.shape[-1] else x.new_zeros((*x.shape[:-1], 1))


def _quotient(value: np.ndarray, low: np.ndarray | None, count: int) -> tuple[np.ndarray, np.ndarray | None]:
    """A sum divided by its number of terms."""
    if low is None or not count:
        return value / np.float64(count), low
    high, rest = oracle.divide(value, np.full_like(value, count))
    return high, np.where(np.isfinite(high), rest + low / count, 0.0)


def gradient_of_total(mean: bool, call: Call, dout: torch.Tensor) -> dict[int | str, Running]:
    """The gradient of the result, for each element; of the mean divided by their number."""
    input, dim = reductions.arguments(*call.args, **call.kwargs)[:2]
    dims = reductions.reduced(dim, input.ndim)
    count = math.prod(input.shape[place] for place in dims)
    found = exact(dout, dout.dtype)
    found = found / float(max(count, 1)) if mean else found
    whole = tuple(1 if place in dims else size for place, size in enumerate(input.shape))
    return {0: found.laid(lambda array: np.broadcast_to(array.reshape(whole), tuple(input.shape)))}


def sum_dtype(name: str) -> str:
    return name if name in dtype_names.FLOATING else "int64"


def sum_casts(name: str) -> tuple[str, ...]:
    # What a float outside an integer's range becomes is undefined.
    whole = () if name in dtype_names.FLOATING else (*dtype_names.INTEGRAL, *dtype_names.BOOL)
    return (*dtype_names.FLOATING, *whole)


def _mean_dtype(name: str) -> str:
    return name if name in dtype_names.FLOATING else ""


@st.composite
def _cast_totals(draw: st.DrawFn, op: str, dtype: str, other: str) -> Case:
    """Sums whose terms are cast first: fractions to integers, each of which loses its own, and half types to float32,
    by ``dtype=`` or by that of ``out``."""
    shape = draw(st.sampled_from(((33,), (5, 40), (3, 7, 20))))
    values = ("normal",) if dtype in dtype_names.HALF else ("normal", "uniform")
    input = draw(tensors.tensors(shape, (dtype,), values=values, specials=()))
    dim = draw(st.integers(-len(shape), len(shape) - 1))
    kwargs: dict[str, Any] = {"dtype": DType(other)}
    if dtype in dtype_names.HALF and draw(st.booleans()):
        kwargs = {"out": TensorSpec(reductions.result_shape(shape, dim, False), other)}
    return Case(op=op, args=(input, dim), kwargs=kwargs)


def cast_totals(op: str) -> Any:
    """Calls of ``_cast_totals``, for each two of the dtypes that have some."""

    def draws(dtypes: Sequence[str]) -> st.SearchStrategy[Case]:
        halves = [name for name in dtypes if name in dtype_names.HALF]
        floats = [name for name in dtypes if name in dtype_names.FLOATING]
        whole = [name for name in dtypes if name in ("int32", "int64")]
        if halves and "float32" in dtypes:
            return _cast_totals(op, halves[0], "float32")
        return _cast_totals(op, floats[0], whole[0]) if floats and whole else st.nothing()

    return draws


@st.composite
def _whole_means(draw: st.DrawFn, dtypes: Sequence[str]) -> Case:
    """Means of whole numbers of any size, or of bools, as of images, in a floating-point dtype that is asked for."""
    shape = draw(st.sampled_from(((5, 40), (3, 700), (2, 3, 257), (1500,))))
    named = draw(st.sampled_from(tuple(dtypes)))
    # Terms are cast first, and half types hold whole numbers of 8 bits.
    larger = () if named in dtype_names.HALF else ("int16", "int32", "int64")
    own = draw(st.sampled_from(("uint8", "int8", "bool", *larger)))
    values = "bytes" if own == "bool" else draw(st.sampled_from(("uniform", "positive")))
    input = TensorSpec(shape, own, values, draw(tensors.SEEDS))
    dim = draw(st.integers(-len(shape), len(shape) - 1))
    return Case(op="mean", args=(input, dim), kwargs={"dtype": DType(named)})


def whole_means(dtypes: Sequence[str]) -> st.SearchStrategy[Case]:
    """Calls of ``_whole_means``."""
    floats = [name for name in dtypes if name in dtype_names.FLOATING]
    return _whole_means(floats) if floats else st.nothing()


def total_spec(name: str, function: reductions.Function, *, mean: bool = False) -> OpSpec:
    """The OpSpec of a sum or a mean."""
    dtype_of = _mean_dtype if mean else sum_dtype
    legal = reductions.cases(
        name, dtype_of, (lambda one: dtype_names.FLOATING) if mean else sum_casts, True, ("out",) if mean else ()
    )
    return OpSpec(
        name=name,
        reference=function,
        cases=legal,
        large=_large.reduced(legal),
        scenes=_scenes.of_rows(legal, several=True),
        apart=(
            _scenes.plain_rows(legal),
            _special_rows.marked_rows(legal, several=True),
            whole_means if mean else cast_totals(name),
        ),
        refused=reductions.refused(
            name, dtype_of, dtype=True, empty=True, beside_dim=("keepdim",) if mean else ("keepdim", "out")
        ),
        dtypes=dtype_names.FLOATING if mean else dtype_names.ALL,
        outs=reductions.OUTS,
        batch=reductions.batch,
        parts=reductions.parts,
        expected=partial(total, mean=mean),
        gradients=partial(gradient_of_total, mean),
        benchmarks=reductions.benchmarks(name),
    )
