"""Draw the calls of elementwise operators, and tell their batches, parts and benchmarks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import msgspec
import numpy as np
import torch
from hypothesis import strategies as st

from conformance.cases import Argument, Case, NonFinite, Same
from conformance.cases import operands as case_operands
from conformance.cases import seed as case_seed
from conformance.ops import _rounded, _sizes

# Under this name since the first page about adding operators: specs from outside use it.
from conformance.ops._expectations import exactly as exactly
from conformance.spec import Batch, Benchmark, Call, Parts
from strategies import dtypes as dtype_names
from strategies import layouts, scalars, shapes, tensors
from strategies.shapes import Shape
from strategies.specs import Layout, TensorSpec

WRITABLE = layouts.WRITABLE
"""Two elements at one address torch refuses to write."""

Operands = tuple[Argument, Argument]


# --- legal calls -------------------------------------------------------------------------------------------------


@cache
def shapes_of_results(min_rank: int = 0, budget: int = _sizes.ELEMENTS) -> st.SearchStrategy[Shape]:
    """Shapes within the budget; one in five may span many blocks, unless the budget is a smaller one."""
    modest = shapes.shapes(min_rank=min_rank, max_rank=5, budget=budget)
    if budget < _sizes.ELEMENTS:
        return modest
    large = shapes.shapes(min_rank=1, max_rank=2, max_size=_sizes.MANY_ELEMENTS, budget=_sizes.MANY_ELEMENTS)
    # Half of these have elements that a 16-bit index does not reach.
    largest = st.integers(1, _sizes.MANY_ELEMENTS).map(lambda size: (size,))
    return st.integers(0, 15).flatmap(lambda n: largest if n == 15 else large if n > 12 else modest)


def elements(*dtypes: str) -> int:
    """The budget of an op that rounds: float64 results are evaluated by mpmath."""
    return _sizes.FLOAT64_ELEMENTWISE if "float64" in dtypes else _sizes.ELEMENTS


@st.composite
def tensor_pairs(draw: st.DrawFn, dtypes: Sequence[str], *, by_mpmath: bool = False) -> Operands:
    """Two tensors that broadcast, of equal or different dtypes; mostly in one of the usual ways or of one shape, as in
    most calls, now and then one is 0-d, or both are the same.

    ``by_mpmath``: float64 is costly and kept small."""
    first, second = draw(dtype_names.pairs(dtypes))
    budget = elements(first, second) if by_mpmath else _sizes.ELEMENTS
    kinds = (*("broadcast",) * 4, *("usual",) * 10, "equal", "long", "ties", "ties", "0-d other", "0-d input", "same")
    # Powers of such large numbers are infinite, or 0.
    kinds += ("rounded",) if _rounded.pairs(tuple(dtypes)) and not by_mpmath else ()
    match draw(st.sampled_from(kinds)):
        case "broadcast":
            # With less than two dims there is little to broadcast.
            min_rank = draw(st.sampled_from((1, 2, 2)))
            shape, other = draw(shapes.broadcastable(2, shapes_of_results(min_rank, budget)))
        case "usual":
            shape, other = draw(shapes.usual(2, budget=budget))
        case "equal":
            shape = other = draw(shapes_of_results(1, budget))
        case "long":
            shape = other = (draw(shapes.long(budget)),)
        case "ties":
            # Enough of them that one way of rounding shows.
            shape = (draw(shapes.long(budget)),)
            # Of integers numbers of all magnitudes: products of two that 32 bits hold, which they do not, and numbers
            # with more bits than float32.
            found = (
                tensors.tensors(shape, name, values=_WITH_TIES[dtype_names.format_of(name).kind], specials=())
                for name in (first, second)
            )
            return draw(next(found)), draw(next(found))
        case "rounded":
            return draw(_rounded.operands(tuple(dtypes)))
        case "0-d other":
            shape, other = draw(shapes_of_results(budget=budget)), ()
        case "0-d input":
            shape, other = (), draw(shapes_of_results(budget=budget))
        case "same":
            return draw(tensors.tensors(shapes_of_results(budget=budget), first)), Same(0)
    return draw(tensors.tensors(shape, first)), draw(tensors.tensors(other, second))


_WITH_TIES = {"float": "ties", "int": "magnitudes", "uint": "magnitudes", "bool": "bytes"}
_WRAPPED = (-1, 255, 256, -129, 1000, 65536, 2**31, 2**32 - 1, 2**40)


@st.composite
def with_scalar(
    draw: st.DrawFn,
    dtypes: Sequence[str],
    *,
    wrapping: bool = False,
    first: bool = True,
    kinds: Sequence[str] = ("own", "bool", "int", "float", "not finite"),
) -> Operands:
    """A tensor and a Python scalar: bool, int or float, of the tensor's category ("own") or above it.

    ``wrapping``: now and then an int that an integer dtype has to wrap. ``first``: now and then the scalar comes first.
    """
    tensor = draw(tensors.tensors(shapes_of_results(), dtypes))
    kind = draw(st.sampled_from(kinds))
    if wrapping and tensor.dtype in dtype_names.INTEGRAL and draw(st.booleans()):
        scalar: Argument = draw(st.one_of(st.sampled_from(_WRAPPED), scalars.magnitudes("int64")))
    elif kind == "not finite":
        scalar = draw(st.sampled_from((math.nan, math.inf, -math.inf)))
    elif kind == "own" or (kind == "int" and tensor.dtype in dtype_names.INTEGRAL):
        scalar = draw(scalars.scalars(tensor.dtype))
    elif kind in ("int", "float") and tensor.dtype in dtype_names.HALF:
        # It must not be rounded to the half type: a number that this changes, and enough elements that it shows. Ints
        # are among the tensor's own.
        scalar, shape = draw(scalars.full_floats(tensor.dtype)), (draw(shapes.long(_sizes.ELEMENTS)),)
        tensor = draw(tensors.tensors(shape, tensor.dtype, values="normal", specials=()))
    else:
        # Representable also where an integral tensor promotes to float32 or bool to int64.
        scalar = draw(scalars.scalars(tensor.dtype if kind == "float" and is_float(tensor) else "int8", kinds=(kind,)))
    return (scalar, tensor) if first and draw(st.booleans()) else (tensor, scalar)


@cache
def _operands(dtypes: tuple[str, ...], wrapping: bool, kinds: tuple[str, ...]) -> st.SearchStrategy[Operands]:
    pairs = (tensor_pairs(dtypes), with_scalar(dtypes, wrapping=wrapping, kinds=kinds))
    # Twice an object of its own: one_of drops what it has already.
    return st.one_of(tensor_pairs(dtypes), *pairs)


def operands(
    dtypes: Sequence[str], *, wrapping: bool = False, kinds: Sequence[str] = ("own", "bool", "int", "float")
) -> st.SearchStrategy[Operands]:
    """Two tensors, or, half as often, a tensor and a Python scalar."""
    # Made once for each: Hypothesis spends more time on validating a strategy than on drawing from it.
    return _operands(tuple(dtypes), wrapping, tuple(kinds))


def is_tensor(argument: Argument) -> bool:
    return isinstance(argument, TensorSpec)


def is_float(spec: TensorSpec) -> bool:
    return dtype_names.is_floating(spec.dtype)


def meta(argument: Argument, operands: Sequence[Argument] = ()) -> Any:
    """The argument as torch's promotion rules see it: meta tensors without elements, scalars as they are."""
    if isinstance(argument, Same):
        argument = operands[argument.operand]
    if isinstance(argument, TensorSpec):
        return torch.empty(argument.shape, dtype=dtype_names.to_torch(argument.dtype), device="meta")
    return float(argument.value) if isinstance(argument, NonFinite) else argument


