"""``torch.bmm(input, mat2, *, out=None)``: the products of a batch of matrices."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from hypothesis import strategies as st
from msgspec.structs import replace

from conformance import cuda_refusals, oracle, product_bounds
from conformance.cases import Case, Same
from conformance.ops import _elementwise as elementwise
from conformance.ops import _expectations as expectations
from conformance.ops import _gradients_products as gradients
from conformance.ops import _models, _sizes
from conformance.ops import _products as products
from conformance.spec import Benchmark, Call, Expected, OpSpec
from strategies import dtypes as dtype_names
from strategies import models, tensors
from strategies.specs import Layout


@st.composite
def cases(draw: st.DrawFn, dtypes: Sequence[str], elements: int = 0, scenes: bool = False) -> Case:
    dtype = draw(dtype_names.dtypes([name for name in dtypes if name in products.DTYPES]))
    if elements:
        batch, m, k, n = draw(products.large_batches(elements))
    elif scenes:
        batch, m, k, n = draw(products.step(dtype == "float64"))
    else:
        m, k, n = draw(products.sizes(dtype == "float64", modest=True))
        batch = draw(products.batches(m, k, n))
        if draw(st.integers(0, 7)) == 7:
            # Scores of heads.
            batch = draw(st.sampled_from((8, 12, 14)))
            work = _sizes.FLOAT64_WORK // (16 if dtype == "float64" else 4)
            m, k, n = draw(models.products(work, ("scores",), _sizes.MANY_ELEMENTS // batch))
    options = draw(products.large_values(elements or batch * scenes, k))
    between = not elements and not scenes and draw(st.integers(0, 15)) == 15
    if between:
        # As many matrices as they have rows, which lie between those: strides alone tell one dim from the other.
        batch = m = draw(st.integers(2, 20))
        k, n = min(k, 40), min(n, 40)
    first = draw(tensors.tensors((batch, m, k), dtype, **options))
    if between:
        first = replace(first, layout=Layout(order=(1, 0, 2)))
    square = m == k == n
    second = Same(0) if square and draw(st.booleans()) else draw(products.weights((batch, k, n), dtype, **options))
    return elementwise.case("bmm", (first, second), out=draw(products.outs((batch, m, n), dtype)))


@st.composite
def refused(draw: st.DrawFn, dtypes: Sequence[str]) -> Case:
    if draw(st.integers(0, 2)):
        return draw(products.refused_of("bmm", dtypes, (2,)))
    dtype = draw(dtype_names.dtypes([name for name in dtypes if name in products.DTYPES]))
    # A batch of one does not broadcast.
    shapes = (((3, 5), (5, 4)), ((2, 3, 5), (5, 4)), ((2, 3, 5), (1, 5, 4)), ((1, 2, 3, 5), (1, 2, 5, 4)), ((5,), (5,)))
    return Case(op="bmm", args=tuple(draw(tensors.tensors(shape, dtype)) for shape in draw(st.sampled_from(shapes))))


def expected(call: Call) -> Expected:
    input, mat2 = call.args
    dtype = input.dtype
    if input.dtype != mat2.dtype or not dtype.is_floating_point:
        # Nothing is multiplied, and the result has the second dtype.
        return expectations.exactly(call, torch.bmm(input, mat2))
    found = products.product(oracle.operand(input, dtype), oracle.operand(mat2, dtype), dtype)
    bound = product_bounds.product(found.value, found.magnitude, found.spread, input.shape[2], dtype, found.equal)
    # Of several elements at one address, which CUDA refuses, the last one that is written stays, whichever that is.
    judged = found.judged & (not cuda_refusals.expanded_out(call))
    return expectations.within(call, found.value, bound, dtype, low=found.low, judged=judged)


def benchmark(batch: int, m: int, k: int, n: int, dtype: str = "bfloat16") -> Benchmark:
    return products.benchmark("bmm", (batch, m, n), k, (batch, m, k), (batch, k, n), dtype=dtype)


SPEC = OpSpec(
    name="bmm",
    reference=torch.bmm,
    cases=cases,
    large=lambda elements: lambda dtypes: cases(dtypes, elements),
    scenes=lambda dtypes: cases(dtypes, scenes=True),
    parts=products.parts,
    refused=refused,
    dtypes=products.DTYPES,
    outs=products.OUTS,
    batch=products.batch,
    mixes=False,
    expected=expected,
    gradients=gradients.product,
    # Square ones; the scores of attention: 4 sequences of 2048 tokens, 32 heads of 128; and a call of the host's time.
    benchmarks=(benchmark(16, 1024, 1024, 1024), benchmark(128, 2048, 128, 2048), benchmark(4, 32, 32, 32)),
    sampled=_models.bmm("bmm", 2),
    cuda_refuses=partial(cuda_refusals.cuda_refuses, "bmm"),
)
