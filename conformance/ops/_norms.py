"""What the norms share: rows of several trailing dims, affine parameters, and oracles row by row."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import mpmath
import msgspec
import numpy as np
import torch
from hypothesis import strategies as st

from conformance import features, float_formats, oracle
from conformance.cases import Argument, Case, Ints, operands, seed
from conformance.features import Features
from conformance.ops import _elementwise as elementwise
from conformance.ops import _sizes
from conformance.spec import Batch, Benchmark, Call, Parts
from strategies import dtypes as dtype_names
from strategies import models, shapes, tensors, values
from strategies.specs import Layout, TensorSpec

DTYPES = dtype_names.FLOATING

EPSILONS = (0.0, 0.0, 2.0**-17, 2.0**-20, 2.0**-40, 0.5, 1, 1e-5, 1e-6, 1e-8, 1e-3)
"""Some that every compute dtype holds exactly, and those that models have, which no half type holds."""
RECIPES = st.sampled_from((*(None,) * 16, *values.ROWS))
"""In one case in five rows of which a sum, a maximum or a variance is hard to have, without what hides that."""


# --- calls -------------------------------------------------------------------------------------------------------


@st.composite
def inputs(draw: st.DrawFn, dtypes: Sequence[str]) -> tuple[TensorSpec, tuple[int, ...]]:
    """A tensor and its last dims that are normalized: few long rows or many short ones, several dims, now and then
    none or empty ones, rows longer than any tile, or hidden states and heads of models."""
    dtype = draw(dtype_names.dtypes(dtypes))
    budget = _sizes.FLOAT64_ELEMENTS if dtype == "float64" else _sizes.ELEMENTS
    kind = draw(st.sampled_from(("rows", "rows", "rows", "dims", "dims", "dims", "long", "hidden", "heads")))
    if kind in ("long", "hidden", "heads") and dtype == "float64":
        kind = "rows"
    match kind:
        case "rows":
            shape: tuple[int, ...] = draw(
                shapes.reductions(min_size=1, max_rows=_sizes.ROWS, max_columns=_sizes.COLUMNS, budget=budget)
            )
            dims = 1
        case "dims":
            shape = draw(shapes.shapes(1, 5, budget=budget))
            dims = draw(st.integers(1, len(shape)))
        case "long":
            shape, dims = (draw(st.integers(1, 2)), draw(st.sampled_from(_sizes.LONG_COLUMNS))), 1
        case "hidden":
            shape, dims = (draw(st.integers(1, 3)), draw(models.widths(models.HIDDEN))), 1
        case "heads":
            heads, _, dim = draw(models.heads())
            shape, dims = (draw(st.integers(1, 3)), min(heads, budget // dim), dim), 1
    input = draw(tensors.tensors(shape, dtype))
    if kind == "heads" and draw(st.booleans()):
        # Beside other heads, as one projection gives them.
        _, heads, dim = shape
        layout = Layout(padding=(0, 2 * heads, 0), offset=heads * dim * draw(st.integers(0, 2)))
        input = msgspec.structs.replace(input, layout=layout)
    if (recipe := draw(RECIPES)) is not None:
        input = msgspec.structs.replace(input, values=recipe, specials=())
    return input, shape[-dims:]


@st.composite
def refused_shapes(draw: st.DrawFn, op: str, dtype: str) -> Case:
    """Calls whose ``normalized_shape`` or parameters do not fit, or are of the wrong type; ``eps`` too."""
    input = draw(tensors.tensors((2, 3, 5), dtype))
    wrong = st.sampled_from(((), (3,), (5, 3), (6, 5), (1, 5), (1, 2, 3, 5), (2, 3)))
    kinds = ("normalized_shape", "0-d", "int", "shape type", "weight shape", "weight type", "eps", "input")
    match draw(st.sampled_from(kinds)):
        case "normalized_shape":
            return Case(op=op, args=(input, draw(wrong)))
        case "0-d":
            return Case(op=op, args=(TensorSpec((), dtype), draw(st.sampled_from(((), (1,))))))
        case "int":
            weight = draw(st.one_of(st.none(), tensors.tensors((5,), dtype)))
            return elementwise.case(op, (input, draw(st.sampled_from((5, 5, 5, 3, -1, 0)))), weight=weight)
        case "shape type":
            return Case(op=op, args=(input, draw(st.sampled_from((True, None, "5", 5.0)))))
        case "weight shape":
            shape = draw(st.sampled_from(((3,), (1,), (), (1, 5), (3, 5))))
            return Case(op=op, args=(input, (5,)), kwargs={"weight": draw(tensors.tensors(shape, dtype))})
        case "weight type":
            return Case(op=op, args=(input, (5,)), kwargs={"weight": draw(st.sampled_from((1.0, "x", (1, 2))))})
        case "eps":
            return Case(op=op, args=(input, (5,)), kwargs={"eps": draw(st.sampled_from(("x", (1,))))})
    return Case(op=op, args=(draw(st.sampled_from((2.0, *elementwise.WRONG_TYPES))), (5,)))


@st.composite
def integers(draw: st.DrawFn, op: str) -> Case:
    """Integer inputs."""
    dtype = draw(dtype_names.dtypes(dtype_names.INTEGRAL + dtype_names.BOOL))
    return Case(op=op, args=(draw(tensors.tensors((3, 5), dtype)), (5,)))


def batch(case: Case) -> Batch | None:
    """Any dim that is not normalized."""
    input, shape = case.args[0], _normalized(case)
    assert isinstance(input, TensorSpec)
    rows = input.shape[: len(input.shape) - len(shape)]
    chosen = elementwise.chosen(seed(case), [dim for dim, size in enumerate(rows) if size > 1])
    return None if chosen is None else Batch(rows[chosen], (chosen, *[None] * (len(operands(case)) - 1)), chosen)


def widened(case: Case) -> Case | None:
    """An int for ``normalized_shape`` stands for the tuple of it; torch takes tuples alone."""
    if len(case.args) < 2 or type(case.args[1]) is not int:
        return None
    return msgspec.structs.replace(case, args=(case.args[0], (case.args[1],), *case.args[2:]), digests=())


def _normalized(case: Case) -> tuple[int, ...]:
    match case.args[1]:
        case int(size):
            return (size,)
        case tuple(shape) | Ints(shape):
            return shape
    raise AssertionError(f"normalized_shape of a call that is not refused is {case.args[1]!r}")


def parameters(draw: st.DrawFn, shape: tuple[int, ...], names: Sequence[str], dtype: str) -> dict[str, Argument]:
    """Each of the affine parameters mostly."""
    return {name: draw(tensors.tensors(shape, dtype)) for name in names if draw(st.integers(0, 3))}


def features_of(case: Case) -> Features:
    """The parameters have the shape that is normalized."""
    found = features.of({"input": case.args[0], "eps": case.kwargs.get("eps")})
    found["normalized"] = (f"{len(_normalized(case))} dims",)
    for name in ("weight", "bias"):
        if isinstance(spec := case.kwargs.get(name), TensorSpec):
            found |= {name: ("tensor",)} | features.tensor(name, spec, ("rank", "size", "row"))
    return found


def parts(call: Call) -> Parts:
    """Rows."""
    rank, shape = call.args[0].ndim, call.args[1]
    return elementwise.parts(call, range(rank - (1 if isinstance(shape, int) else len(shape))))


# --- oracles -----------------------------------------------------------------------------------------------------


def rows(input: torch.Tensor, shape: Sequence[int]) -> np.ndarray:
    """The elements as float64, a row to each group that is normalized together."""
    columns = math.prod(shape)
    return oracle.operand(input, input.dtype).reshape(input.numel() // max(columns, 1), columns)


def parameter(value: torch.Tensor | None, default: float, columns: int) -> np.ndarray:
    """A weight or bias as float64, of any dtype that it may have."""
    if value is None:
        return np.full(columns, default)
    return oracle.operand(value, torch.float64).reshape(-1)


def in_range(total: np.ndarray, squares: np.ndarray, scale: np.ndarray, dtype: torch.dtype) -> np.ndarray:
    """Rows that are judged: neither the sum of magnitudes nor that of squares leaves the range of the compute dtype,
    nor is their mean plus eps, ``scale``, so small that it lacks bits there."""
    large = oracle.in_range(total, dtype) & oracle.in_range(squares, dtype)
    if dtype == torch.float64:
        # Doubled, so that an overflow shows; what is not finite by nature has no squares that are.
        large = np.isfinite(2 * total) & np.isfinite(2 * squares)
    return large & ~((total > 0) & lacks_bits(scale, dtype))


def lacks_bits(scale: Any, dtype: torch.dtype) -> Any:
    """Whether a mean of squares plus eps is that small in the compute dtype."""
    form = float_formats.FORMATS[float_formats.compute_dtype(dtype)]
    return scale < math.ldexp(1.0, form.least + form.precision)


def exactly(
    function: Callable[..., list[mpmath.mpf]], value: np.ndarray, judged: np.ndarray, x: np.ndarray, *affine: np.ndarray
) -> oracle.Double:
    """``value`` of float64 operands, computed again by mpmath wherever it and all that it depends on are finite."""
    high, low = value.copy(), np.zeros(value.shape)
    plain = judged & np.isfinite(x).all(axis=1)
    if plain.any() and value.shape[1]:
        # A parameter that is not finite spoils its own column only.
        used = [np.broadcast_to(a, x.shape)[plain] for a in affine]
        again, rest = oracle.by_mpmath(function, x[plain], *(np.where(np.isfinite(a), a, 1.0) for a in used))
        keep = np.logical_and.reduce([np.isfinite(a) for a in used]) & np.isfinite(again)
        high[plain] = np.where(keep, again, value[plain])
        low[plain] = np.where(keep, rest, 0.0)
    return high, low


# --- benchmarks --------------------------------------------------------------------------------------------------


def benchmarks(op: str, names: Sequence[str], element_flops: int) -> tuple[Benchmark, ...]:
    """The rows that every reduction is timed on, with all parameters of ``names``."""
    found = []
    for count, columns, dtype in _sizes.BENCHMARK_ROWS:
        size = dtype_names.format_of(dtype).bits // 8
        kwargs: dict[str, Argument] = {name: TensorSpec((columns,), dtype) for name in names}
        case = Case(op=op, args=(TensorSpec((count, columns), dtype), (columns,)), kwargs=kwargs)
        moved = (2 * count + len(names)) * columns * size
        found.append(Benchmark(case, bytes=moved, flops=element_flops * count * columns))
    return tuple(found)