def result_of(operands: Sequence[Argument]) -> tuple[Shape, torch.dtype]:
    """Shape and common dtype of a call with these operands."""
    first, second = (meta(argument, operands) for argument in operands)
    shape = np.broadcast_shapes(*(x.shape for x in (first, second) if isinstance(x, torch.Tensor)))
    return tuple(shape), torch.result_type(first, second)


def castable(result: torch.dtype, dtypes: Sequence[str]) -> list[str]:
    """The named dtypes that torch lets ``out`` have where the result's is ``result``."""
    return [name for name in dtype_names.by_simplicity(dtypes) if torch.can_cast(result, dtype_names.to_torch(name))]


@st.composite
def outs(
    draw: st.DrawFn,
    shape: Shape,
    result: torch.dtype,
    operands: Sequence[Argument],
    dtypes: Sequence[str],
    *,
    exact: bool = False,
) -> TensorSpec | Same | None:
    """None mostly; else an ``out`` of the right or another size or dtype, of any layout that may be written, or the
    very first operand. None too where no named dtype can hold the result. ``exact``: torch wants the very dtype."""
    own = str(result).removeprefix("torch.")
    possible = [name for name in castable(result, dtypes) if name == own or not exact]
    kinds = ["none"] * 5
    if possible and not exact:
        kinds += ["dtype"]
    if own in possible:
        kinds += ["right", "right", "empty", "wrong size"]
    first = operands[0]
    if isinstance(first, TensorSpec) and first.shape == shape and not first.layout.expanded and first.dtype in possible:
        kinds += ["first operand"] * 2
    match draw(st.sampled_from(kinds)):
        case "right":
            return draw(tensors.tensors(shape, own, layouts=WRITABLE, values=("normal",), specials=("nan",)))
        case "dtype":
            return draw(tensors.tensors(shape, possible, layouts=WRITABLE, values=("normal",), specials=()))
        case "empty":
            return TensorSpec(shape=(0,), dtype=own)
        case "wrong size":
            sizes = [size for size in ((3,), (1,), (2, 5), (7, 1)) if size != shape]
            return TensorSpec(draw(st.sampled_from(sizes)), own)
        case "first operand":
            return Same(0)
    return None


