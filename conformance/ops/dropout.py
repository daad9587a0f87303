"""``torch.nn.functional.dropout(input, p=0.5, training=True, inplace=False)``.

Which elements are dropped is the implementation's own choice: torch's mask is never compared with. Each element is
input / (1 - p) or input * 0, and ``distribution`` looks at which.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import partial

import torch
from hypothesis import strategies as st

from conformance import bounds, cuda_refusals, oracle
from conformance.cases import Argument, Case, NonFinite
from conformance.ops import _elementwise as elementwise
from conformance.ops import _expectations as expectations
from conformance.ops import _gradients_positions as gradients
from conformance.ops import _large, _sizes
from conformance.spec import Call, Expected, OpSpec
from strategies import dtypes as dtype_names
from strategies import shapes, tensors
from strategies.specs import Layout

DTYPES = dtype_names.FLOATING


def probabilities() -> st.SearchStrategy[Argument]:
    """None (leave it out) often, else 0, 1, what float32 holds as exactly as it holds 1 - p, or what models have."""
    any_ = st.integers(1, 2**24 - 1).map(lambda n: n * 2.0**-24)
    usual = st.sampled_from((0.1, 0.05, 0.2, 0.9, 0.999))
    kinds = (None, None, None, 0.25, 0.75, 0.1875, 0.375, "usual", "usual", "any", "any", 0.0, 1.0, 1)
    drawn: dict[Argument, st.SearchStrategy[Argument]] = {"any": any_, "usual": usual}
    return st.sampled_from(kinds).flatmap(lambda p: drawn.get(p, st.just(p)))


@st.composite
def cases(draw: st.DrawFn, dtypes: Sequence[str]) -> Case:
    names = [name for name in dtypes if name in DTYPES]
    inplace = draw(st.sampled_from((None, None, None, False, True)))
    layouts = {"layouts": elementwise.WRITABLE} if inplace else {}
    # Statistics need many elements.
    many = st.builds(lambda *shape: shape, shapes.sizes(16, 65), shapes.sizes(64, 257))
    shape = draw(st.sampled_from(("any", "many")))
    input = draw(tensors.tensors(many if shape == "many" else elementwise.shapes_of_results(), names, **layouts))
    training = draw(st.sampled_from((None, None, None, None, True, False)))
    return elementwise.case("dropout", (input,), p=draw(probabilities()), training=training, inplace=inplace)


@st.composite
def refused(draw: st.DrawFn, dtypes: Sequence[str]) -> Case:
    names = [name for name in dtypes if name in DTYPES]
    input = draw(tensors.tensors((3, 5), names, layouts="contiguous"))
    match draw(st.sampled_from(("p", "p", "types", "input", "integer", "expanded"))):
        case "p":
            p = draw(st.sampled_from((1.5, -0.25, 2, -1, NonFinite("nan"), NonFinite("inf"), NonFinite("-inf"))))
            return Case(op="dropout", args=(input, p), kwargs={"training": draw(st.booleans())})
        case "types":
            wrong: list[dict[str, Argument]] = [{"p": "x"}, {"p": None}]
            wrong += [{"training": value} for value in (0, 1, "x", None)]
            return Case(op="dropout", args=(input,), kwargs=draw(st.sampled_from(wrong)))
        case "input":
            return Case(op="dropout", args=(draw(st.sampled_from((2.0, *elementwise.WRONG_TYPES))),))
        case "integer":
            whole = draw(dtype_names.dtypes(dtype_names.INTEGRAL + dtype_names.BOOL))
            inplace = draw(st.sampled_from((None, True)))
            input = draw(tensors.tensors((3, 5), whole, layouts=elementwise.WRITABLE))
            return elementwise.case("dropout", (input,), inplace=inplace)
    layout = Layout(expanded=(draw(st.integers(0, 1)),))
    input = type(input)(input.shape, input.dtype, input.values, input.seed, layout)
    return Case(op="dropout", args=(input,), kwargs={"inplace": True})


def expected(call: Call) -> Expected:
    input, p, training, _ = _arguments(*call.args, **call.kwargs)
    if not training or p == 0:
        return Expected(input, signed_zero=True)
    # An infinity times 0 is NaN.
    dropped = input * torch.zeros_like(input)
    if p == 1:
        return Expected(dropped)
    # 1 - p is exact but for probabilities that nobody draws.
    value, low = oracle.divide(oracle.operand(input, input.dtype), oracle.operand(1 - p, torch.float64))
    found = expectations.within(call, value, bounds.dropout(value, 1 - p, input.dtype), input.dtype, low=low)
    found = dataclasses.replace(found, instead=dropped.double(), chance=1 - p)
    # torch's CPU rounds the scale to the dtype.
    return expectations.also(call, found, lambda: [input * torch.tensor(1 / (1 - p), dtype=input.dtype)])


def _arguments(
    input: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> tuple[torch.Tensor, float, bool, bool]:
    return input, float(p), training, inplace


SPEC = OpSpec(
    name="dropout",
    reference=torch.nn.functional.dropout,
    cases=cases,
    large=lambda elements: _large.grown(cases)(
        min(elements, _sizes.COUNTED if elements < 1 << 24 else _sizes.COUNTED_QUICKLY)
    ),
    refused=refused,
    dtypes=DTYPES,
    inplace=True,
    mixes=False,
    expected=expected,
    gradients=gradients.dropout,
    checks=("values", "metadata", "inputs_unchanged", "deterministic", "errors", "distribution"),
    # A comparison and a product; the generator is not counted.
    benchmarks=elementwise.benchmarks("dropout", 1, element_flops=2),
    # No batch: what is dropped of a part that is computed alone is drawn anew.
    cuda_refuses=partial(cuda_refusals.cuda_refuses, "dropout"),
)
