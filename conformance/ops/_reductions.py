"""Draw calls of reductions (dims, ``keepdim``, ``dtype=``, ``out=``), and compute the oracles of sums and means."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import msgspec
import numpy as np
import torch
from hypothesis import strategies as st

from conformance import float_formats, oracle, product_bounds, semantics
from conformance.cases import Argument, Case, DType, Ints, seed
from conformance.ops import _elementwise as elementwise
from conformance.ops import _expectations as expectations
from conformance.ops import _large, _scenes, _sizes
from conformance.ops import _norms as norms
from conformance.running import Running, exact
from conformance.spec import Batch, Benchmark, Call, Expected, OpSpec, Parts
from strategies import dtypes as dtype_names
from strategies import shapes, tensors
from strategies.shapes import Shape
from strategies.specs import TensorSpec

Function = Callable[..., torch.Tensor]
OUTS = ("right", "empty", "wrong size", "strided")
"""The kinds of ``out``: its dtype decides in which dtype a sum is computed, and torch checks no overlap."""
FULL = 1 << 26
"""Elements of a full reduction that is timed."""


# --- legal calls -------------------------------------------------------------------------------------------------


@st.composite
def inputs(
    draw: st.DrawFn, dtypes: Sequence[str], float64: bool, empty: bool, several: bool = True
) -> tuple[TensorSpec, Argument]:
    """A tensor and the dims that are reduced: rows of several blocks, rows that several programs share, or any dims of
    any shape; ``empty``: there may be none of their elements; ``several``: else one dim or all."""
    budget = _sizes.FLOAT64_ELEMENTS if float64 else _sizes.ELEMENTS
    kind = draw(st.sampled_from(("rows", "rows", "dims", "dims", "dims", "long")))
    dim: Argument
    match "rows" if kind == "long" and float64 else kind:
        case "rows":
            rows, columns = draw(
                shapes.reductions(min_size=1, max_rows=_sizes.ROWS, max_columns=_sizes.COLUMNS, budget=budget)
            )
            # The dim of the rows may be first: then neighbours in memory belong to different rows.
            shape, dim = draw(st.sampled_from((((rows, columns), -1), ((columns, rows), 0), ((1, columns, rows), 1))))
        case "long":
            columns = draw(st.one_of(st.sampled_from(_sizes.LONG_COLUMNS), st.just(_sizes.MANY_ELEMENTS - 1)))
            shape, dim = draw(
                st.sampled_from((((columns,), None), ((columns, 1), 0), ((1, columns), (0, 1) if several else 1)))
            )
        case _:
            rank = draw(st.sampled_from((1, 2, 3, 4, 5, 0)))
            shape = draw(shapes.shapes(rank, rank, min_size=0 if empty else 1, budget=budget))
            dim = draw(dims(shape) if several else st.one_of(st.none(), shapes.dims(shape)))
            # A dim that stays may be empty all the same.
            kept = [place for place in range(rank) if place not in reduced(dim, rank)]
            if not empty and kept and not draw(st.integers(0, 15)):
                shape = tuple(0 if place == kept[0] else size for place, size in enumerate(shape))
    input = draw(tensors.tensors(shape, dtypes))
    if input.dtype in dtype_names.FLOATING and (recipe := draw(norms.RECIPES)) is not None:
        input = msgspec.structs.replace(input, values=recipe, specials=())
    return input, dim


@st.composite
def dims(draw: st.DrawFn, shape: Shape) -> Argument:
    """Dims of the shape: one, some in any order and counted from either end, or all, in torch's ways to say so."""
    match draw(st.sampled_from(("one", "some", "some", "all", "none", "list"))):
        case "one":
            return draw(shapes.dims(shape))
        case "all":
            return None
        case "none":
            return ()
        case kind:
            places = draw(st.permutations(range(max(len(shape), 1))))
            places = places[: draw(st.integers(1, len(places)))]
            found = tuple(place - len(shape) if draw(st.booleans()) and shape else place for place in places)
            return Ints(found) if kind == "list" else found


def reduced(dim: Any, rank: int) -> tuple[int, ...]:
    """The dims that a call reduces, counted from the front; none of a 0-d tensor."""
    given = (dim,) if isinstance(dim, int) else dim.items if isinstance(dim, Ints) else dim
    return tuple(sorted(one % rank for one in given)) if given and rank else tuple(range(rank))


