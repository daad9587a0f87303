"""``torch.matmul(input, other, *, out=None)``: the product of vectors, matrices, or batches of them that broadcast."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import torch
from hypothesis import strategies as st
from msgspec.structs import replace

from conformance import cuda_refusals, oracle, product_bounds
from conformance.cases import Case
from conformance.ops import _elementwise as elementwise
from conformance.ops import _expectations as expectations
from conformance.ops import _gradients_products as gradients
from conformance.ops import _models, _sizes
from conformance.ops import _products as products
from conformance.spec import Benchmark, Call, Expected, OpSpec
from strategies import dtypes as dtype_names
from strategies import models, shapes, tensors
from strategies.specs import CONTIGUOUS, TensorSpec

RANKS = ("N, N", "N, 2", "2, N", "1, N", "N, 1", "2, 2", "1, 2", "2, 1", "1, 1")
"""Dims of the two operands; N is 3 or more."""


@st.composite
def cases(draw: st.DrawFn, dtypes: Sequence[str], elements: int = 0) -> Case:
    dtype = draw(dtype_names.dtypes([name for name in dtypes if name in products.DTYPES]))
    if elements:
        return draw(_large(dtype, elements))
    if draw(st.integers(0, 7)) == 7:
        first, second = draw(_of_models(dtype))
        options = draw(products.large_values(0, first[-1]))
        factors = draw(tensors.tensors(first, dtype, **options)), draw(products.weights(second, dtype, **options))
        return Case(op="matmul", args=factors)
    m, k, n = draw(products.sizes(dtype == "float64", modest=True))
    left, right = draw(st.sampled_from(RANKS)).split(", ")
    most = min(_sizes.PRODUCT_BATCH, max(2, _sizes.PRODUCT_BATCH_WORK // max(m * k * n, 1)))
    batch = shapes.shapes(min_rank=1, max_rank=5, budget=most)
    first, second = draw(shapes.broadcastable(2, batch)) if (left, right) == ("N", "N") else (draw(batch),) * 2
    if (left, right) == ("N", "N") and most >= 6 and not draw(st.integers(0, 3)):
        # One of more dims than the other, and of sizes that tell from which end they are matched.
        outer, inner = draw(st.sampled_from(((2, 3), (3, 2))))
        first, second = draw(st.permutations(((outer, inner), (inner,))))
    operands = {"1": ((k,), (k,)), "2": ((m, k), (k, n)), "N": ((*first, m, k), (*second, k, n))}
    shape = (operands[left][0], operands[right][1])
    options = draw(products.large_values(0, k))
    args = (draw(tensors.tensors(shape[0], dtype, **options)), draw(products.weights(shape[1], dtype, **options)))
    out = draw(products.outs(result_shape(*shape), dtype))
    if isinstance(out, TensorSpec) and (left == "N" != right or (left, right) == ("1", "N")):
        # torch may make one product of the batch, and refuses an out= in whose strides it is not one.
        out = replace(out, layout=CONTIGUOUS)
    return elementwise.case("matmul", args, out=out)


@st.composite
def _of_models(draw: st.DrawFn, dtype: str) -> tuple[tuple[int, ...], ...]:
    """A token of each of some sequences times a weight, or groups of heads times what each group shares."""
    work = _sizes.FLOAT64_WORK // 4 if dtype == "float64" else _sizes.FLOAT64_WORK
    if draw(st.booleans()):
        batch = draw(st.sampled_from((2, 3, 5, 8)))
        _, k, n = draw(models.products(work // batch, ("down", "up", "router")))
        return (batch, 1, k), (k, n)
    heads, ratio, dim = draw(models.heads())
    heads, ratio = min(heads, 3), max(min(ratio, 8), 2)
    batch, rows, keys = draw(st.integers(1, 2)), draw(st.integers(1, 4)), draw(shapes.sizes(1, 40))
    rows = min(rows, max(work // (batch * heads * ratio * dim * keys), 1))
    return (batch, heads, ratio, rows, dim), (batch, heads, 1, dim, keys)


@st.composite
def _large(draw: st.DrawFn, dtype: str, elements: int) -> Case:
    """Two matrices, two batches of them, which broadcast or not, the tokens of some sequences and a weight, or long
    vectors."""
    options = draw(products.large_values(elements))
    kind = draw(st.sampled_from(("matrices", "matrices", "batch", "batch", "broadcast", "tokens", "tokens", "vectors")))
    if kind == "tokens" and dtype == "float64":
        # Which is evaluated in double-double.
        kind = "vectors"
    if kind in ("tokens", "vectors"):
        shapes_of = _tokens() if kind == "tokens" else _vectors(elements)
        return Case(op="matmul", args=tuple(draw(tensors.tensors(one, dtype, **options)) for one in draw(shapes_of)))
    first: tuple[int, ...] = ()
    if kind == "matrices":
        m, k, n = draw(products.large_sizes(elements))
    else:
        size, m, k, n = draw(products.large_batches(elements))
        first = (size,)
    second = first
    if kind == "broadcast":
        m, k, n = (min(one, 8) for one in (m, k, n))
        batches = (((7, 1), (9,)), ((33, 1), (1, 5)), ((5, 1, 3), (1, 11, 1)))
        # More products than 16 bits count.
        many = ((260, 1), (1, 257)), ((257, 1), (260,))
        first, second = draw(st.sampled_from((*batches, *many) if elements >= 1 << 24 else batches))
    operands = (draw(tensors.tensors(shape, dtype, **options)) for shape in ((*first, m, k), (*second, k, n)))
    return Case(op="matmul", args=tuple(operands))


@st.composite
def scenes(draw: st.DrawFn, dtypes: Sequence[str]) -> Case:
    """One token times a weight, with or without dims before it, or a token of the heads of many sequences."""
    dtype = draw(dtype_names.dtypes([name for name in dtypes if name in products.DTYPES]))
    shape: tuple[tuple[int, ...], tuple[int, ...]]
    if draw(st.booleans()):
        m, k, n = draw(products.token(dtype == "float64"))
        shape = (*draw(st.sampled_from(((), (1,), (2,)))), m, k), (k, n)
    else:
        batch, m, k, n = draw(products.step(dtype == "float64"))
        outer = draw(st.sampled_from(((batch,), (2, batch // 2 + 1))))
        shape = (*outer, m, k), (*outer, k, n)
    options = draw(products.large_values(1))
    factors = draw(tensors.tensors(shape[0], dtype, **options)), draw(products.weights(shape[1], dtype, **options))
    return Case(op="matmul", args=factors)


@st.composite
def _tokens(draw: st.DrawFn) -> tuple[tuple[int, ...], ...]:
    """Of (B, T, K) and (K, N), of several blocks each."""
    terms, columns, side = draw(st.integers(128, 160)), draw(st.integers(128, 160)), st.integers(343, 700)
    return (draw(st.sampled_from((2, 3))), draw(side), terms), (terms, columns)


@st.composite
def _vectors(draw: st.DrawFn, elements: int) -> tuple[tuple[int, ...], ...]:
    """Of two vectors, of a vector and a matrix of few rows or columns, or of a vector and a few matrices of many."""
    terms, few = draw(shapes.near(elements // 64)), draw(st.integers(1, 8))
    batch, many = draw(st.sampled_from(((2,), (3,), (2, 2)))), draw(st.integers(4097, 5000))
    alone = ((terms,), (terms,)), ((few, terms), (terms,)), ((terms,), (terms, few))
    return draw(st.sampled_from((*alone, ((few,), (*batch, few, many)), ((*batch, many, few), (few,)))))


def result_shape(left: tuple[int, ...], right: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of the product of operands of these shapes."""
    rows = left[-2:-1]
    columns = right[-1:] if len(right) > 1 else ()
    return (*np.broadcast_shapes(left[:-2], right[:-2]), *rows, *columns)


