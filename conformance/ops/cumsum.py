"""``torch.cumsum(input, dim, *, dtype=None, out=None)``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st

from conformance import float_formats, oracle, product_bounds
from conformance.cases import Case, DType, Same, seed
from conformance.ops import _elementwise as elementwise
from conformance.ops import _expectations as expectations
from conformance.ops import _large, _models, _scenes, _sizes, _special_rows
from conformance.ops import _reductions as reductions
from conformance.ops import _totals as totals
from conformance.running import Running, exact
from conformance.spec import Batch, Benchmark, Call, Expected, OpSpec, Parts
from strategies import dtypes as dtype_names
from strategies import layouts, shapes, tensors
from strategies.specs import Layout, TensorSpec

DTYPES = tuple(name for name in dtype_names.ALL if name != "bool")
"""The dtypes of results."""


# --- calls -------------------------------------------------------------------------------------------------------


@st.composite
def cases(draw: st.DrawFn, dtypes: Sequence[str]) -> Case:
    dtype = draw(dtype_names.dtypes(dtypes))
    targets = [name for name in totals.sum_casts(dtype) if name in dtypes and name in DTYPES]
    target = draw(st.sampled_from((None, None, *targets)))
    input, dim = draw(reductions.inputs((dtype,), "float64" in (dtype, target), True, several=False))
    if dim is None:
        dim = draw(shapes.dims(input.shape))
    named = DType(target) if target else None
    return elementwise.case("cumsum", (input, dim), dtype=named, out=draw(_outs(input, target)))


@st.composite
def _outs(draw: st.DrawFn, input: TensorSpec, target: str | None) -> TensorSpec | Same | None:
    """None mostly; else an ``out`` of the result's dtype, or the input."""
    result = target or totals.sum_dtype(input.dtype)
    overlaps = input.layout.expanded or layouts.overlaps(input.layout)
    if result == input.dtype and not overlaps and not draw(st.integers(0, 7)):
        return Same(0)
    return draw(reductions.outs(input.shape, result))


_REFUSED = reductions.refused("cumsum", totals.sum_dtype, dtype=True, empty=True, several=False)


@st.composite
def refused(draw: st.DrawFn, dtypes: Sequence[str]) -> Case:
    kind = draw(st.sampled_from(("any", "any", "any", "no dim", "bool", "bool out", "expanded out")))
    if kind == "any":
        return draw(_REFUSED(dtypes))
    small = shapes.shapes(min_rank=1, max_rank=3, min_size=2, budget=512)
    input = draw(tensors.tensors(small, dtypes))
    match kind:
        case "no dim":
            return Case(op="cumsum", args=(input,))
        case "bool":
            return Case(op="cumsum", args=(input, -1), kwargs={"dtype": DType("bool")})
        case "bool out":
            return Case(op="cumsum", args=(input, 0), kwargs={"out": TensorSpec(input.shape, "bool")})
    layout = Layout(expanded=(draw(st.integers(0, len(input.shape) - 1)),))
    out = TensorSpec(input.shape, totals.sum_dtype(input.dtype), layout=layout)
    return Case(op="cumsum", args=(input, 0), kwargs={"out": out})


def batch(case: Case) -> Batch | None:
    """Any other dim."""
    input, dim = case.args
    assert isinstance(input, TensorSpec)
    assert isinstance(dim, int)
    if case.kwargs.get("out") is not None:
        return None
    rows = [other for other, size in enumerate(input.shape) if size > 1 and other != dim % len(input.shape)]
    chosen = elementwise.chosen(seed(case), rows)
    return None if chosen is None else Batch(input.shape[chosen], (chosen,), chosen)


def parts(call: Call) -> Parts:
    """Rows."""
    input, dim, _, out = arguments(*call.args, **call.kwargs)
    free = [other for other in range(input.ndim) if other != dim % input.ndim]
    axes: dict[int | str, tuple[int | None, ...]] = {
        0: tuple(other if other in free else None for other in range(input.ndim))
    }
    if out is not None and out.shape == input.shape:
        axes["out"] = axes[0]
    return Parts(axes, input.shape[dim] if input.ndim else 1)


