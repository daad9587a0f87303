"""``torch.nn.functional.relu(input, inplace=False)``: max(input, 0), NaN staying NaN."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from hypothesis import strategies as st

from conformance.cases import Case
from conformance.ops import _elementwise as elementwise
from conformance.ops import _gradients as gradients
from conformance.ops import _large, _models, _scenes
from conformance.spec import Call, Expected, OpSpec
from strategies import dtypes as dtype_names
from strategies import tensors
from strategies.specs import Layout

DTYPES = dtype_names.FLOATING + dtype_names.INTEGRAL


@st.composite
def cases(draw: st.DrawFn, dtypes: Sequence[str]) -> Case:
    inplace = draw(st.sampled_from((None, None, None, False, True)))
    names = [name for name in dtypes if name in DTYPES]
    layouts = {"layouts": elementwise.WRITABLE} if inplace else {}
    input = draw(tensors.tensors(elementwise.shapes_of_results(), names, **layouts))
    return elementwise.case("relu", (input,), inplace=inplace)


@st.composite
def refused(draw: st.DrawFn, dtypes: Sequence[str]) -> Case:
    names = [name for name in dtypes if name in DTYPES]
    inplace = draw(st.booleans())
    match draw(st.sampled_from(("bool", "type", "expanded"))):
        case "bool":
            input = draw(tensors.tensors(elementwise.shapes_of_results(), "bool", layouts=elementwise.WRITABLE))
        case "type":
            return Case(op="relu", args=(draw(st.sampled_from((1.0, *elementwise.WRONG_TYPES))),))
        case "expanded":
            layout, inplace = Layout(expanded=(0,)), True
            input = draw(tensors.tensors((4, 3), names, layouts="contiguous"))
            input = type(input)(shape=input.shape, dtype=input.dtype, values=input.values, layout=layout)
    return Case(op="relu", args=(input,), kwargs={"inplace": inplace})


def expected(call: Call) -> Expected:
    input = call.args[0].detach().cpu()
    return Expected(torch.where(input < 0, torch.zeros_like(input), input))


SPEC = OpSpec(
    name="relu",
    reference=torch.nn.functional.relu,
    cases=cases,
    large=_large.grown(cases),
    scenes=_scenes.of_elements(cases),
    refused=refused,
    dtypes=DTYPES,
    inplace=True,
    batch=elementwise.batch,
    parts=elementwise.parts,
    mixes=False,
    expected=expected,
    gradients=gradients.of(gradients.relu, "input", "inplace"),
    benchmarks=elementwise.benchmarks("relu", 1),
    sampled=_models.unary("relu", 0.5, 1),
)
