"""``torch.nn.functional.softmax(input, dim, dtype=None)``."""

from __future__ import annotations

from collections.abc import Sequence

import mpmath
import msgspec
import numpy as np
import torch
from hypothesis import strategies as st

from conformance import bounds, oracle
from conformance.cases import Case, DType, seed
from conformance.ops import _elementwise as elementwise
from conformance.ops import _expectations as expectations
from conformance.ops import _gradients_rows as gradients
from conformance.ops import _large, _models, _scenes, _sizes, _special_rows
from conformance.ops import _norms as norms
from conformance.spec import Batch, Benchmark, Call, Expected, OpSpec, Parts
from strategies import dtypes as dtype_names
from strategies import models, shapes, tensors
from strategies.layouts import CLASSES
from strategies.specs import Special, TensorSpec
from strategies.values import MASKED

DTYPES = dtype_names.FLOATING
CAST = ("int32", "int64", "uint8", "bool")
"""Dtypes that are taken with ``dtype=`` alone."""


def softmax(input: torch.Tensor, dim: int, dtype: torch.dtype | None = None) -> torch.Tensor:
    """torch's function without its private argument."""
    return torch.nn.functional.softmax(input, dim, dtype=dtype)


@st.composite
def inputs(draw: st.DrawFn, dtypes: Sequence[str], float64: bool) -> tuple[TensorSpec, int]:
    """A tensor and one of its dims: any shape, rows of several blocks, or what models have; now and then with blocks or
    rows of -inf."""
    budget = _sizes.FLOAT64_ELEMENTS if float64 else _sizes.ELEMENTS
    if draw(st.integers(0, 15)) == 15:
        return draw(masked_from_the_left(dtypes, float64)), -1
    kind = draw(st.sampled_from(("rows", "rows", "rows", "any", "any", "any", "model", "channels")))
    if kind == "rows":
        rows, columns = draw(
            shapes.reductions(min_size=1, max_rows=_sizes.ROWS, max_columns=_sizes.COLUMNS, budget=budget)
        )
        # The dim of the rows may be first: then neighbours in a row lie far apart.
        shape, dim = draw(st.sampled_from((((rows, columns), -1), ((columns, rows), 0), ((1, columns, rows), 1))))
    elif kind == "model":
        shape, dim = draw(_of_models(budget)), -1
    elif kind == "channels":
        # The classes of each pixel.
        rank = draw(st.sampled_from((4, 3)))
        shape, dim = draw(shapes.shapes(rank, rank, min_size=1, budget=budget)), 1
    else:
        rank = draw(st.sampled_from((1, 2, 3, 4, 5, 0)))
        shape = draw(shapes.shapes(rank, rank, budget=budget))
        dim = draw(shapes.dims(shape))
    classes = ("contiguous", "channels_last", "mixed") if kind == "channels" else CLASSES
    input = draw(tensors.tensors(shape, dtypes, layouts=classes))
    if input.dtype in dtype_names.FLOATING and draw(st.integers(0, 3)) == 3 and input.shape:
        start = draw(st.sampled_from((0, 1, input.shape[-1])))
        run = draw(st.sampled_from((1, 16, 64, 256, input.shape[-1])))
        left_out = draw(st.sampled_from(("-inf", "-inf", MASKED)))
        specials = (*input.specials[:2], Special(start, left_out, max(run, 1)))
        input = TensorSpec(input.shape, input.dtype, input.values, input.seed, input.layout, specials)
    elif input.dtype in dtype_names.FLOATING and (recipe := draw(norms.RECIPES)) is not None:
        input = msgspec.structs.replace(input, values=recipe, specials=())
    return input, dim


