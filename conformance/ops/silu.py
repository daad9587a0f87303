"""``torch.nn.functional.silu(input, inplace=False)``: input / (1 + exp(-input))."""

from __future__ import annotations

from collections.abc import Sequence

import mpmath
import numpy as np
import torch
from hypothesis import strategies as st

from conformance import bounds
from conformance.cases import Case
from conformance.ops import _activation, _unary
from conformance.ops import _expectations as expectations
from conformance.ops import _gradients as gradients
from conformance.spec import Call, Expected
from strategies import tensors
from strategies.specs import Layout


def refused(dtypes: Sequence[str]) -> st.SearchStrategy[Case]:
    expanded = tensors.tensors((4, 3), dtypes, layouts="contiguous").map(
        lambda x: type(x)(x.shape, x.dtype, x.values, x.seed, Layout(expanded=(0,)))
    )
    return expanded.map(lambda x: Case(op="silu", args=(x,), kwargs={"inplace": True}))


def expected(call: Call) -> Expected:
    # At -inf this is -inf / inf, NaN.
    x, value, low = _unary.value_of(
        call.args[0], call.args[0].dtype, lambda x: x / (1 + np.exp(-x)), lambda x: x / (1 + mpmath.exp(-x))
    )
    dtype = call.args[0].dtype
    return expectations.within(call, value, bounds.sigmoid(value, dtype, x), dtype, low=low, signed_zero=True)


SPEC = _activation.spec(
    "silu",
    torch.nn.functional.silu,
    expected,
    _activation.cases("silu", "inplace", (None, None, None, False, True)),
    refused,
    # A negation, an exponential, an addition and a division.
    flops=4,
    slope=gradients.of(gradients.silu, "input", "inplace"),
)