def result_shape(shape: Shape, dim: Any, keepdim: bool) -> Shape:
    dims = reduced(dim, len(shape))
    return tuple(1 if place in dims else size for place, size in enumerate(shape) if keepdim or place not in dims)


def cases(
    op: str,
    dtype_of: Callable[..., str],
    casts: Callable[[str], Sequence[str]],
    empty: bool,
    without_dim: Sequence[str] = (),
    several: bool = True,
    named: bool = False,
) -> Any:
    """Calls of an op. ``dtype_of``: the dtype of the result for an input of one; ``casts``: the dtypes that ``dtype=``
    may name for it; ``empty``: whether nothing may be reduced; ``without_dim``: what is taken without ``dim``, beside
    ``dtype``; ``several``: whether several dims may be named; ``named``: whether one must
    be."""

    @st.composite
    def draws(draw: st.DrawFn, dtypes: Sequence[str]) -> Case:
        supported = [name for name in dtypes if dtype_of(name) or {*casts(name)} & {*dtypes}]
        dtype = draw(dtype_names.dtypes(supported))
        targets = [name for name in casts(dtype) if name in dtypes]
        target = draw(st.sampled_from((None, None, *targets))) if dtype_of(dtype) else draw(st.sampled_from(targets))
        input, dim = draw(inputs((dtype,), "float64" in (dtype, target), empty, several))
        if named and dim in (None, ()):
            dim = tuple(range(len(input.shape))) or 0
        keepdim = draw(st.sampled_from((None, None, True, False)))
        shape = result_shape(input.shape, dim, bool(keepdim))
        out = draw(outs(shape, target or dtype_of(dtype)))
        kwargs = {"keepdim": keepdim, "dtype": DType(target) if target else None, "out": out}
        given = {name for name, value in kwargs.items() if value is not None} - {"dtype", *without_dim}
        left_out = dim is None and not given and draw(st.booleans())
        return elementwise.case(op, (input,) if left_out else (input, dim), **kwargs)

    return draws


@st.composite
def outs(draw: st.DrawFn, shape: Shape, dtype: str) -> TensorSpec | None:
    """None mostly; else an ``out`` of the result's dtype, of the right or another size and of any layout."""
    match draw(st.sampled_from(("none",) * 5 + ("right", "right", "empty", "wrong size"))):
        case "right":
            return draw(
                tensors.tensors(shape, dtype, layouts=elementwise.WRITABLE, values=("normal",), specials=("nan",))
            )
        case "empty":
            return TensorSpec(shape=(0,), dtype=dtype)
        case "wrong size":
            return TensorSpec(draw(st.sampled_from([size for size in ((3,), (1,), (2, 5)) if size != shape])), dtype)
    return None


# --- refused calls -----------------------------------------------------------------------------------------------