@st.composite
def refused(draw: st.DrawFn, dtypes: Sequence[str]) -> Case:
    if draw(st.booleans()):
        return draw(products.refused_of("matmul", dtypes, ()))
    dtype = draw(dtype_names.dtypes([name for name in dtypes if name in products.DTYPES]))
    zero_dims = (((), (5,)), ((5,), ()), ((), (5, 4)), ((2, 3, 5), ()))
    inner = (((5,), (4,)), ((5,), (4, 3)), ((3, 5), (4,)), ((2, 3, 5), (4,)), ((2, 3, 5), (2, 4, 3)))
    batch = (((2, 3, 5), (3, 5, 4)), ((2, 1, 3, 5), (3, 2, 5, 4)))
    kinds = {"0-d": zero_dims, "inner": inner, "batch": batch, "integer": (((5,), (5,)), ((2, 3, 5), (2, 5, 4)))}
    kind = draw(st.sampled_from(list(kinds)))
    if kind == "integer":
        dtype = draw(dtype_names.dtypes(dtype_names.INTEGRAL + dtype_names.BOOL))
    found = draw(st.sampled_from(kinds[kind]))
    return Case(op="matmul", args=tuple(draw(tensors.tensors(shape, dtype)) for shape in found))


def expected(call: Call) -> Expected:
    input, other = call.args
    dtype = input.dtype
    if not dtype.is_floating_point:
        # Nothing is multiplied.
        return expectations.exactly(call, torch.matmul(input, other))
    left, right = oracle.operand(input, dtype), oracle.operand(other, dtype)
    shape = result_shape(left.shape, right.shape)
    found = products.product(np.atleast_2d(left), right[:, None] if right.ndim == 1 else right, dtype)
    bound = product_bounds.product(found.value, found.magnitude, found.spread, left.shape[-1], dtype, found.equal)
    low = None if found.low is None else found.low.reshape(shape)
    value, bound, judged = (array.reshape(shape) for array in (found.value, bound, found.judged))
    return expectations.within(call, value, bound, dtype, low=low, judged=judged)


def linear(tokens: tuple[int, ...], inner: int, outer: int, dtype: str = "bfloat16") -> Benchmark:
    """Activations of so many tokens times a weight."""
    return products.benchmark("matmul", (*tokens, outer), inner, (*tokens, inner), (inner, outer), dtype=dtype)


SPEC = OpSpec(
    name="matmul",
    reference=torch.matmul,
    cases=cases,
    large=lambda elements: lambda dtypes: cases(dtypes, elements),
    scenes=scenes,
    parts=products.parts,
    refused=refused,
    dtypes=products.DTYPES,
    outs=products.OUTS,
    batch=products.batch,
    mixes=False,
    expected=expected,
    gradients=gradients.product,
    # A linear layer of an 8B model on a prompt and on one token of each of 16 sequences; a call whose time is the
    # host's; and the second product of attention.
    benchmarks=(
        linear((4, 2048), 4096, 14336),
        linear((16, 1), 4096, 4096),
        linear((4, 16), 64, 64),
        products.benchmark(
            "matmul", (4, 32, 1024, 128), 1024, (4, 32, 1024, 1024), (4, 32, 1024, 128), dtype="bfloat16"
        ),
    ),
    sampled=_models.matmul("matmul", 3),
    cuda_refuses=partial(cuda_refusals.cuda_refuses, "matmul"),
)
