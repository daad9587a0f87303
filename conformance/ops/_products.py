"""What matrix products share: exact sums of products, what bounds them, and the calls to try."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import torch
from hypothesis import strategies as st

from conformance import oracle, product_bounds
from conformance.cases import Argument, Case, Same, operands
from conformance.ops import _elementwise as elementwise
from conformance.ops import _sizes
from conformance.spec import OUTS as every_out
from conformance.spec import Batch, Benchmark, Call, Parts
from strategies import dtypes as dtype_names
from strategies import layouts, models, shapes, tensors
from strategies.specs import Layout, TensorSpec

DTYPES = dtype_names.FLOATING
OUTS = tuple(kind for kind in every_out if kind not in ("input", "overlap", "turned", "rounded"))
"""torch overwrites a factor that is ``out`` while it still reads it."""


@dataclasses.dataclass(frozen=True)
class Product:
    """(*, M, K) @ (*, K, N) as the oracle sees it; float64 arrays of shape (*, M, N)."""

    value: np.ndarray
    low: np.ndarray | None
    """What ``value`` lacks, where the operands are float64."""
    magnitude: np.ndarray
    """sum |terms|, of the finite terms; subnormal factors of half types as ``product_bounds.aligned`` counts them."""
    spread: np.ndarray
    """sqrt(sum terms^2), of the finite terms; read for TF32 only, so 0 for other dtypes."""
    equal: np.ndarray
    """Tells where the terms are equal: ``product_bounds.equal_terms``."""
    judged: np.ndarray
    """False where the finite terms could leave the compute dtype's range."""


def product(a: np.ndarray, b: np.ndarray, dtype: torch.dtype) -> Product:
    """The product of float64 arrays that hold elements of ``dtype``; batch dims broadcast."""
    low = None
    with np.errstate(all="ignore"):
        finite_a, finite_b = _finite(a), _finite(b)
        if dtype == torch.float64:
            value, low = _each(finite_a, finite_b)
            # Doubled, so that an overflow of the sum of magnitudes shows.
            magnitude = np.abs(finite_a) @ np.abs(finite_b)
            judged = np.isfinite(2 * magnitude)
        else:
            value = finite_a @ finite_b
            magnitude = product_bounds.aligned(finite_a, dtype) @ product_bounds.aligned(finite_b, dtype)
            judged = oracle.in_range(magnitude, dtype)
        spread = (
            product_bounds.tf32_spread(finite_a, finite_b) if product_bounds.uses_tf32(dtype) else np.zeros_like(value)
        )
        equal = product_bounds.equal_terms(finite_a, finite_b, value)
        if finite_a is not a or finite_b is not b:
            special = _specials(a, b)
            value = np.where(np.isfinite(special), value, special)
    return Product(value, low, magnitude, spread, equal, judged)


def equal(a: torch.Tensor, b: torch.Tensor, value: np.ndarray, least: int) -> np.ndarray:
    """Return ``product_bounds.equal_terms`` of the finite elements of two matrices, whose product is ``value``."""
    first, second = (_finite(oracle.operand(one, one.dtype)) for one in (a, b))
    return product_bounds.equal_terms(first, second, value, least)


def _each(a: np.ndarray, b: np.ndarray) -> oracle.Double:
    """``oracle.matmul`` of each two matrices."""
    batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    a, b = (np.broadcast_to(x, (*batch, *x.shape[-2:])) for x in (a, b))
    high, low = np.empty((2, *batch, a.shape[-2], b.shape[-1]))
    for index in np.ndindex(batch):
        high[index], low[index] = oracle.matmul(a[index], b[index])
    return high, low


def _finite(a: np.ndarray) -> np.ndarray:
    finite = np.isfinite(a)
    return a if finite.all() else np.where(finite, a, 0.0)