def refused(
    op: str,
    dtype_of: Callable[..., str],
    *,
    dtype: bool,
    empty: bool,
    beside_dim: Sequence[str] = (),
    several: bool = True,
    wrong_outs: Sequence[str] = dtype_names.FLOATING,
) -> Any:
    """Calls that torch refuses; ``dtype``: the op takes ``dtype=``; ``empty``: nothing may be reduced; ``beside_dim``:
    what is taken only with ``dim``; ``several``: several dims may be named; ``wrong_outs``: dtypes that ``out``
    may not have, but that of the result."""

    @st.composite
    def draws(draw: st.DrawFn, dtypes: Sequence[str]) -> Case:
        names = [name for name in dtypes if dtype_of(name)]
        input = draw(tensors.tensors(shapes.shapes(max_rank=3, min_size=1, budget=512), names))
        rank = max(len(input.shape), 1)
        kinds = ["dim", "twice" if several else "several", "dim type", "keepdim", "out dtype", "tensor"]
        kinds += (
            ["no dim"] * bool(beside_dim)
            + ["dtype"] * dtype
            + ["empty"] * (not empty)
            + ["integers"] * (not dtype_of("bool"))
        )
        match draw(st.sampled_from(kinds)):
            case "dim":
                wrong = draw(st.sampled_from((rank, rank + 3, -rank - 1)))
                return Case(op=op, args=(input, draw(st.sampled_from((wrong, *[(0, wrong)[-rank:]] * several)))))
            case "twice":
                return Case(op=op, args=(input, draw(st.sampled_from(((0, 0), (0, -rank), (rank - 1, 0, -1))))))
            case "several":
                return Case(op=op, args=(input, draw(st.sampled_from(((), (0,), (0, -1), Ints((0,)))))))
            case "dim type":
                # No text: torch 2.11 takes it for the name of a dim, later ones refuse its type.
                return Case(op=op, args=(input, draw(st.sampled_from((1.0, True)))))
            case "keepdim":
                return Case(op=op, args=(input, 0, draw(st.sampled_from((1, 0.0, "x")))))
            case "no dim" if draw(st.booleans()) and "out" in beside_dim:
                return elementwise.case(op, (input,), out=TensorSpec((), dtype_of(input.dtype)))
            case "no dim":
                return Case(op=op, args=(input,), kwargs={"keepdim": draw(st.booleans())})
            case "tensor":
                return Case(op=op, args=(draw(st.sampled_from((2, 1.5, "x", (1, 2)))), 0))
            case "dtype":
                return Case(op=op, args=(input, 0), kwargs={"dtype": draw(st.sampled_from(("float32", 3)))})
            case "empty":
                nothing = TensorSpec(draw(st.sampled_from(((0, 3), (2, 0)))), input.dtype)
                return Case(
                    op=op, args=(nothing, draw(st.sampled_from((nothing.shape.index(0), None, *[(0, 1)] * several))))
                )
            case "integers":
                names = (*dtype_names.INTEGRAL, *dtype_names.BOOL)
                whole = draw(st.sampled_from([name for name in names if not dtype_of(name)]))
                return Case(op=op, args=(draw(tensors.tensors((3, 5), whole)), 0))
        # The result's dtype is settled, and it is not that of ``out``.
        found = dtype_of(input.dtype)
        other = draw(dtype_names.dtypes([name for name in wrong_outs if name != found]))
        out = TensorSpec(result_shape(input.shape, 0, False), other)
        return elementwise.case(op, (input, 0), dtype=DType(found) if dtype else None, out=out)

    return draws


# --- parts -------------------------------------------------------------------------------------------------------


def arguments(
    input: Any, dim: Any = None, keepdim: Any = False, *, dtype: Any = None, out: Any = None
) -> tuple[Any, Any, bool, Any, Any]:
    return input, dim, keepdim, dtype, out


def _axes(rank: int, dim: Any, keepdim: bool) -> list[int | None]:
    """For each dim of the input, that of the result."""
    dims = reduced(dim, rank)
    return [
        None if place in dims else place if keepdim else place - sum(one < place for one in dims)
        for place in range(rank)
    ]


def batch(case: Case) -> Batch | None:
    """Any dim that stays."""
    input, dim, keepdim, _, out = arguments(*case.args, **case.kwargs)
    assert isinstance(input, TensorSpec)
    if out is not None:
        return None
    axes = _axes(len(input.shape), dim, keepdim)
    kept = [place for place, size in enumerate(input.shape) if size > 1 and axes[place] is not None]
    chosen = elementwise.chosen(seed(case), kept)
    result = None if chosen is None else axes[chosen]
    return None if chosen is None or result is None else Batch(input.shape[chosen], (chosen,), result)


def parts(call: Call) -> Parts:
    """Results."""
    input, dim, keepdim, _, out = arguments(*call.args, **call.kwargs)
    axes: dict[int | str, tuple[int | None, ...]] = {0: tuple(_axes(input.ndim, dim, keepdim))}
    assert isinstance(call.result, torch.Tensor)
    if out is not None and out.shape == call.result.shape:
        axes["out"] = tuple(range(call.result.ndim))
    terms = math.prod(input.shape[place] for place in reduced(dim, input.ndim))
    return Parts(axes, terms)


# --- oracles -----------------------------------------------------------------------------------------------------


