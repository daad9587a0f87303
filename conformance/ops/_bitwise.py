"""What bitwise functions of two operands share: integers and bools, torch on the CPU itself as the oracle."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from hypothesis import strategies as st

from conformance import cuda_refusals, features
from conformance.cases import Case
from conformance.ops import _elementwise as elementwise
from conformance.ops import _expectations as expectations
from conformance.ops import _large, _scenes
from conformance.spec import OUTS, OpSpec
from strategies import dtypes as dtype_names
from strategies import tensors

DTYPES = dtype_names.INTEGRAL + dtype_names.BOOL


def cases(op: str) -> Callable[[Sequence[str]], st.SearchStrategy[Case]]:
    @st.composite
    def draws(draw: st.DrawFn, dtypes: Sequence[str]) -> Case:
        names = [name for name in dtypes if name in DTYPES]
        operands = draw(elementwise.operands(names, wrapping=True, kinds=("own", "bool", "int")))
        shape, result = elementwise.result_of(operands)
        # With a number first torch has no out.
        out = elementwise.outs(shape, result, operands, names) if elementwise.is_tensor(operands[0]) else st.none()
        return elementwise.case(op, operands, out=draw(out))

    return draws


def refused(op: str) -> Callable[[Sequence[str]], st.SearchStrategy[Case]]:
    def draws(dtypes: Sequence[str]) -> st.SearchStrategy[Case]:
        names = [name for name in dtypes if name in DTYPES]
        small, floats = tensors.tensors((3,), names), tensors.tensors((3,), dtype_names.FLOATING)
        wrong = st.one_of(floats, st.sampled_from((1.5, *elementwise.WRONG_TYPES)))
        return st.one_of(
            elementwise.unbroadcastable(names).map(lambda pair: elementwise.case(op, pair)),
            elementwise.refused_outs(op, names),
            st.builds(lambda x, other: Case(op=op, args=(x, other)), small, wrong),
            st.builds(lambda x, other: Case(op=op, args=(x, other)), floats, st.one_of(floats, st.just(1))),
            small.map(lambda x: Case(op=op, args=(2.5, x))),
            small.map(lambda x: Case(op=op, args=(1, x), kwargs={"out": x})),
            st.sampled_from(((1, 2), (True, False))).map(lambda pair: Case(op=op, args=pair)),
        )

    return draws


def spec(name: str) -> OpSpec:
    """The OpSpec of a bitwise function of two operands: everything follows from torch's function."""
    function = getattr(torch, name)
    return OpSpec(
        name=name,
        reference=function,
        cases=cases(name),
        large=_large.grown(cases(name)),
        scenes=_scenes.of_elements(cases(name)),
        refused=refused(name),
        dtypes=DTYPES,
        outs=OUTS,
        cuda_refuses=partial(cuda_refusals.cuda_refuses, name),
        batch=elementwise.batch,
        parts=elementwise.parts,
        features=features.elementwise,
        expected=lambda call: expectations.exactly(call, function(*call.args)),
        benchmarks=elementwise.benchmarks(name, 2, dtype="int32"),
    )
