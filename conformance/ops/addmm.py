"""``torch.addmm(input, mat1, mat2, *, beta=1, alpha=1, out=None)``: beta * input + alpha * (mat1 @ mat2)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import torch
from hypothesis import strategies as st

from conformance import cpu_cuda_differences, cuda_refusals, oracle, product_bounds
from conformance.cases import Argument, Case, Same
from conformance.ops import _elementwise as elementwise
from conformance.ops import _expectations as expectations
from conformance.ops import _gradients_products as gradients
from conformance.ops import _models
from conformance.ops import _products as products
from conformance.spec import Benchmark, Call, Expected, OpSpec
from strategies import dtypes as dtype_names
from strategies import scalars, tensors
from strategies.specs import TensorSpec

_SLIGHT = (2.0**-24, -(2.0**-30), 2.0**-21, -(2.0**-40))


def factors(dtype: str) -> st.SearchStrategy[Argument]:
    """None (leave it out) often, else a number: 0 often, since it is special."""
    number = scalars.scalars(dtype, magnitude=2.0**7, specials=False)
    special = st.sampled_from((0, 0.0, -1, -2, True, False))
    return st.sampled_from((st.none(), st.none(), number, special, special)).flatmap(lambda kind: kind)


@st.composite
def cases(draw: st.DrawFn, dtypes: Sequence[str], elements: int = 0, scenes: bool = False) -> Case:
    dtype = draw(dtype_names.dtypes([name for name in dtypes if name in products.DTYPES]))
    sizes = products.token if scenes else partial(products.sizes, modest=True)
    m, k, n = draw(products.large_sizes(elements) if elements else sizes(dtype == "float64"))
    shape = draw(st.sampled_from(((n,), (m, n), (m, n), (1, n), (m, 1), (1, 1), (1,), ())))
    input = draw(tensors.tensors(shape, dtype))
    options = draw(products.large_values(elements, k))
    scale = {"beta": draw(factors(dtype)), "alpha": draw(factors(dtype))}
    kind = 0 if elements or scenes else draw(st.integers(0, 19))
    if kind == 18:
        # A factor may be next to nothing beside what it is multiplied with.
        options = {"values": ("normal_tiny",), "specials": ()}
        input = draw(tensors.tensors(shape, dtype, values=("normal_large",), specials=()))
        scale = {"beta": draw(st.sampled_from(_SLIGHT)), "alpha": draw(factors(dtype))}
    if kind == 17:
        # As a scale of a loss has it: beyond float16, of operands that keep the result within.
        options = {"values": ("normal_tiny",), "specials": ()}
        input = draw(tensors.tensors(shape, dtype, **options))
        scale = {name: draw(st.sampled_from((None, 65536.0, 65520.0, -98304, 131072.0))) for name in scale}
    if kind in (13, 14, 15, 16):
        # As many rows as columns, so that a column may be taken for a row.
        m = n = max(min(m, n), 2)
        input = draw(tensors.tensors(draw(st.sampled_from(((m, 1), (m, 1), (1, n), (n,)))), dtype))
    mat1, mat2 = draw(tensors.tensors((m, k), dtype, **options)), draw(products.weights((k, n), dtype, **options))
    out: Argument = draw(products.outs((m, n), dtype))
    if out is None and input.shape == (m, n) and not input.layout.expanded and draw(st.booleans()):
        out = Same(0)
    return elementwise.case("addmm", (input, mat1, mat2), out=out, **scale)


@st.composite
def refused(draw: st.DrawFn, dtypes: Sequence[str]) -> Case:
    names = [name for name in dtypes if name in products.DTYPES]
    dtype = draw(dtype_names.dtypes(names))
    if draw(st.booleans()):
        return draw(products.refused_of("addmm", dtypes, (), TensorSpec((1,), "float32")))
    mat1, mat2 = TensorSpec((3, 5), dtype), TensorSpec((5, 4), dtype)
    match draw(st.sampled_from(("rank", "input shape", "input type", "factor", *["mixed"] * (len(names) > 1)))):
        case "rank":
            ranks = (((5,), (5, 4)), ((3, 5), (5,)), ((2, 3, 5), (2, 5, 4)), ((), (5, 4)))
            matrices = (draw(tensors.tensors(shape, dtype)) for shape in draw(st.sampled_from(ranks)))
            return Case(op="addmm", args=(TensorSpec((4,), dtype), *matrices))
        case "input shape":
            shape = draw(st.sampled_from(((5,), (3,), (2, 4), (3, 2), (1, 3, 4), (0,))))
            return Case(op="addmm", args=(draw(tensors.tensors(shape, dtype)), mat1, mat2), kwargs={"beta": 2})
        case "input type":
            return Case(op="addmm", args=(draw(st.sampled_from((2, *elementwise.WRONG_TYPES))), mat1, mat2))
        case "mixed":
            other = draw(dtype_names.dtypes([name for name in names if name != dtype]))
            return Case(op="addmm", args=(draw(tensors.tensors((4,), other)), mat1, mat2))
    name = draw(st.sampled_from(("beta", "alpha")))
    return Case(op="addmm", args=(TensorSpec((4,), dtype), mat1, mat2), kwargs={name: "x"})


def expected(call: Call) -> Expected:
    input, mat1, mat2 = call.args
    dtype = mat1.dtype
    if not dtype.is_floating_point:
        # Nothing is multiplied.
        scale = {name: call.kwargs[name] for name in ("beta", "alpha") if name in call.kwargs}
        return expectations.exactly(
            call, cpu_cuda_differences.answer("addmm", torch.addmm, call)(input, mat1, mat2, **scale)
        )
    beta, alpha = (oracle.operand(call.kwargs.get(name, 1), dtype) for name in ("beta", "alpha"))
    found = products.product(oracle.operand(mat1, dtype), oracle.operand(mat2, dtype), dtype)
    # With beta = 0 the input is not read, NaN and all.
    start = np.zeros(()) if beta == 0 else oracle.operand(input, dtype)
    low = None
    with np.errstate(all="ignore"):
        if found.low is not None:
            (product, product_low), (added, added_low) = (
                oracle.multiply(alpha, found.value),
                oracle.multiply(beta, start),
            )
            rest = product_low + alpha * found.low + added_low
            high, low = oracle.two_sum(product, added)
            value, low = oracle.two_sum(high, np.where(np.isfinite(high), low + rest, 0.0))
        else:
            product, added = alpha * found.value, beta * start
            value = product + added
        magnitude, spread = np.abs(alpha) * found.magnitude, np.abs(alpha) * found.spread
        equal = products.equal(mat1, mat2, found.value, least=16)
        bound = product_bounds.addmm(
            value, added, product, float(alpha), magnitude, spread, mat1.shape[1], dtype, equal
        )
        judged = found.judged & np.isfinite(2 * magnitude) & oracle.in_range(magnitude, dtype)
        judged &= oracle.in_range(added, dtype) & (np.isfinite(added) | ~np.isfinite(start))
        if alpha == 0:
            # torch's libraries disagree on whether 0 times a product that is not finite is 0 or NaN.
            judged &= np.isfinite(found.value)
    found = expectations.within(call, value, bound, dtype, low=low, judged=judged)
    if mat1.shape[1]:
        return found
    # Of nothing to multiply torch's CPU rounds beta to a half type.
    return expectations.also(call, found, lambda: [torch.addmm(input, mat1, mat2, beta=call.kwargs.get("beta", 1))])


def linear(tokens: int, inner: int, outer: int, dtype: str = "bfloat16") -> Benchmark:
    """A linear layer with a bias."""
    return products.benchmark("addmm", (tokens, outer), inner, (outer,), (tokens, inner), (inner, outer), dtype=dtype)


SPEC = OpSpec(
    name="addmm",
    reference=torch.addmm,
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
    gradients=gradients.addmm,
    # Of a prompt of 4096 tokens, of one token of each of 16 sequences, and a call whose time is the host's.
    benchmarks=(linear(4096, 4096, 4096), linear(4096, 4096, 14336), linear(16, 4096, 4096), linear(64, 64, 64)),
    sampled=_models.addmm("addmm", 3),
    cuda_refuses=partial(cuda_refusals.cuda_refuses, "addmm"),
)