def rows(input: torch.Tensor, dim: Any) -> torch.Tensor:
    """The reduced elements of each result along the last dim."""
    dims = reduced(dim, input.ndim)
    kept = [place for place in range(input.ndim) if place not in dims]
    sizes = (*(input.shape[place] for place in kept), math.prod(input.shape[place] for place in dims))
    return input.permute((*kept, *dims)).reshape(sizes)


def total(call: Call, mean: bool) -> Expected:
    """The sum, or the mean."""
    input, dim, keepdim, named, out = arguments(*call.args, **call.kwargs)
    own = input.dtype if mean or input.dtype.is_floating_point else torch.int64
    dtype = named or (own if out is None else out.dtype)
    shape = result_shape(tuple(input.shape), dim, keepdim)
    if not dtype.is_floating_point:
        result, judged = torch.sum(input, dim, keepdim, dtype=dtype), None
        if input.dtype.is_floating_point and dtype != torch.bool:
            judged = float_formats.fits(rows(input, dim), dtype).all(-1).reshape(shape)
        return expectations.exactly(call, result, judged)
    # On the CPU torch casts what is averaged to float32, whatever half type is asked for.
    cast = (
        torch.float32 if mean and semantics.of_cpu() and float_formats.compute_dtype(dtype) == torch.float32 else dtype
    )
    x = oracle.operand(_nonempty(rows(input, dim)), cast)
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
    input, dim = arguments(*call.args, **call.kwargs)[:2]
    dims = reduced(dim, input.ndim)
    count = math.prod(input.shape[place] for place in dims)
    found = exact(dout, dout.dtype)
    found = found / float(max(count, 1)) if mean else found
    whole = tuple(1 if place in dims else size for place, size in enumerate(input.shape))
    return {0: found.laid(lambda array: np.broadcast_to(array.reshape(whole), tuple(input.shape)))}


# --- specs -------------------------------------------------------------------------------------------------------


def benchmarks(op: str, result: str = "", *, named: bool = False) -> tuple[Benchmark, ...]:
    """Rows, columns, and all elements of 64 Mi; ``result``: the dtype of the result, if it is not the input's;
    ``named``: whether a dim must be named."""

    def one(shape: Shape, dtype: str, *args: Argument) -> Benchmark:
        read, written = (dtype_names.format_of(name).bits // 8 for name in (dtype, result or dtype))
        results = math.prod(result_shape(shape, *(args or (None,)), False))
        case = Case(op=op, args=(TensorSpec(shape=shape, dtype=dtype), *args))
        return Benchmark(case, bytes=math.prod(shape) * read + results * written, flops=math.prod(shape))

    along = (one((rows, columns), dtype, -1) for rows, columns, dtype in _sizes.BENCHMARK_ROWS)
    across = (one((8192, 8192), dtype, 0) for dtype in ("bfloat16", "float32"))
    full = (one((FULL,), dtype, *[0] * named) for dtype in ("bfloat16", "float32"))
    return (*along, *across, *full)


def _sum_dtype(name: str) -> str:
    return name if name in dtype_names.FLOATING else "int64"


def _sum_casts(name: str) -> tuple[str, ...]:
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
        kwargs = {"out": TensorSpec(result_shape(shape, dim, False), other)}
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


def total_spec(name: str, function: Function, *, mean: bool = False) -> OpSpec:
    """The OpSpec of a sum or a mean."""
    dtype_of = _mean_dtype if mean else _sum_dtype
    legal = cases(
        name, dtype_of, (lambda one: dtype_names.FLOATING) if mean else _sum_casts, True, ("out",) if mean else ()
    )
    return OpSpec(
        name=name,
        reference=function,
        cases=legal,
        large=_large.reduced(legal),
        scenes=_scenes.of_rows(legal, several=True)
        if mean
        else _scenes.beside(_scenes.of_rows(legal, several=True), cast_totals(name)),
        refused=refused(
            name, dtype_of, dtype=True, empty=True, beside_dim=("keepdim",) if mean else ("keepdim", "out")
        ),
        dtypes=dtype_names.FLOATING if mean else dtype_names.ALL,
        outs=OUTS,
        batch=batch,
        parts=parts,
        expected=partial(total, mean=mean),
        gradients=partial(gradient_of_total, mean),
        benchmarks=benchmarks(name),
    )
