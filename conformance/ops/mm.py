"""``torch.mm(input, mat2, *, out=None)``: the product of two matrices."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from hypothesis import strategies as st

from conformance import cuda_refusals, oracle, product_bounds
from conformance.cases import Case, Same
from conformance.ops import _elementwise as elementwise
from conformance.ops import _expectations as expectations
from conformance.ops import _gradients_products as gradients
from conformance.ops import _models, _sizes
from conformance.ops import _products as products
from conformance.spec import Benchmark, Call, Expected, OpSpec
from strategies import dtypes as dtype_names
from strategies import tensors


@st.composite
def cases(draw: st.DrawFn, dtypes: Sequence[str], elements: int = 0, scenes: bool = False) -> Case:
    dtype = draw(dtype_names.dtypes([name for name in dtypes if name in products.DTYPES]))
    sizes = products.token if scenes else products.sizes
    m, k, n = draw(products.large_sizes(elements) if elements else sizes(dtype == "float64"))
    options = draw(products.large_values(elements, k))
    first = draw(tensors.tensors((m, k), dtype, **options))
    square = m == k == n
    second = Same(0) if square and draw(st.booleans()) else draw(products.weights((k, n), dtype, **options))
    return elementwise.case("mm", (first, second), out=draw(products.outs((m, n), dtype)))


@st.composite
def refused(draw: st.DrawFn, dtypes: Sequence[str]) -> Case:
    if draw(st.integers(0, 5)):
        return draw(products.refused_of("mm", dtypes, ()))
    dtype = draw(dtype_names.dtypes([name for name in dtypes if name in products.DTYPES]))
    ranks = draw(st.sampled_from((((5,), (5, 4)), ((3, 5), (5,)), ((2, 3, 5), (2, 5, 4)), ((), (5, 4)))))
    return Case(op="mm", args=tuple(draw(tensors.tensors(shape, dtype)) for shape in ranks))


def expected(call: Call) -> Expected:
    input, mat2 = call.args
    dtype = input.dtype
    if not dtype.is_floating_point:
        # Nothing is multiplied.
        return expectations.exactly(call, torch.mm(input, mat2))
    found = products.product(oracle.operand(input, dtype), oracle.operand(mat2, dtype), dtype)
    bound = product_bounds.product(found.value, found.magnitude, found.spread, input.shape[1], dtype, found.equal)
    return expectations.within(call, found.value, bound, dtype, low=found.low, judged=found.judged)


def benchmark(m: int, k: int, n: int, dtype: str = "bfloat16") -> Benchmark:
    return products.benchmark("mm", (m, n), k, (m, k), (k, n), dtype=dtype)


SPEC = OpSpec(
    name="mm",
    reference=torch.mm,
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
    benchmarks=(
        *(benchmark(size, size, size, dtype) for size, dtype in _sizes.BENCHMARK_SQUARES),
        *(benchmark(tokens, *weight) for weight in _sizes.BENCHMARK_WEIGHTS for tokens in _sizes.BENCHMARK_TOKENS),
    ),
    sampled=_models.mm("mm", 6),
    cuda_refuses=partial(cuda_refusals.cuda_refuses, "mm"),
)