@st.composite
def _of_models(draw: st.DrawFn, budget: int) -> shapes.Shape:
    """Tokens by experts, or heads by queries by keys."""
    if draw(st.booleans()):
        columns = draw(models.widths(models.EXPERTS))
        return draw(shapes.sizes(1, max(min(70, budget // columns), 1))), columns
    columns, heads = draw(models.widths(models.KEYS)), draw(st.integers(1, 4))
    return heads, draw(shapes.sizes(1, max(budget // (columns * heads), 1))), columns


@st.composite
def masked_from_the_left(draw: st.DrawFn, dtypes: Sequence[str], float64: bool) -> TensorSpec:
    """Rows the first of which begins with -inf, as many as a tile has or a few tiles."""
    masked = draw(st.sampled_from((1024,) if float64 else (1024, 2048, 2048, 4096)))
    rest = draw(shapes.sizes(1, 100 if float64 else 600))
    input = draw(tensors.tensors((draw(st.sampled_from((1, 1, 2))), masked + rest), dtypes, specials=()))
    if not dtype_names.is_floating(input.dtype):
        return input
    return msgspec.structs.replace(input, specials=(Special(0, "-inf", masked),))


@st.composite
def cases(draw: st.DrawFn, dtypes: Sequence[str]) -> Case:
    floats = [name for name in dtypes if name in DTYPES]
    if floats:
        target = draw(st.one_of(st.none(), st.none(), dtype_names.dtypes(floats)))
    else:
        target = draw(dtype_names.dtypes(DTYPES))
    dtype = draw(dtype_names.dtypes(dtypes if target else floats))
    input, dim = draw(inputs((dtype,), "float64" in (dtype, target)))
    return elementwise.case("softmax", (input, dim), dtype=DType(target) if target else None)


@st.composite
def refused(draw: st.DrawFn, dtypes: Sequence[str]) -> Case:
    floats = [name for name in dtypes if name in DTYPES] or DTYPES
    input = draw(tensors.tensors(shapes.shapes(max_rank=3, min_size=1, budget=512), floats))
    rank = max(len(input.shape), 1)
    whole = st.sampled_from(dtype_names.INTEGRAL + dtype_names.BOOL)
    match draw(st.sampled_from(("dim", "dim type", "integer", "integer dtype", "dtype"))):
        case "dim":
            return Case(op="softmax", args=(input, draw(st.sampled_from((rank, rank + 3, -rank - 1)))))
        case "dim type":
            return Case(op="softmax", args=(input, draw(st.sampled_from((0.0, (0,))))))
        case "integer":
            integers = draw(tensors.tensors((3, 5), draw(whole)))
            return Case(op="softmax", args=(integers, -1))
        case "integer dtype":
            return Case(op="softmax", args=(input, -1), kwargs={"dtype": DType(draw(whole))})
    return Case(op="softmax", args=(input, -1), kwargs={"dtype": draw(st.sampled_from(("float32", 3)))})


def batch(case: Case) -> Batch | None:
    """Any other dim."""
    input, dim = case.args
    assert isinstance(input, TensorSpec)
    assert isinstance(dim, int)
    rows = [other for other, size in enumerate(input.shape) if size > 1 and other != dim % len(input.shape)]
    chosen = elementwise.chosen(seed(case), rows)
    return None if chosen is None else Batch(input.shape[chosen], (chosen,), chosen)


def parts(call: Call) -> Parts:
    """Rows."""
    input, dim, _ = arguments(*call.args, **call.kwargs)
    return elementwise.parts(call, [other for other in range(input.ndim) if other != dim % input.ndim])


def expected(call: Call) -> Expected:
    input, dim, dtype = arguments(*call.args, **call.kwargs)
    if not input.numel():
        return expectations.exactly(call, input.to(dtype))
    x = oracle.operand(input, dtype)
    rows = np.moveaxis(x.reshape(x.shape or (1,)), dim, -1)
    low = None
    with np.errstate(all="ignore"):
        # An empty row has no largest element, and a row without one no result.
        largest = rows.max(axis=-1, keepdims=True, initial=-np.inf)
        below = largest - rows
        if dtype == torch.float64:
            value, low = oracle.by_mpmath(_softmax, np.ascontiguousarray(rows))
            low = np.moveaxis(low, -1, dim).reshape(x.shape)
        else:
            terms = np.exp(-below)
            value = terms / terms.sum(axis=-1, keepdims=True)
        bound = bounds.softmax(value, below, dtype)
    value, bound = (np.moveaxis(a, -1, dim).reshape(x.shape) for a in (value, bound))
    return expectations.within(call, value, bound, dtype, low=low)


def arguments(input: torch.Tensor, dim: int, dtype: torch.dtype | None = None) -> tuple[torch.Tensor, int, torch.dtype]:
    return input, dim, dtype or input.dtype


def _softmax(row: list[mpmath.mpf]) -> list[mpmath.mpf]:
    largest = max(row, default=mpmath.mpf(0))
    if any(mpmath.isnan(x) for x in row) or mpmath.isinf(largest):
        return [mpmath.nan] * len(row)
    terms = [mpmath.exp(x - largest) for x in row]
    total = mpmath.fsum(terms)
    return [term / total for term in terms]


def benchmark(rows: int, columns: int, dtype: str, op: str = "softmax") -> Benchmark:
    size = dtype_names.format_of(dtype).bits // 8
    case = Case(op=op, args=(TensorSpec(shape=(rows, columns), dtype=dtype), -1))
    # Per element a comparison, a subtraction, an exponential, an addition and a division.
    return Benchmark(case, bytes=2 * rows * columns * size, flops=5 * rows * columns)


SPEC = OpSpec(
    name="softmax",
    reference=softmax,
    cases=cases,
    large=_large.normalized(cases, models.VOCABULARIES),
    scenes=_scenes.of_rows(cases),
    apart=(
        _scenes.plain_rows(cases),
        _special_rows.masked_rows(cases),
        _special_rows.marked_rows(cases),
        _special_rows.filtered_rows(cases),
    ),
    refused=refused,
    dtypes=(*DTYPES, *CAST),
    batch=batch,
    parts=parts,
    expected=expected,
    gradients=gradients.softmax,
    benchmarks=tuple(benchmark(*shape) for shape in _sizes.BENCHMARK_ROWS),
    sampled=_models.softmax("softmax", 2.5),
)