def arguments(input: Any, dim: Any, *, dtype: Any = None, out: Any = None) -> tuple[Any, Any, Any, Any]:
    return input, dim, dtype, out


# --- oracles -----------------------------------------------------------------------------------------------------


def expected(call: Call) -> Expected:
    input, dim, named, out = arguments(*call.args, **call.kwargs)
    own = input.dtype if input.dtype.is_floating_point else torch.int64
    dtype = named or (own if out is None else out.dtype)
    if not dtype.is_floating_point:
        result, judged = torch.cumsum(input, dim, dtype=dtype), None
        if input.dtype.is_floating_point and dtype != torch.bool:
            judged = (~float_formats.fits(input, dtype)).long().cumsum(dim) == 0
        return expectations.exactly(call, result, judged)
    x = oracle.operand(input, dtype)
    if not x.size:
        return expectations.within(call, x, 0.0, dtype)
    rows = np.moveaxis(x.reshape(x.shape or (1,)), dim, -1)
    low = None
    with np.errstate(all="ignore"):
        finite = np.isfinite(rows)
        value, magnitude = np.cumsum(rows, -1), np.cumsum(np.where(finite, np.abs(rows), 0.0), -1)
        finite = np.logical_and.accumulate(finite, -1)
        if dtype == torch.float64:
            exactly, rest = oracle.cumulate(np.where(finite, rows, 0.0))
            value, low = np.where(finite, exactly, value), np.where(finite, rest, 0.0)
        # Beside an infinity, too, finite terms may overflow. Doubled, so that an overflow of their magnitudes shows.
        judged = oracle.in_range(2 * magnitude, dtype) & np.isfinite(2 * magnitude)
        bound = np.where(finite, product_bounds.cumulative(np.where(finite, value, 0.0), magnitude, dtype), 0.0)
    value, bound, judged = (np.moveaxis(one, -1, dim).reshape(x.shape) for one in (value, bound, judged))
    low = None if low is None else np.moveaxis(low, -1, dim).reshape(x.shape)
    return expectations.within(call, value, bound, dtype, low=low, judged=judged)


def gradient(call: Call, dout: torch.Tensor) -> dict[int | str, Running]:
    """The sum of the gradients of the results from each element on, which torch casts to the input's dtype first."""
    input, dim = call.args[:2]
    found = exact(dout, input.dtype)
    if not input.ndim or not input.numel():
        return {0: found}
    with np.errstate(all="ignore"):
        backwards = found.laid(lambda array: np.flip(np.moveaxis(array, dim, -1), -1)).cumulated()
        return {0: backwards.laid(lambda array: np.moveaxis(np.flip(array, -1), -1, dim))}


# --- specs -------------------------------------------------------------------------------------------------------


def benchmark(shape: shapes.Shape, dtype: str, dim: int) -> Benchmark:
    """Read and written once."""
    input = TensorSpec(shape, dtype)
    return Benchmark(Case(op="cumsum", args=(input, dim)), 2 * _models.moved(input), math.prod(shape))


_ROWS = tuple(benchmark((rows, columns), dtype, -1) for rows, columns, dtype in _sizes.BENCHMARK_ROWS)
_ACROSS = tuple(benchmark((8192, 8192), dtype, 0) for dtype in ("bfloat16", "float32"))
_FULL = tuple(benchmark((reductions.FULL,), dtype, 0) for dtype in ("bfloat16", "float32"))

SPEC = OpSpec(
    name="cumsum",
    reference=torch.cumsum,
    cases=cases,
    large=_large.reduced(cases),
    scenes=_scenes.of_rows(cases),
    apart=(
        _scenes.plain_rows(cases),
        _special_rows.marked_rows(cases),
        totals.cast_totals("cumsum"),
    ),
    refused=refused,
    dtypes=dtype_names.ALL,
    outs=(*reductions.OUTS, "input"),
    batch=batch,
    parts=parts,
    expected=expected,
    gradients=gradient,
    benchmarks=(*_ROWS, *_ACROSS, *_FULL),
    sampled=_models.cumulative("cumsum", 0.5),
)