def case(op: str, operands: Sequence[Argument], **kwargs: Argument) -> Case:
    """A Case without the keyword arguments that are None."""
    return Case(op=op, args=tuple(operands), kwargs={name: v for name, v in kwargs.items() if v is not None})


# --- refused calls -----------------------------------------------------------------------------------------------


@st.composite
def unbroadcastable(draw: st.DrawFn, dtypes: Sequence[str]) -> Operands:
    """Two tensors whose shapes do not broadcast."""
    first = draw(tensors.tensors(shapes.shapes(min_rank=1, max_rank=3, min_size=2, budget=512), dtypes))
    size = first.shape[-1] + draw(st.integers(1, 3))
    return first, draw(tensors.tensors((*first.shape[:-1], size), dtypes))


@st.composite
def refused_outs(
    draw: st.DrawFn,
    op: str,
    dtypes: Sequence[str],
    result: torch.dtype | None = None,
    *,
    others: Sequence[Argument] = (Same(0),),
    exact: bool = False,
) -> Case:
    """Calls whose ``out`` torch refuses: a dtype that cannot hold the result, one address for several elements, or
    some of an input's addresses.

    ``result``: the result's dtype where it is not the common one of the operands. ``others``: the arguments after the
    first. ``exact``: torch wants the very dtype of the result."""
    names = dtype_names.by_simplicity(dtypes)
    small = shapes.shapes(min_rank=1, max_rank=2, min_size=2, budget=512)
    first = draw(tensors.tensors(small, names, layouts="contiguous"))
    found = result or dtype_names.to_torch(first.dtype)
    good = [name for name in castable(found, names) if not exact or dtype_names.to_torch(name) == found]
    bad = [name for name in dtype_names.ALL if exact or not torch.can_cast(found, dtype_names.to_torch(name))]
    # A refusal does not depend on which dtypes are asked for, but what is named comes first.
    bad = [name for name in bad if name not in good]
    bad = [name for name in bad if name in names] or bad
    kinds = ["cast"] * bool(bad) + ["expanded"] * bool(good) + ["overlap"] * (first.dtype in good)
    out: TensorSpec | Same
    match draw(st.sampled_from(kinds)):
        case "cast":
            out = TensorSpec(first.shape, draw(st.sampled_from(bad)))
        case "expanded":
            layout = Layout(expanded=(draw(st.integers(0, len(first.shape) - 1)),))
            out = TensorSpec(first.shape, draw(st.sampled_from(good)), layout=layout)
        case "overlap":
            first = msgspec.structs.replace(first, layout=Layout(offset=1))
            out = Same(0, shift=-1)
    return case(op, (first, *others), out=out)


