"""``torch.mul(input, other, *, out=None)``."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import torch
from hypothesis import strategies as st

from conformance import bounds, cuda_refusals, features, oracle
from conformance.cases import Case
from conformance.ops import _elementwise as elementwise
from conformance.ops import _expectations as expectations
from conformance.ops import _gradients as gradients
from conformance.ops import _large, _models, _scenes
from conformance.spec import OUTS, Call, Expected, OpSpec
from strategies import dtypes as dtype_names
from strategies import tensors


@st.composite
def cases(draw: st.DrawFn, dtypes: Sequence[str]) -> Case:
    operands = draw(elementwise.operands(dtypes, wrapping=True))
    shape, result = elementwise.result_of(operands)
    return elementwise.case("mul", operands, out=draw(elementwise.outs(shape, result, operands, dtypes)))


def refused(dtypes: Sequence[str]) -> st.SearchStrategy[Case]:
    wrong = st.sampled_from(elementwise.WRONG_TYPES)
    return st.one_of(
        elementwise.unbroadcastable(dtypes).map(lambda pair: elementwise.case("mul", pair)),
        elementwise.refused_outs("mul", dtypes),
        elementwise.numbers_into_out("mul", dtypes),
        st.builds(lambda x, other: Case(op="mul", args=(x, other)), tensors.tensors((3,), dtypes), wrong),
    )


def expected(call: Call) -> Expected:
    input, other = call.args
    dtype = torch.result_type(input, other)
    if not dtype.is_floating_point:
        return expectations.exactly(call, torch.mul(input, other))
    a, b = np.broadcast_arrays(*(oracle.operand(x, dtype) for x in call.args))
    low = None
    if dtype == torch.float64:
        value, low = oracle.multiply(a, b)
    else:
        # At most 48 bits: float64 holds the product exactly.
        with np.errstate(all="ignore"):
            value = a * b
    wide = not all(oracle.exact_scalar(x, dtype) for x in call.args)
    bound = bounds.mul(value, dtype, wide=wide)
    found = expectations.within(call, value, bound, dtype, low=low, signed_zero=True, once=True)
    return expectations.also_of_scalars(call, found, lambda a, b: [a * b])


SPEC = OpSpec(
    name="mul",
    reference=torch.mul,
    cases=cases,
    large=_large.grown(cases),
    scenes=_scenes.of_elements(cases),
    apart=(
        _scenes.special_pairs("mul", dtype_names.FLOATING),
        _scenes.with_numbers("mul", _scenes.ROUNDING),
    ),
    refused=refused,
    dtypes=dtype_names.ALL,
    outs=OUTS,
    batch=elementwise.batch,
    parts=elementwise.parts,
    features=features.elementwise,
    cuda_refuses=partial(cuda_refusals.cuda_refuses, "mul"),
    left_out=cuda_refusals.numbers_alone,
    expected=expected,
    gradients=gradients.of(gradients.multiplied, "input", "other"),
    benchmarks=elementwise.benchmarks("mul", 2, strided=True),
    sampled=_models.binary("mul", 2),
)
