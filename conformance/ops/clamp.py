"""``torch.clamp(input, min=None, max=None, *, out=None)``: min(max(input, min), max), NaN of any of them staying."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from msgspec.structs import replace

from conformance import features
from conformance.cases import Argument, Case, Same
from conformance.features import Features
from conformance.ops import _elementwise as elementwise
from conformance.ops import _expectations as expectations
from conformance.ops import _gradients as gradients
from conformance.ops import _large, _scenes, _sizes
from conformance.spec import OUTS, Call, Expected, OpSpec
from strategies import dtypes as dtype_names
from strategies import scalars, shapes, tensors, values
from strategies.shapes import Shape
from strategies.specs import TensorSpec

_BOUNDS = [number for number in _scenes.UNHELD if abs(number) < 1e38]
"""torch refuses bounds beyond the range of the dtype."""
Bounds = tuple[Argument, Argument]
"""min and max."""


@st.composite
def cases(draw: st.DrawFn, dtypes: Sequence[str]) -> Case:
    input, low, high, shape = draw(_by_tensors(dtypes) if draw(st.integers(0, 2)) else _by_numbers(dtypes))
    result = _result_type(input, low, high)
    # With numbers for bounds torch wants an out of the very dtype.
    numbers = any(bound is not None and not isinstance(bound, TensorSpec | Same) for bound in (low, high))
    out = draw(elementwise.outs(shape, result, (input,), dtypes, exact=numbers))
    if draw(st.booleans()):
        return elementwise.case("clamp", (input,), min=low, max=high, out=out)
    args = (input, low) if high is None else (input, low, high)
    return elementwise.case("clamp", args, out=out)


@st.composite
def _by_numbers(draw: st.DrawFn, dtypes: Sequence[str]) -> tuple[TensorSpec, Argument, Argument, Shape]:
    """Python numbers for bounds; where there are two, one may be a 0-d tensor, which torch then takes for a number."""
    input = draw(tensors.tensors(elementwise.shapes_of_results(), dtypes))
    low, high = (draw(_numbers(input.dtype)) for _ in range(2))
    form = draw(st.sampled_from((*("both", "both", "min", "max") * 3, "unlimited", "0-d", "0-d", "0-d")))
    if form == "unlimited" and dtype_names.is_floating(input.dtype):
        # Limits that nobody has set: what comes back is equal, and not the same.
        return input, -math.inf, math.inf, input.shape
    if form == "0-d" and input.dtype != "bool":
        spec = draw(tensors.tensors((), input.dtype, specials=("nan", "inf", "max")))
        low, high = draw(st.sampled_from(((spec, high), (low, spec))))
    return input, None if form == "max" else low, None if form == "min" else high, input.shape


@st.composite
def _beside_0d(draw: st.DrawFn, whole: Sequence[str], floats: Sequence[str]) -> Case:
    """Integers between a number and a float without dims, which torch takes for a number too."""
    input = draw(tensors.tensors((draw(st.integers(2, 40)),), whole, values=("normal", "integers")))
    bound = draw(tensors.tensors((), floats, values=("normal", "uniform")))
    bounds = draw(st.sampled_from(((bound, 3), (-3, bound), (bound, 2.5), (-2.5, bound))))
    return Case(op="clamp", args=(input, *bounds))


def _integers_beside_0d(dtypes: Sequence[str]) -> st.SearchStrategy[Case]:
    floats = [name for name in dtypes if dtype_names.is_floating(name)]
    whole = [name for name in dtypes if name != "bool" and name not in floats]
    return _beside_0d(whole, floats) if whole and floats else st.nothing()


@cache
def _numbers(dtype: str) -> st.SearchStrategy[Argument]:
    if dtype == "bool":
        # Bools clamped by bools are refused.
        return st.sampled_from((0, 1, 2, -1, 0.5, math.nan))
    negative = st.sampled_from((-1, -2, -5))
    kinds = [scalars.scalars(dtype), st.sampled_from((math.nan, math.inf)), st.booleans(), negative]
    if dtype_names.is_floating(dtype):
        most = torch.finfo(getattr(torch, dtype)).max
        kinds += [scalars.scalars(dtype, magnitude=2.0), st.sampled_from((1e6, -1e6, most, -most))]
    else:
        # A negative bound of unsigned integers wraps.
        kinds += [st.integers(0, 16), scalars.floats("float32", magnitude=64.0), scalars.magnitudes(dtype)]
    return st.sampled_from(kinds).flatmap(lambda kind: kind)


@st.composite
def _by_tensors(draw: st.DrawFn, dtypes: Sequence[str]) -> tuple[TensorSpec, Argument, Argument, Shape]:
    """Tensors for bounds, of any dtype and shape that broadcast; now and then one is the input."""
    form = draw(st.sampled_from(("both", "both", "both", "min", "max")))
    first, second = draw(dtype_names.pairs(dtypes))
    third = draw(st.sampled_from((first, second)))
    if form == "both" and draw(st.integers(0, 2)) == 2:
        # The last bound alone may decide the result's dtype.
        second = first
    if draw(st.booleans()):
        found = draw(shapes.usual(3, budget=_sizes.ELEMENTS))
    else:
        found = draw(shapes.broadcastable(3, elementwise.shapes_of_results(draw(st.sampled_from((0, 1, 2))))))
    specs = [draw(tensors.tensors(shape, name)) for shape, name in zip(found, (first, second, third), strict=True)]
    input, low, high = specs[0], None if form == "max" else specs[1], None if form == "min" else specs[2]
    if not draw(st.integers(0, 3)):
        low, high = (low, Same(0)) if form == "max" or draw(st.booleans()) else (Same(0), high)
    if {spec.dtype for spec in (input, low, high) if isinstance(spec, TensorSpec)} == {"bool"} and low is not None:
        # Of bools torch takes one bound, not two.
        high = None
    taken = [input, *(bound for bound in (low, high) if isinstance(bound, TensorSpec))]
    return input, low, high, tuple(np.broadcast_shapes(*(spec.shape for spec in taken)))


def _result_type(input: TensorSpec, low: Argument, high: Argument) -> torch.dtype:
    """The dtype of the result: torch's own, of the smallest operands of these kinds."""

    def smallest(argument: Any) -> Any:
        if isinstance(argument, Same):
            argument = input
        if isinstance(argument, TensorSpec):
            return torch.zeros((1,) * len(argument.shape), dtype=dtype_names.to_torch(argument.dtype))
        return None if argument is None else type(argument)(0)

    bounds: Any = (smallest(low), smallest(high))
    return torch.clamp(smallest(input), *bounds).dtype