def _specials(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """NaN or an infinity where the product is, else 0: matrix libraries are not asked how they add infinities."""
    nan_rows = np.isnan(a).any(axis=-1, keepdims=True)
    nan_columns = np.isnan(b).any(axis=-2, keepdims=True)
    inf_a, inf_b = np.isinf(a), np.isinf(b)
    positive = _any(inf_a & (a > 0), b > 0) | _any(inf_a & (a < 0), b < 0)
    positive |= _any(a > 0, inf_b & (b > 0)) | _any(a < 0, inf_b & (b < 0))
    negative = _any(inf_a & (a > 0), b < 0) | _any(inf_a & (a < 0), b > 0)
    negative |= _any(a > 0, inf_b & (b < 0)) | _any(a < 0, inf_b & (b > 0))
    undefined = nan_rows | nan_columns
    undefined |= _any(inf_a, b == 0) | _any(a == 0, inf_b) | (positive & negative)
    return np.where(undefined, np.nan, np.where(positive, np.inf, np.where(negative, -np.inf, 0.0)))


def _any(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Whether any term has both."""
    return np.greater(a.astype(np.float32) @ b.astype(np.float32), 0)


# --- calls -------------------------------------------------------------------------------------------------------


@st.composite
def sizes(draw: st.DrawFn, float64: bool, *, modest: bool = False) -> tuple[int, int, int]:
    """(M, K, N): mostly any; now and then one dim or all of them over several blocks, a long K, sizes of models, or a
    size of 0.

    ``modest``: smaller where nothing is said of blocks, for ops that share the kernel of ``mm``."""
    work = _sizes.FLOAT64_WORK if float64 else _sizes.PRODUCT_WORK
    small = shapes.sizes(1, 40)
    seldom = ("blocks", "blocks", "long", "long", "deep", "empty", "empty", *("models",) * 5)
    match draw(st.sampled_from((*("any",) * 6, *("wide",) * 4, *seldom))):
        case "any":
            largest = _sizes.PRODUCT_MODEST if modest else _sizes.PRODUCT_DIM
            return draw(shapes.products(min_size=1, max_size=largest, work=work))
        case "wide":
            found = [draw(small) for _ in range(3)]
            found[draw(st.integers(0, 2))] = draw(st.sampled_from(_sizes.PRODUCT_WIDE))
        case "blocks":
            several = st.sampled_from(_sizes.PRODUCT_BLOCKS_FLOAT64 if float64 else _sizes.PRODUCT_BLOCKS)
            found = [draw(several) for _ in range(3)]
        case "deep" if not float64:
            # A long K of as many blocks of rows and columns as are split.
            side = st.sampled_from((64, 65, 70))
            found = [draw(side), draw(st.sampled_from(_sizes.PRODUCT_DEEP)), draw(side)]
        case "long" | "deep":
            found = [draw(shapes.sizes(1, 20)), draw(st.sampled_from(_sizes.PRODUCT_TERMS)), draw(shapes.sizes(1, 20))]
        case "models":
            return draw(models.products(work))
        case "empty":
            found = [draw(shapes.sizes(0, 40)) for _ in range(3)]
            # Of no terms there is a result.
            found[draw(st.sampled_from((1, 0, 1, 2)))] = 0
    return found[0], found[1], found[2]


MANY_TERMS = 768
"""The least K whose numbers are mostly plain."""
_LARGE = ("rows", "columns", "terms", "tiles", "deep", "square", "layer")


@st.composite
def large_sizes(draw: st.DrawFn, elements: int) -> tuple[int, int, int]:
    """(M, K, N) of a large product: a square, a long K, many rows or columns, many tiles of few or many terms, a layer
    whose sizes are all multiples of 64, or a few tokens and a layer's weights, of a model or of any sizes; each matrix
    within ``elements``, weights within about twice that."""
    few = st.integers(1, 8)
    match draw(st.sampled_from((*_LARGE, *("weights",) * 2, *("linear",) * 3))):
        case "deep":
            # Several blocks of rows, of columns and of K, none of which need be full.
            side = st.integers(129, 160)
            return draw(side), draw(st.integers(513, 640)), draw(side)
        case "layer":
            side = st.sampled_from((256, 320, 512) if elements >= 1 << 24 else (256,))
            terms = draw(st.sampled_from((2048, 2112, 4096) if elements >= 1 << 24 else (2048, 2112)))
            return draw(side), terms, draw(side)
        case "weights" | "linear" as kind:
            tokens = draw(st.sampled_from((1, 2, 7, 16, 17, 33, 48, 64, 100, 128)))
            # Many tokens times the largest weights take torch's CPU a minute, of float16.
            most = elements if tokens < 48 else min(elements, _sizes.WHOLE)
            if kind == "linear":
                return tokens, *draw(models.linear(max(most, min(2 * most, 2 * _sizes.WHOLE))))
            terms = math.isqrt(most) * draw(st.sampled_from((1, 1, 2, 4))) + draw(st.sampled_from((0, 1, 32, -3)))
            columns = max(most, min(2 * most, 2 * _sizes.WHOLE)) // terms + draw(st.integers(-40, 40))
            return tokens, terms, max(columns, 1)
        case "rows":
            return draw(shapes.near(elements // 16)), draw(few), draw(few)
        case "columns":
            return draw(few), draw(few), draw(shapes.near(elements // 16))
        case "terms":
            # Interpreted, a tile of the result takes as long as it has blocks of K.
            return draw(few), draw(shapes.near(elements // 64)), draw(few)
        case "tiles":
            side = math.isqrt(elements // 4)
            return draw(shapes.near(side)), draw(few), draw(shapes.near(side))
    side = draw(shapes.near(int((elements * _sizes.LARGE_TERMS) ** (1 / 3) + 0.5)))
    return side, side, side


@st.composite
def token(draw: st.DrawFn, float64: bool) -> tuple[int, int, int]:
    """(M, K, N) of the commonest of calls: one token, now and then a few, times a weight of many rows and columns."""
    weights = _sizes.PRODUCT_WEIGHT_FLOAT64 if float64 else _sizes.PRODUCT_WEIGHT
    terms = draw(models.widths(models.WIDTHS, weights // 65))
    columns = min(max(weights // terms - draw(st.integers(0, 40)), 65), 4096)
    return draw(st.sampled_from((1, 1, 1, 2, 3, 4))), terms, columns


@st.composite
def step(draw: st.DrawFn, float64: bool) -> tuple[int, int, int, int]:
    """(B, M, K, N) of a step of decoding: a token of the heads of many sequences, and the keys or values of each."""
    batch, dim = draw(st.integers(129, 160)), draw(models.widths(models.HEAD_DIMS, 64 if float64 else 128))
    work = _sizes.FLOAT64_WORK if float64 else _sizes.PRODUCT_WORK
    keys = draw(shapes.sizes(1, work // (batch * dim)))
    inner, outer = draw(st.permutations((dim, max(keys, 1))))
    return batch, 1, inner, outer


@st.composite
def large_values(draw: st.DrawFn, elements: int, terms: int = 0) -> dict[str, Sequence[str]]:
    """Options of tensors: of most large calls, and of those of many terms, numbers of which each term counts, since one
    NaN of a long K hides all others."""
    if not (elements or terms >= MANY_TERMS) or draw(st.integers(0, 3)) == 3:
        return {}
    return {"values": ("normal", "uniform", "integers", "positive", "uneven"), "specials": ()}


@st.composite
def weights(draw: st.DrawFn, shape: tuple[int, ...], dtype: str, **options: Any) -> TensorSpec:
    """A second factor: in one call of four turned, as layers keep their weights, whole or a part of packed ones; in one
    of sixteen plain in one part, as pruned ones seem to be throughout."""
    spec = draw(tensors.tensors(shape, dtype, **options))
    # By the seed, so that other draws stay what they are.
    if "values" not in options and dtype_names.is_floating(dtype) and spec.seed % 16 == 7:
        spec = msgspec.structs.replace(spec, values="partly_plain", specials=())
    if len(shape) < 2 or min(shape[-2:]) < 2 or draw(st.integers(0, 3)) < 3:
        return spec
    rank = len(shape)
    order = (*range(rank - 2), rank - 1, rank - 2)
    layout = layouts.part(draw, shape, order) if draw(st.booleans()) else Layout(order=order)
    return msgspec.structs.replace(spec, layout=layout)


@st.composite
def large_batches(draw: st.DrawFn, elements: int) -> tuple[int, int, int, int]:
    """(B, M, K, N) of a large batch: many small products, some of several tiles each, or a few large ones."""
    few, kind = st.integers(1, 4), draw(st.sampled_from(("many", "many", "some", "large", "large")))
    if kind == "some":
        side = st.integers(65, 140)
        return draw(st.integers(9, 20)), draw(side), draw(few), draw(side)
    if kind == "many":
        # Interpreted, each product costs as much as a whole tile.
        most = elements // (128 if elements >= 1 << 24 else 1024)
        return draw(shapes.near(most)), draw(few), draw(few), draw(few)
    return draw(st.sampled_from((1, 2, 3))), *draw(large_sizes(elements // 4))


def parts(call: Call) -> Parts:
    """Rows and columns of matrices of one batch or none; of addmm's ``input`` what goes with them."""
    assert isinstance(call.result, torch.Tensor)
    *added, left, right = (x for x in call.args if isinstance(x, torch.Tensor))
    rank = call.result.ndim
    axes: dict[int | str, tuple[int | None, ...]] = {}
    if left.ndim == right.ndim == rank and rank > 1:
        batch = tuple(
            dim if left.shape[dim] == right.shape[dim] == call.result.shape[dim] else None for dim in range(rank - 2)
        )
        axes = {len(added): (*batch, rank - 2, None), len(added) + 1: (*batch, None, rank - 1)}
        if added:
            axes[0] = elementwise.parts(call).axes[0]
    return Parts(axes, left.shape[-1])


@st.composite
def batches(draw: st.DrawFn, m: int, k: int, n: int) -> int:
    """The size of a batch of products of these sizes: mostly a few, 0 now and then, more where they are small."""
    work = m * k * n
    least = 1 if work > 4 * _sizes.PRODUCT_WORK else 2
    most = min(_sizes.PRODUCT_BATCH, max(least, _sizes.PRODUCT_BATCH_WORK // max(work, 1)))
    return draw(st.sampled_from((2, 1, 3, 0, most)).filter(lambda size: size <= most))


def batch(case: Case) -> Batch | None:
    """A dim of the batch of matrices, with the operands that are not broadcast along it; else the rows of the first."""
    if "out" in case.kwargs:
        return None
    batches = [spec.shape[:-2] for spec in operands(case)]
    found = elementwise.along(case, np.broadcast_shapes(*batches), batches)
    return _rows(case) if found is None else found


def _rows(case: Case) -> Batch | None:
    if any(isinstance(argument, Same) for argument in case.args):
        return None
    *added, left, right = (spec.shape for spec in operands(case))
    if len(left) < 2 or left[-2] < 2:
        return None
    along_added = (len(shape) - 2 if len(shape) > 1 and shape[-2] > 1 else None for shape in added)
    return Batch(left[-2], (*along_added, len(left) - 2, None), max(len(left), len(right)) - 2)


@st.composite
def outs(draw: st.DrawFn, shape: tuple[int, ...], dtype: str) -> TensorSpec | None:
    """None mostly; else of the right size, empty or of another size, and of the result's dtype."""
    match draw(st.sampled_from(("none", "none", "none", "none", "right", "empty", "wrong size"))):
        case "right":
            return draw(tensors.tensors(shape, dtype, layouts=elementwise.WRITABLE, values="normal", specials=("nan",)))
        case "empty":
            return TensorSpec(shape=(0,), dtype=dtype)
        case "wrong size":
            wrong = (*shape[:-2], shape[-2] + 1, 3) if len(shape) > 1 else (7,)
            return TensorSpec(shape=wrong, dtype=dtype)
    return None


@st.composite
def refused_of(draw: st.DrawFn, op: str, dtypes: Sequence[str], batch: tuple[int, ...], *first: TensorSpec) -> Case:
    """What torch refuses of every product of matrices: inner sizes, numbers, types, integers and ``out``.

    ``first``: operands before the two matrices, of the dtype float32, which is replaced."""
    names = [name for name in dtypes if name in DTYPES]
    dtype = draw(dtype_names.dtypes(names))
    m, k, n = (draw(st.integers(2, 20)) for _ in range(3))
    kinds = ["inner", "number", "type", "integer", "out dtype", "out expanded"] + ["mixed"] * (len(names) > 1)

    def matrix(rows: int, columns: int, dtype: str = dtype) -> TensorSpec:
        return draw(tensors.tensors((*batch, rows, columns), dtype))

    def case(*matrices: Argument, dtype: str = dtype, **kwargs: Argument) -> Case:
        before = (TensorSpec(spec.shape, dtype) for spec in first)
        return Case(op=op, args=(*before, *matrices), kwargs=kwargs)

    match draw(st.sampled_from(kinds)):
        case "inner":
            return case(matrix(m, k), matrix(k + draw(st.integers(1, 3)), n))
        case "number":
            return case(matrix(m, k), 2.0)
        case "type":
            return case(matrix(m, k), draw(st.sampled_from(elementwise.WRONG_TYPES)))
        case "integer":
            whole = draw(dtype_names.dtypes(dtype_names.INTEGRAL + dtype_names.BOOL))
            return case(matrix(m, k, whole), matrix(k, n, whole), dtype=whole)
        case "mixed":
            second = draw(dtype_names.dtypes([name for name in names if name != dtype]))
            return case(matrix(m, k), matrix(k, n, second))
        case "out dtype":
            other = draw(dtype_names.dtypes([name for name in DTYPES if name != dtype]))
            return case(matrix(m, k), matrix(k, n), out=TensorSpec(shape=(*batch, m, n), dtype=other))
    out = TensorSpec(shape=(*batch, m, n), dtype=dtype, layout=Layout(expanded=(len(batch) + 1,)))
    return case(matrix(m, k), matrix(k, n), out=out)


# --- benchmarks --------------------------------------------------------------------------------------------------


def benchmark(op: str, result: tuple[int, ...], terms: int, *operands: tuple[int, ...], dtype: str) -> Benchmark:
    """A product with this result, each element the sum of ``terms`` terms, of operands of these shapes."""
    case = Case(op=op, args=tuple(TensorSpec(shape=shape, dtype=dtype) for shape in operands))
    size = dtype_names.format_of(dtype).bits // 8
    moved = sum(math.prod(shape) for shape in (*operands, result))
    return Benchmark(case, bytes=size * moved, flops=2 * math.prod(result) * terms)
