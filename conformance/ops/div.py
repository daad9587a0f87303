"""``torch.div(input, other, *, rounding_mode=None, out=None)``: the quotient, whole, floored or truncated."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import msgspec
import numpy as np
import torch
from hypothesis import strategies as st

from conformance import bounds, cuda_refusals, features, oracle
from conformance.cases import Argument, Case, Same
from conformance.ops import _elementwise as elementwise
from conformance.ops import _expectations as expectations
from conformance.ops import _gradients as gradients
from conformance.ops import _large, _models, _scenes, _sizes, _words
from conformance.spec import OUTS, Call, Expected, OpSpec
from strategies import dtypes as dtype_names
from strategies import shapes, tensors
from strategies.specs import TensorSpec
from strategies.values import LISTED

MODES = (None, "trunc", "floor")


def result_dtype(common: torch.dtype, mode: str | None) -> torch.dtype:
    """The dtype of a quotient of operands with this common dtype: integers divide to floats unless there is a mode."""
    return torch.get_default_dtype() if mode is None and not common.is_floating_point else common


@st.composite
def cases(draw: st.DrawFn, dtypes: Sequence[str]) -> Case:
    if (whole := [name for name in dtypes if name in ("int64", "int32")]) and draw(st.integers(0, 15)) == 15:
        return draw(_wide(whole))
    if (floats := [name for name in dtypes if dtype_names.is_floating(name)]) and draw(st.integers(0, 15)) == 15:
        return draw(_multiples(floats))
    operands = draw(elementwise.operands(dtypes))
    mode = draw(st.sampled_from(MODES))
    shape, common = elementwise.result_of(operands)
    if mode and not common.is_floating_point:
        operands = _divisible(operands, common)
        common = elementwise.result_of(operands)[1]
        if common == torch.bool:
            mode = None
    out = draw(elementwise.outs(shape, result_dtype(common, mode), operands, dtypes))
    return elementwise.case("div", operands, rounding_mode=mode, out=out)


@st.composite
def _wide(draw: st.DrawFn, dtypes: Sequence[str]) -> Case:
    """Whole quotients of integers that have more bits than some float, by small ones."""
    dtype, shape = draw(dtype_names.dtypes(dtypes)), (draw(shapes.long(_sizes.ELEMENTS)),)
    first = draw(tensors.tensors(shape, dtype, values="magnitudes", specials=()))
    second = draw(tensors.tensors(shape, dtype, values="positive", specials=()))
    return elementwise.case("div", (first, second), rounding_mode=draw(st.sampled_from(MODES[1:])))


@st.composite
def _multiples(draw: st.DrawFn, dtypes: Sequence[str]) -> Case:
    """Whole multiples of whole numbers: a product with a rounded reciprocal may be just below the quotient."""
    dtype, first, alike = draw(dtype_names.dtypes(dtypes)), draw(st.sampled_from(_DIVISORS)), draw(st.booleans())
    divisors = [first if alike else (first + 7 * n) % _DIVISORS[-1] + 1 for n in range(64)]
    dividends = [_held(_QUOTIENTS[n % len(_QUOTIENTS)] * divisor, divisor, dtype) for n, divisor in enumerate(divisors)]
    listed = [TensorSpec((64,), dtype, LISTED + ",".join(map(str, numbers))) for numbers in (dividends, divisors)]
    other: Argument = draw(st.sampled_from((first, float(first)))) if alike else listed[1]
    return elementwise.case("div", (listed[0], other), rounding_mode=draw(st.sampled_from(MODES)))


_DIVISORS = [n for n in range(1, 200) if np.float32(n) * (np.float32(1) / np.float32(n)) < 1]
"""Those with which that is so for float32 already where the quotient is 1."""
_QUOTIENTS = (1, -1, 2, 3, 5, -7, 6, -9, 10)


def _held(number: int, otherwise: int, dtype: str) -> int:
    """The number, if the dtype holds it."""
    return number if torch.tensor(number, dtype=dtype_names.to_torch(dtype)).item() == number else otherwise


def defined(case: Case) -> Case:
    """The case; where integers are divided, with a divisor of which torch defines the quotients."""
    if not case.kwargs.get("rounding_mode") or len(case.args) != 2:
        return case
    first, second = case.args
    common = elementwise.result_of((first, second))[1]
    if common.is_floating_point:
        return case
    return msgspec.structs.replace(case, args=_divisible((first, second), common), digests=())


def _divisible(operands: elementwise.Operands, common: torch.dtype) -> elementwise.Operands:
    """The operands with a divisor that has no zero; nor -1 where an element is the least integer, whose quotient ends
    the process on the CPU."""
    first, second = operands
    if isinstance(second, Same) and isinstance(first, TensorSpec):
        return _positive(first), second
    if isinstance(second, TensorSpec) and math.prod(second.shape) > _sizes.MANY_ELEMENTS:
        # To look at all of them takes too long.
        return first, _positive(second)
    number = int(isinstance(first, TensorSpec))
    a, b = _elements(first, 0, common), _elements(second, number, common)
    least = 0 if common == torch.bool else torch.iinfo(common).min
    if (b == 0).any() or ((b == -1).any() and (a == least).any()):
        second = _positive(second) if isinstance(second, TensorSpec) else True if isinstance(second, bool) else 3
    return first, second


def _positive(spec: TensorSpec) -> TensorSpec:
    """All elements above 0: for bool, all True."""
    if spec.dtype == "bool":
        return msgspec.structs.replace(spec, values="constant", specials=(), seed=_TRUE_SEED)
    return msgspec.structs.replace(spec, values="positive", specials=())


_TRUE_SEED = next(
    seed
    for seed in range(256)
    if all(tensors.materialize(TensorSpec((1,), "bool", "constant", seed), operand).all() for operand in (0, 1))
)
"""A seed with which "constant" is True whichever operand it is of."""


def _elements(argument: Argument, operand: int, dtype: torch.dtype) -> torch.Tensor:
    found = tensors.materialize(argument, operand) if isinstance(argument, TensorSpec) else torch.tensor(argument)
    return found.to(dtype)


@st.composite
def refused(draw: st.DrawFn, dtypes: Sequence[str]) -> Case:
    small = tensors.tensors((3,), dtypes)
    modes = _words.wrong(("floor", "trunc"), ("round", "none", 3, True))
    kinds = [
        elementwise.unbroadcastable(dtypes).map(lambda pair: elementwise.case("div", pair)),
        elementwise.numbers_into_out("div", dtypes),
        st.builds(lambda x, mode: Case(op="div", args=(x, x), kwargs={"rounding_mode": mode}), small, modes),
        st.builds(lambda x, wrong: Case(op="div", args=(x, wrong)), small, st.sampled_from(elementwise.WRONG_TYPES)),
    ]
    floats = [name for name in dtypes if name in dtype_names.FLOATING]
    if floats:
        kinds.append(elementwise.refused_outs("div", floats))
    integers = [name for name in dtypes if name in dtype_names.INTEGRAL]
    if integers:
        whole = tensors.tensors((4,), integers)
        kinds.append(whole.map(lambda x: Case(op="div", args=(x, 2), kwargs={"out": x})))
    if "bool" in dtypes:
        logical = tensors.tensors((4,), "bool")
        mode = st.sampled_from(("trunc", "floor"))
        kinds.append(
            st.builds(lambda x, m: Case(op="div", args=(x, Same(0)), kwargs={"rounding_mode": m}), logical, mode)
        )
    return draw(st.one_of(kinds))


def expected(call: Call) -> Expected:
    input, other = call.args
    mode = call.kwargs.get("rounding_mode")
    common = torch.result_type(input, other)
    if mode and not common.is_floating_point:
        return _integers(call, mode, common)
    dtype = result_dtype(common, mode)
    if not isinstance(input, torch.Tensor):
        # torch, on CPU and CUDA, keeps a scalar divisor at float32 for a half type, but rounds a scalar dividend.
        input = torch.tensor(input, dtype=torch.float64).to(dtype)
    a, b = np.broadcast_arrays(oracle.operand(input, dtype), oracle.operand(other, dtype))
    low = None
    with np.errstate(all="ignore"):
        if dtype == torch.float64:
            value, low = oracle.divide(a, b)
        else:
            value = a / b
        if mode is None:
            bound = bounds.div(value, dtype, wide=not oracle.exact_scalar(other, dtype))
        else:
            quotient = value
            value, low = whole(a, b, quotient, low, mode)
            bound = bounds.floor(value, dtype) if mode == "floor" else bounds.trunc(value, quotient, dtype)
    found = expectations.within(call, value, bound, dtype, low=low, signed_zero=True, once=mode is None)
    return expectations.also_of_scalars(call, found, lambda a, b: [torch.div(a, b, rounding_mode=mode)])


def whole(
    a: np.ndarray, b: np.ndarray, quotient: np.ndarray, low: np.ndarray | None, mode: str
) -> tuple[np.ndarray, np.ndarray | None]:
    """a / b truncated or floored exactly, given its rounding and, for float64, the rest of it.

    As torch (and Python) defines it, floor is (a - a mod b) / b with the remainder of the divisor's sign, so that
    -1 / inf gives -1 and inf / x gives NaN; trunc keeps infinities. Both give x / 0 = inf. A zero has the quotient's
    sign.
    """
    remainder = np.fmod(a, b)
    found = np.trunc(quotient)
    # A quotient just under a whole number may have been rounded up to it: then almost all of a divisor remains.
    above = (found == quotient) & (remainder != 0) & (np.abs(remainder) > np.abs(b) / 2) & (np.abs(found) < 2.0**53)
    found = np.where(above, found - np.sign(found), found)
    if mode == "floor":
        found = np.where((remainder != 0) & ((a < 0) != (b < 0)) & (np.abs(found) < 2.0**53), found - 1, found)
        found = np.where(np.isinf(a) & (b != 0), np.nan, found)
    found = np.where(found == 0, np.copysign(0.0, quotient), found)
    rest = None if low is None else np.where(np.abs(found) < 2.0**53, 0.0, low)
    return found, rest


def _integers(call: Call, mode: str, common: torch.dtype) -> Expected:
    """Integer quotients are torch's own on the CPU; by zero they are undefined and not judged, nor is the one that
    overflows, which ends the process there."""
    a, b = torch.broadcast_tensors(*(torch.as_tensor(x).to(common) for x in call.args))
    judged = (b != 0) & ~((b == -1) & (a == torch.iinfo(common).min) & common.is_signed)
    quotient = torch.div(a, torch.where(judged, b, 1).to(common), rounding_mode=mode)
    return expectations.exactly(call, quotient, judged)


SPEC = OpSpec(
    name="div",
    reference=torch.div,
    cases=cases,
    large=_large.grown(cases),
    # Roundings and dtypes of integers leave few quotients that are differentiated.
    scenes=_scenes.of_elements(cases),
    apart=(
        _scenes.broadcast("div", dtype_names.FLOATING, shapes.usual(budget=_sizes.ELEMENTS)),
        _scenes.special_pairs("div", dtype_names.FLOATING, rounding_mode=(None, "floor", "trunc")),
        _scenes.with_numbers("div", _scenes.ROUNDING, rounding_mode=("floor", None, "trunc", "floor")),
    ),
    refused=refused,
    defined=defined,
    dtypes=dtype_names.ALL,
    outs=OUTS,
    batch=elementwise.batch,
    parts=elementwise.parts,
    features=features.elementwise,
    cuda_refuses=partial(cuda_refusals.cuda_refuses, "div"),
    left_out=cuda_refusals.numbers_alone,
    expected=expected,
    gradients=gradients.of(gradients.divided, "input", "other"),
    benchmarks=elementwise.benchmarks("div", 2, strided=True),
    sampled=_models.binary("div", 0.3),
)