@st.composite
def refused(draw: st.DrawFn, dtypes: Sequence[str]) -> Case:
    small = draw(tensors.tensors((3,), dtypes))
    is_bool = small.dtype == "bool"
    kinds = ["none", "type", "mixed", "input", "broadcast", *(["bool"] * is_bool), *(["out"] * (not is_bool))]
    if small.dtype not in ("bool", "int64"):
        kinds += ["range"]
    match draw(st.sampled_from(kinds)):
        case "none":
            return Case(op="clamp", args=(small,), kwargs=draw(st.sampled_from(({}, {"min": None, "max": None}))))
        case "type":
            bounds = draw(st.sampled_from((("x", None), (1, "x"), ((1, 2), None))))
        case "mixed":
            # A number and a tensor that could not be one.
            bounds = draw(st.sampled_from(((0, Same(0)), (Same(0), 1.5))))
        case "input":
            return Case(op="clamp", args=(draw(st.sampled_from((2, 1.5, *elementwise.WRONG_TYPES))), 1))
        case "broadcast":
            first, second = draw(elementwise.unbroadcastable((small.dtype,)))
            return Case(op="clamp", args=(first, *draw(st.sampled_from(((second, None), (None, second))))))
        case "bool":
            bounds = draw(st.sampled_from(((False, True), (Same(0), Same(0)), (None, True), (False, None))))
        case "range":
            beyond = 2**40 if small.dtype in dtype_names.INTEGRAL else 1e39
            if small.dtype == "float64":
                beyond = 2**70
            bounds = draw(st.sampled_from(((beyond, None), (None, beyond), (0, beyond))))
        case "out":
            return draw(elementwise.refused_outs("clamp", (small.dtype,), others=(0,), exact=True))
    return Case(op="clamp", args=(small, *bounds))


