"""``torch.add(input, other, *, alpha=1, out=None)``: input + alpha * other."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import torch
from hypothesis import strategies as st

from conformance import bounds, deviations, oracle
from conformance.cases import Argument, Case
from conformance.ops import _elementwise as elementwise
from conformance.spec import Call, Expected, OpSpec
from strategies import dtypes as dtype_names
from strategies import scalars, tensors


def alphas(result: torch.dtype) -> st.SearchStrategy[Argument]:
    """None (leave it out) half the time, else a scalar that torch takes for a result of this dtype."""
    name = str(result).removeprefix("torch.")
    if result == torch.bool:
        legal = st.sampled_from((True, False, 2, 0))
    elif result.is_floating_point:
        specials = st.sampled_from((0, 2, -1, 0.0, float("inf"), float("nan")))
        legal = st.one_of(scalars.scalars(name, magnitude=2.0**7, specials=False), specials)
    else:
        legal = scalars.scalars(name)
    return st.one_of(st.none(), legal)


@st.composite
def cases(draw: st.DrawFn, dtypes: Sequence[str]) -> Case:
    pairs = (elementwise.tensor_pairs(dtypes), elementwise.with_scalar(dtypes, wrapping=True))
    # Twice an object of its own: one_of drops what it has already.
    operands = draw(st.one_of(elementwise.tensor_pairs(dtypes), *pairs))
    shape, result = elementwise.result_of(operands)
    out = draw(elementwise.outs(shape, result, operands, dtypes))
    return elementwise.case("add", operands, alpha=draw(alphas(result)), out=out)


@st.composite
def refused(draw: st.DrawFn, dtypes: Sequence[str]) -> Case:
    small = tensors.tensors((3,), dtypes)
    kinds = {
        "broadcast": elementwise.unbroadcastable(dtypes).map(lambda pair: elementwise.case("add", pair)),
        "out": elementwise.refused_outs("add", dtypes),
        "type": st.builds(
            lambda x, wrong: Case(op="add", args=(x, wrong)), small, st.sampled_from(elementwise.WRONG_TYPES)
        ),
        "alpha type": small.map(lambda x: Case(op="add", args=(x, x), kwargs={"alpha": "x"})),
    }
    integers = [name for name in dtypes if name in dtype_names.INTEGRAL]
    if integers:
        exact = tensors.tensors((4,), integers)
        alpha = st.sampled_from((1.0, 0.5, float("inf"), True, 2**70))
        kinds["alpha"] = st.builds(lambda x, a: Case(op="add", args=(x, x), kwargs={"alpha": a}), exact, alpha)
        if "int8" in integers or "uint8" in integers:
            narrow = tensors.tensors((4,), [name for name in integers if name in ("int8", "uint8")])
            kinds["alpha range"] = narrow.map(lambda x: Case(op="add", args=(x, x), kwargs={"alpha": 300}))
    if "bool" in dtypes:
        logical = tensors.tensors((4,), "bool")
        kinds["bool alpha"] = logical.map(lambda x: Case(op="add", args=(x, x), kwargs={"alpha": 0.5}))
    floats = [name for name in dtypes if name in dtype_names.FLOATING]
    if floats:
        real = tensors.tensors((4,), floats)
        kinds["alpha of bool"] = real.map(lambda x: Case(op="add", args=(x, x), kwargs={"alpha": True}))
    return draw(st.one_of(list(kinds.values())))


def expected(call: Call) -> Expected:
    input, other = call.args
    alpha = call.kwargs.get("alpha", 1)
    dtype = torch.result_type(input, other)
    if not dtype.is_floating_point:
        return elementwise.exactly(call, torch.add(input, other, alpha=alpha))
    a, b, factor = (oracle.operand(x, dtype) for x in (input, other, alpha))
    low = None
    if dtype == torch.float64:
        (value, low), product = oracle.add_product(a, factor, b)
    else:
        # At most 48 bits: float64 holds the product exactly.
        with np.errstate(all="ignore"):
            product = np.broadcast_to(factor * b, np.broadcast_shapes(a.shape, b.shape))
            value = a + product
    # A float64 product that overflows is infinite here; one of narrower types is finite and out of range.
    overflowed = np.isinf(product) & np.isfinite(factor) & np.isfinite(b)
    # One that underflows to zero leaves the sign of a zero sum to whether it is rounded before it is added.
    least = bounds.FORMATS[bounds.compute_dtype(dtype)].subnormal
    vanished = (a == 0) & (factor != 0) & (b != 0) & (np.abs(product) < least)
    judged = np.broadcast_to(oracle.in_range(product, dtype) & ~overflowed & ~vanished, value.shape)
    product = np.broadcast_to(product, value.shape)
    wide = not all(oracle.exact_scalar(x, dtype) for x in (input, other))
    bound = bounds.add(value, product, dtype, exact=alpha in (1, -1), wide=wide)
    return elementwise.within(call, value, bound, dtype, low=low, judged=judged, signed_zero=True)


SPEC = OpSpec(
    name="add",
    reference=torch.add,
    cases=cases,
    refused=refused,
    dtypes=dtype_names.ALL,
    expected=expected,
    cuda_refuses=partial(deviations.cuda_refuses, "add"),
    benchmarks=elementwise.benchmarks("add", 2),
)
