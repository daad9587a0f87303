"""Draw calls of reductions (dims, ``keepdim``, ``dtype=``, ``out=``), and tell their batches, parts and benchmarks."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import torch
from hypothesis import strategies as st

from conformance.cases import Argument, Case, DType, Ints, seed
from conformance.ops import _elementwise as elementwise
from conformance.ops import _norms as norms
from conformance.ops import _sizes
from conformance.spec import Batch, Benchmark, Call, Parts
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
