"""What comparisons share: two operands in, bool out, torch on the CPU itself as the oracle."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from hypothesis import strategies as st
from msgspec.structs import replace

from conformance import features
from conformance.cases import Case
from conformance.ops import _elementwise as elementwise
from conformance.spec import OUTS, Call, Expected, OpSpec
from strategies import dtypes as dtype_names
from strategies import tensors
from strategies.specs import Special, TensorSpec


@st.composite
def alike(draw: st.DrawFn, dtypes: Sequence[str]) -> elementwise.Operands:
    """Two tensors many of whose elements are equal, or would be at a lower precision: of few values, of numbers that
    lie close together, zeros of both signs, or the same tensor."""
    few = ("integers", "one_hot", "constant", "zeros", "large_mean")
    first, second = draw(elementwise.tensor_pairs(dtypes))
    if not isinstance(first, TensorSpec) or not isinstance(second, TensorSpec):
        return first, second
    values = [draw(tensors.tensors((), spec.dtype, values=few)).values for spec in (first, second)]
    if all(spec.dtype in dtype_names.FLOATING for spec in (first, second)) and not draw(st.integers(0, 5)):
        # Zeros of both signs, the negative ones on either side.
        negative = (Special(0, "-0", draw(st.sampled_from((1, 2, 1 << 16)))),)
        if draw(st.booleans()):
            return replace(first, values="zeros", specials=()), replace(second, values="zeros", specials=negative)
        return replace(first, values="zeros", specials=negative), replace(second, values="zeros", specials=())
    return replace(first, values=values[0]), replace(second, values=values[1])


def cases(op: str) -> Callable[[Sequence[str]], st.SearchStrategy[Case]]:
    @st.composite
    def draws(draw: st.DrawFn, dtypes: Sequence[str]) -> Case:
        kinds = (
            elementwise.tensor_pairs(dtypes),
            alike(dtypes),
            elementwise.with_scalar(dtypes, wrapping=True, first=False),
        )
        operands = draw(st.one_of(*kinds))
        shape, _ = elementwise.result_of(operands)
        return elementwise.case(op, operands, out=draw(elementwise.outs(shape, torch.bool, operands, dtypes)))

    return draws


def refused(op: str) -> Callable[[Sequence[str]], st.SearchStrategy[Case]]:
    def draws(dtypes: Sequence[str]) -> st.SearchStrategy[Case]:
        small = tensors.tensors((3,), dtypes)
        wrong = st.sampled_from(elementwise.WRONG_TYPES)
        return st.one_of(
            elementwise.unbroadcastable(dtypes).map(lambda pair: elementwise.case(op, pair)),
            elementwise.refused_outs(op, dtypes, torch.bool),
            st.builds(lambda x, other: Case(op=op, args=(x, other)), small, wrong),
            small.map(lambda x: Case(op=op, args=(2, x))),
        )

    return draws


def spec(name: str, function: Callable[..., torch.Tensor], dtypes: tuple[str, ...]) -> OpSpec:
    """The OpSpec of a comparison: everything follows from torch's function."""

    def expected(call: Call) -> Expected:
        return elementwise.exactly(call, function(*call.args))

    return OpSpec(
        name=name,
        reference=function,
        cases=cases(name),
        refused=refused(name),
        dtypes=dtypes,
        outs=OUTS,
        batch=elementwise.batch,
        features=features.elementwise,
        expected=expected,
        benchmarks=elementwise.benchmarks(name, 2, result="bool"),
    )