def expected(call: Call) -> Expected:
    low, high = (_given(call, place, name) for place, name in ((1, "min"), (2, "max")))
    input = call.args[0]
    kinds: Any = (x if isinstance(x, torch.Tensor) or x is None else type(x)(0) for x in (low, high))
    dtype = torch.clamp(input, *kinds).dtype
    found = input.to(dtype)
    # torch's maximum and minimum keep NaN of either operand.
    if low is not None:
        found = torch.maximum(found, _bound(low, dtype))
    if high is not None:
        found = torch.minimum(found, _bound(high, dtype))
    return expectations.exactly(call, found)


def _given(call: Call, place: int, name: str) -> torch.Tensor | bool | int | float | None:
    return call.args[place] if len(call.args) > place else call.kwargs.get(name)


def _bound(bound: torch.Tensor | bool | int | float, dtype: torch.dtype) -> torch.Tensor:
    """The bound in the dtype of the result. Rounding it first is no error: it commutes with max and min, of which the
    other operand has that dtype."""
    if isinstance(bound, float):
        bound = torch.tensor(bound, dtype=torch.float64)
    return torch.as_tensor(bound).to(dtype)


def features_of(case: Case) -> Features:
    """Bounds are bounds, whether given by place or by name, and of a size that follows from rank and input."""
    bounds = dict(zip(("min", "max"), case.args[1:], strict=False))
    found = {**features.of({"input": case.args[0], **bounds, **case.kwargs}), **features.broadcast(case)}
    dependent = [f"{name} {what}" for name in ("min", "max") for what in ("size", "row")]
    return {group: classes for group, classes in found.items() if group not in dependent}


@st.composite
def _at_bounds(draw: st.DrawFn, dtypes: Sequence[str]) -> Case:
    """A call of which many elements equal a bound: which side they count to shows in their gradient."""
    dtype = draw(dtype_names.dtypes([name for name in dtypes if dtype_names.is_floating(name)]))
    shape = draw(st.sampled_from(((9,), (3, 7), (2, 3, 5))))
    # Of a limit that nobody has set, what is computed from both may be NaN.
    unset = (-1.0, math.inf), (-math.inf, 1.0)
    low, high = draw(st.sampled_from(((-1, 1), (-1.0, None), (None, 1.0), (0, 2), (1, 1), (2, -2), *unset)))
    spec = draw(tensors.tensors(shape, dtype, values="zeros", specials=()))
    input = replace(spec, values=f"{values.LISTED}-1,0,1,2,-2,3")
    return elementwise.case("clamp", (input,), min=low, max=high)


def at_bounds(dtypes: Sequence[str]) -> st.SearchStrategy[Case]:
    """Calls of ``_at_bounds``."""
    return _at_bounds(dtypes) if any(map(dtype_names.is_floating, dtypes)) else st.nothing()


SPEC = OpSpec(
    name="clamp",
    reference=torch.clamp,
    cases=cases,
    large=_large.grown(cases),
    scenes=_scenes.of_elements(cases),
    apart=(
        _integers_beside_0d,
        at_bounds,
        _scenes.with_numbers("clamp", ("float32", "float64"), _BOUNDS, ("min", "max")),
    ),
    refused=refused,
    dtypes=dtype_names.ALL,
    outs=OUTS,
    batch=elementwise.batch,
    parts=elementwise.parts,
    features=features_of,
    expected=expected,
    gradients=gradients.of(gradients.clamped, "input", "min", "max"),
    benchmarks=elementwise.benchmarks("clamp", 1, element_flops=2, more=(-1.0, 1.0)),
)