def numbers_into_out(op: str, dtypes: Sequence[str]) -> st.SearchStrategy[Case]:
    """Two numbers and an ``out`` of any dtype, which torch refuses on CUDA."""
    pairs = st.sampled_from(((2, 1), (2, 1.5), (1.5, 1), (True, False)))
    outs = tensors.tensors(st.sampled_from(((), (0,), (3,))), dtypes)
    return st.builds(lambda pair, out: case(op, pair, out=out), pairs, outs)


WRONG_TYPES: tuple[Argument, ...] = ("x", None, (1, 2))
"""What no operator takes in place of a tensor or number."""


# --- batches ------------------------------------------------------------------------------------------------------


def chosen(seed: int, dims: Sequence[int]) -> int | None:
    """One of the dims, by the seed of a case; None where there is none."""
    return dims[seed // 7 % len(dims)] if dims else None


def along(case: Case, shape: Shape, shapes: Sequence[Shape]) -> Batch | None:
    """A dim of ``shape``, to which operands of ``shapes`` broadcast, with those that are not broadcast along it."""
    dim = chosen(case_seed(case), [dim for dim, size in enumerate(shape) if size > 1])
    if dim is None:
        return None
    places = (dim - len(shape) + len(other) for other in shapes)
    fits = (place if place >= 0 and other[place] > 1 else None for place, other in zip(places, shapes, strict=True))
    return Batch(shape[dim], tuple(fits), dim)


def batch(case: Case) -> Batch | None:
    """Any dim of the result."""
    if isinstance(case.kwargs.get("out"), TensorSpec):
        return None
    shapes = [spec.shape for spec in case_operands(case)]
    return along(case, np.broadcast_shapes(*shapes), shapes)


def parts(call: Call, dims: Sequence[int] | None = None) -> Parts:
    """Each element of the result for itself; or what lies at each place of some ``dims``."""
    assert isinstance(call.result, torch.Tensor)
    shape = call.result.shape
    free = range(len(shape)) if dims is None else dims

    def along(tensor: torch.Tensor) -> tuple[int | None, ...]:
        first = len(shape) - tensor.ndim
        return tuple(
            first + dim if first + dim in free and size == shape[first + dim] else None
            for dim, size in enumerate(tensor.shape)
        )

    named = {**dict(enumerate(call.args)), **call.kwargs}
    tensors = {
        key: value for key, value in named.items() if isinstance(value, torch.Tensor) and value.ndim <= len(shape)
    }
    return Parts({key: along(value) for key, value in tensors.items()})


# --- benchmarks --------------------------------------------------------------------------------------------------


def benchmarks(
    op: str,
    operands: int,
    *,
    element_flops: int = 1,
    dtype: str = "bfloat16",
    result: str | None = None,
    more: Sequence[Argument] = (),
    strided: bool = False,
) -> tuple[Benchmark, ...]:
    """64 Mi elements, contiguous: what memory bandwidth bounds; and a small call, whose time is the host's.

    ``result``: the result's dtype where it is another one. ``more``: arguments after the tensors. ``strided``: also
    with the second of two operands transposed, a row, and a column."""
    size, written = (dtype_names.format_of(name).bits // 8 for name in (dtype, result or dtype))
    found = []
    if strided:
        side = 8192
        for other in (
            TensorSpec(shape=(side, side), dtype=dtype, layout=Layout(order=(1, 0))),
            TensorSpec(shape=(side,), dtype=dtype),
            TensorSpec(shape=(side, 1), dtype=dtype),
        ):
            moved = (size + written) * side**2 + size * math.prod(other.shape)
            case = Case(op=op, args=(TensorSpec(shape=(side, side), dtype=dtype), other, *more))
            found.append(Benchmark(case, moved, element_flops * side**2))
    for count in (1 << 26, 1024):
        args = (*(TensorSpec(shape=(count,), dtype=dtype) for _ in range(operands)), *more)
        found.append(Benchmark(Case(op=op, args=args), (operands * size + written) * count, element_flops * count))
    return tuple(found)
