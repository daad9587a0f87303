"""``torch.mm(input, mat2, *, out=None)``: the product of two matrices."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from hypothesis import strategies as st

from conformance import bounds, deviations, oracle
from conformance.cases import Case, Same
from conformance.ops import _elementwise as elementwise
from conformance.ops import _products as products
from conformance.spec import Benchmark, Call, Expected, OpSpec
from strategies import dtypes as dtype_names
from strategies import tensors
from strategies.specs import Layout, TensorSpec

DTYPES = dtype_names.FLOATING


@st.composite
def outs(draw: st.DrawFn, shape: tuple[int, int], dtype: str) -> TensorSpec | None:
    """None mostly; else of the right size, empty or of another size, and of the result's dtype."""
    match draw(st.sampled_from(("none", "none", "none", "none", "right", "empty", "wrong size"))):
        case "right":
            return draw(tensors.tensors(shape, dtype, layouts=elementwise.WRITABLE, values="normal", specials=("nan",)))
        case "empty":
            return TensorSpec(shape=(0,), dtype=dtype)
        case "wrong size":
            return TensorSpec(shape=(shape[0] + 1, 3), dtype=dtype)
    return None


@st.composite
def cases(draw: st.DrawFn, dtypes: Sequence[str]) -> Case:
    dtype = draw(dtype_names.dtypes([name for name in dtypes if name in DTYPES]))
    m, k, n = draw(products.sizes(dtype == "float64"))
    first = draw(tensors.tensors((m, k), dtype))
    square = m == k == n
    second = Same(0) if square and draw(st.booleans()) else draw(tensors.tensors((k, n), dtype))
    return elementwise.case("mm", (first, second), out=draw(outs((m, n), dtype)))


@st.composite
def refused(draw: st.DrawFn, dtypes: Sequence[str]) -> Case:
    def matrix(shape: tuple[int, ...], dtype: str) -> TensorSpec:
        return draw(tensors.tensors(shape, dtype))

    names = [name for name in dtypes if name in DTYPES]
    dtype = draw(dtype_names.dtypes(names))
    m, k, n = (draw(st.integers(1, 20)) for _ in range(3))
    kinds = ["inner", "rank", "number", "type", "integer", "out dtype", "out expanded"] + ["mixed"] * (len(names) > 1)
    kind = draw(st.sampled_from(kinds))
    other = draw(dtype_names.dtypes([name for name in dtype_names.FLOATING if name != dtype]))
    match kind:
        case "inner":
            return Case(op="mm", args=(matrix((m, k), dtype), matrix((k + draw(st.integers(1, 3)), n), dtype)))
        case "rank":
            shapes = draw(st.sampled_from((((k,), (k, n)), ((m, k), (k,)), ((2, m, k), (2, k, n)), ((), (k, n)))))
            return Case(op="mm", args=tuple(matrix(shape, dtype) for shape in shapes))
        case "number":
            return Case(op="mm", args=(matrix((m, k), dtype), 2.0))
        case "type":
            return Case(op="mm", args=(matrix((m, k), dtype), draw(st.sampled_from(elementwise.WRONG_TYPES))))
        case "integer":
            whole = draw(dtype_names.dtypes(dtype_names.INTEGRAL + dtype_names.BOOL))
            return Case(op="mm", args=(matrix((m, k), whole), matrix((k, n), whole)))
        case "mixed":
            second = draw(dtype_names.dtypes([name for name in names if name != dtype]))
            return Case(op="mm", args=(matrix((m, k), dtype), matrix((k, n), second)))
        case "out dtype":
            out = TensorSpec(shape=(m, n), dtype=other)
            return Case(op="mm", args=(matrix((m, k), dtype), matrix((k, n), dtype)), kwargs={"out": out})
    out = TensorSpec(shape=(m, n + 1), dtype=dtype, layout=Layout(expanded=(1,)))
    return Case(op="mm", args=(matrix((m, k), dtype), matrix((k, n + 1), dtype)), kwargs={"out": out})


def expected(call: Call) -> Expected:
    input, mat2 = call.args
    dtype = input.dtype
    found = products.product(oracle.operand(input, dtype), oracle.operand(mat2, dtype), dtype)
    bound = bounds.product(found.value, found.magnitude, found.spread, input.shape[1], dtype)
    return elementwise.within(call, found.value, bound, dtype, low=found.low, judged=found.judged)


def benchmark(m: int, k: int, n: int, dtype: str) -> Benchmark:
    case = Case(op="mm", args=(TensorSpec(shape=(m, k), dtype=dtype), TensorSpec(shape=(k, n), dtype=dtype)))
    size = dtype_names.format_of(dtype).bits // 8
    return Benchmark(case, bytes=size * (m * k + k * n + m * n), flops=2 * m * k * n)


SPEC = OpSpec(
    name="mm",
    reference=torch.mm,
    cases=cases,
    refused=refused,
    dtypes=DTYPES,
    expected=expected,
    benchmarks=(
        *(benchmark(size, size, size, "bfloat16") for size in (1024, 4096, 8192)),
        benchmark(4096, 4096, 4096, "float32"),
    ),
    cuda_refuses=partial(deviations.cuda_refuses, "mm"),
)
