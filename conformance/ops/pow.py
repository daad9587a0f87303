"""``torch.pow(input, exponent, *, out=None)``; powers of integers are integers, and wrap."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import msgspec
import numpy as np
import torch
from hypothesis import strategies as st

from conformance import bounds, cuda_refusals, features, float_formats, oracle
from conformance.cases import Argument, Case, Same
from conformance.ops import _elementwise as elementwise
from conformance.ops import _expectations as expectations
from conformance.ops import _gradients as gradients
from conformance.ops import _large, _scenes
from conformance.spec import OUTS, Call, Expected, OpSpec
from strategies import dtypes as dtype_names
from strategies import scalars, tensors
from strategies.specs import Special, TensorSpec
from strategies.values import LISTED

EXPONENTS = (2, 3, 0.5, -0.5, -1, -2.0, 0, 1.0, 2.75, math.inf, -1.5, math.inf, -math.inf, math.nan)
"""Of floats; libraries have shortcuts for most of them."""
ODD = (2**31 + 1, -(2**33) - 1, 2.0**53 - 1)
"""Odd exponents beyond 32 bits, which float64 holds."""
WHOLE = (4, 6, 5, 7, 8, -3, -4, 33, 40)
"""Exponents for which libraries multiply."""
SHORTCUTS = (0.25, 0.5, -0.5, 1.5, 0.75, 2, 3, 4, -1, -2, 1, 0)
"""Exponents for which libraries take roots or multiply, each of them of special numbers."""
FRACTIONS = (1 / 3, 0.2, 1 / 3, 2 / 3, 1 / 3, 2.5, -1 / 3)
"""Exponents that stand for roots, which negative numbers have or not."""


@st.composite
def cases(draw: st.DrawFn, dtypes: Sequence[str]) -> Case:
    kinds = (*(_tensors(dtypes),) * 3, *(_exponents(dtypes),) * 2, _bases(dtypes))
    operands = draw(st.one_of(kinds))
    shape, result = elementwise.result_of(operands)
    return elementwise.case("pow", operands, out=draw(elementwise.outs(shape, result, operands, dtypes)))


@st.composite
def _tensors(draw: st.DrawFn, dtypes: Sequence[str]) -> elementwise.Operands:
    """Two tensors, often of positive numbers to the power of any, or of any to the power of whole ones; now and then of
    ones to the power of NaN."""
    first, second = draw(elementwise.tensor_pairs(dtypes, by_mpmath=True))
    if elementwise.result_of((first, second))[1] == torch.bool:
        # Of bools alone there are no powers.
        return first, draw(st.sampled_from((0, 1, 2, 2.5)))
    match draw(st.sampled_from(("any", "any", "positive", "positive", "whole", "whole", "ones", "zeros"))):
        case "zeros" if isinstance(first, TensorSpec) and first.dtype in dtype_names.FLOATING:
            if not isinstance(second, TensorSpec):
                return first, second
            # Of which powers are flat, among numbers that have a logarithm.
            zeros = Special(0, "-0"), Special(7, "-0", 2)
            first = msgspec.structs.replace(first, values="positive", specials=zeros)
            second = msgspec.structs.replace(second, values="positive" if second.dtype != "bool" else second.values)
        case "ones" if isinstance(second, TensorSpec) and elementwise.is_float(second):
            if isinstance(first, TensorSpec) and first.dtype != "bool":
                first = msgspec.structs.replace(first, values="integers")
            second = msgspec.structs.replace(second, specials=(Special(0, "nan", 1 << 16),))
        case "positive" if isinstance(first, TensorSpec) and first.dtype != "bool":
            first = msgspec.structs.replace(first, values="positive")
        case "whole" if isinstance(second, TensorSpec) and second.dtype != "bool":
            second = msgspec.structs.replace(second, values="integers")
    return first, second


@st.composite
def _exponents(draw: st.DrawFn, dtypes: Sequence[str]) -> elementwise.Operands:
    """A tensor and a Python number for its exponent."""
    base = draw(_one(dtypes))
    if elementwise.is_float(base):
        special = st.sampled_from(EXPONENTS)
        fractions = st.sampled_from(FRACTIONS)
        whole = st.sampled_from(WHOLE)
        exponents = (
            special,
            special,
            fractions,
            whole,
            whole,
            scalars.floats(base.dtype, magnitude=32.0),
            st.booleans(),
        )
    elif base.dtype == "bool":
        exponents = (st.sampled_from((True, False, 0, 1, 3, 2.5, -1.0)),)
    else:
        most = torch.iinfo(dtype_names.to_torch(base.dtype)).max
        exponents = (st.integers(0, 9), st.integers(0, most), st.sampled_from((True, False, 0.5, 2.0, -1.0, most)))
    number = draw(draw(st.sampled_from(exponents)))
    if base.dtype == "float64" and draw(st.integers(0, 7)) == 7:
        # Of ones of either sign there are such powers.
        return msgspec.structs.replace(base, values="integers"), draw(st.sampled_from(ODD))
    if number in (*EXPONENTS, *FRACTIONS) and elementwise.is_float(base) and draw(st.integers(0, 2)) == 2:
        # What roots and shortcuts give of them is another thing.
        specials = (Special(0, "-inf"), Special(1, "-0"), Special(-1, "inf"))
        return msgspec.structs.replace(base, values="normal", specials=specials), number
    if number in (*FRACTIONS, *WHOLE):
        base = msgspec.structs.replace(base, values=draw(st.sampled_from(("normal", "normal", base.values))))
    return base, number


@st.composite
def _high_powers(draw: st.DrawFn, dtypes: Sequence[str]) -> Case:
    """Powers with whole exponents of more bits than a loop may have, of numbers around 1."""
    dtype = draw(dtype_names.dtypes([name for name in dtypes if name in dtype_names.FLOATING]))
    base = draw(tensors.tensors(elementwise.shapes_of_results(), dtype, values=("uniform", "unit")))
    exponent = draw(st.sampled_from(HIGH))
    return Case(op="pow", args=(base, draw(st.sampled_from((exponent, float(exponent))))))


BASES = (2, 2.0, 0.5, 10, 10.0, -2.0, 4)
"""Numbers of which kernels take powers by another way than that of any."""


WHOLE_EXPONENTS = (-3, -1, -2, 3, -3.0, 2, -5, -2.0, 5, -4)
"""Whole exponents, for which kernels multiply, and divide once."""


@st.composite
def _powers_at_the_ends(draw: st.DrawFn, dtypes: Sequence[str]) -> Case:
    """Powers of a number, or of a tensor of it, that are subnormal, the least or largest numbers, or just beyond."""
    dtype, base = draw(dtype_names.dtypes(dtypes)), draw(st.sampled_from(BASES))
    info = torch.finfo(dtype_names.to_torch(dtype))
    least, most = (math.log2(one) for one in (info.smallest_normal, info.max))
    last = least + math.log2(info.eps)
    wanted = (least, least - 1, least - 4, (least + last) / 2, last + 1, last, last - 2, most - 1, most, most + 1)
    if draw(st.booleans()):
        # The other way round: numbers of which a power is there.
        exponent = draw(st.sampled_from(WHOLE_EXPONENTS))
        # The largest number is just below 2 to its logarithm, which is rounded.
        bases = (sign * 2.0 ** min(max(one / exponent, last), most - 1) for one in wanted for sign in (1, -1))
        specials = tuple(Special(place, repr(one)) for place, one in enumerate(bases))
        return Case(op="pow", args=(TensorSpec((len(specials),), dtype, specials=specials), exponent))
    exponents = [math.trunc(one / math.log2(abs(base))) for one in wanted]
    exponent = TensorSpec((len(exponents),), dtype, LISTED + ",".join(map(str, exponents)))
    first = TensorSpec((1,), dtype, f"{LISTED}{int(base)}") if type(base) is int and draw(st.booleans()) else base
    return Case(op="pow", args=(first, exponent))


def _ends(dtypes: Sequence[str]) -> st.SearchStrategy[Case]:
    chosen = [name for name in dtypes if name in dtype_names.FLOATING]
    return _powers_at_the_ends(chosen) if chosen else st.nothing()


HIGH = (64, 65, 100, 127, 128, 130, -64, -65, 200)


def _high(dtypes: Sequence[str]) -> st.SearchStrategy[Case]:
    return _high_powers(dtypes) if {*dtypes} & {*dtype_names.FLOATING} else st.nothing()


@st.composite
def _bases(draw: st.DrawFn, dtypes: Sequence[str]) -> elementwise.Operands:
    """A Python number to the power of a tensor; an int may have to be wrapped."""
    exponent = draw(_one(dtypes))
    whole = st.sampled_from((2, 1, 0, -1, -2, 3, 10, 255, 300, -129))
    floats = st.sampled_from((2.0, 0.5, 1.0, 0.0, -0.0, -2.0, 10.0, 2.75, math.inf, math.nan))
    kinds = [whole, floats, scalars.floats("float32", magnitude=64.0)] + [st.booleans()] * (exponent.dtype != "bool")
    return draw(draw(st.sampled_from(kinds))), exponent


def _one(dtypes: Sequence[str]) -> st.SearchStrategy[TensorSpec]:
    return dtype_names.dtypes(dtypes).flatmap(
        lambda name: tensors.tensors(elementwise.shapes_of_results(budget=elementwise.elements(name)), name)
    )


@st.composite
def refused(draw: st.DrawFn, dtypes: Sequence[str]) -> Case:
    small = tensors.tensors((3,), dtypes)

    def calls(first: st.SearchStrategy[Argument], second: st.SearchStrategy[Argument]) -> st.SearchStrategy[Case]:
        return st.builds(lambda x, y: Case(op="pow", args=(x, y)), first, second)

    def of(*names: str) -> list[str]:
        return [name for name in dtypes if name in names]

    kinds = [
        calls(small, st.sampled_from(elementwise.WRONG_TYPES)),
        calls(st.sampled_from(elementwise.WRONG_TYPES), small),
        calls(st.just(2), st.sampled_from((3, 0.5))),
    ]
    if powers := of(*dtype_names.FLOATING, *dtype_names.INTEGRAL):
        kinds.append(elementwise.refused_outs("pow", powers))
        kinds.append(elementwise.unbroadcastable(powers).map(lambda pair: elementwise.case("pow", pair)))
    if whole := of(*dtype_names.INTEGRAL, "bool"):
        kinds.append(calls(tensors.tensors((4,), whole), st.sampled_from((-1, -2, -(2**40)))))
    if narrow := of("int8", "uint8"):
        kinds.append(calls(tensors.tensors((4,), narrow), st.sampled_from((256, 300, 2**40))))
    if narrow := of("float16", "float32", "bfloat16"):
        beyond = tensors.tensors((4,), narrow)
        kinds.append(calls(beyond, st.sampled_from((1e39, -1e300))))
    if of("bool"):
        logical = tensors.tensors((4,), "bool")
        kinds.append(calls(logical, st.just(Same(0))))
        kinds.append(calls(st.booleans(), logical))
    return draw(st.one_of(kinds))


def expected(call: Call) -> Expected:
    input, exponent = call.args
    dtype = torch.result_type(input, exponent)
    if not dtype.is_floating_point:
        return expectations.exactly(call, torch.pow(input, exponent))
    if not isinstance(input, torch.Tensor | bool) and input == 1:
        # Whatever the dtype of out=.
        return expectations.exactly(call, torch.ones(exponent.shape, dtype=dtype))
    # torch, on CPU and CUDA, rounds Python numbers to a half type, other than where it multiplies or adds.
    x, y = np.broadcast_arrays(*(_rounded(operand, dtype) for operand in call.args))
    low = None
    with np.errstate(all="ignore"):
        value = np.power(x, y)
        if dtype == torch.float64:
            value, low = _by_mpmath(value, x, y)
        bound = bounds.pow(value, x, y, dtype)
    # IEEE 754 has 1 for a power of 1 and to the power of 0, C libraries NaN beside a signalling NaN.
    judged = ~(((x == 1) & _signals(y)) | ((y == 0) & _signals(x)))
    if not isinstance(exponent, torch.Tensor) and abs(exponent) == 0.5:
        # torch then takes square roots, for which -inf and -0 are other points than for powers: both are right.
        judged &= ~((x == -np.inf) | ((x == 0) & np.signbit(x)))
    if not isinstance(exponent, torch.Tensor) and exponent == -2:
        # torch divides by the square. Where that overflows, the quotient is 0; where it is subnormal, bits are lost, or
        # it is flushed to 0: any number is right there.
        info = torch.finfo(float_formats.compute_dtype(dtype))
        with np.errstate(all="ignore"):
            square = x * x
        bound = np.where(np.isfinite(value) & (square > info.max), np.maximum(bound, np.abs(value)), bound)
        bound = np.where((x != 0) & (square < info.smallest_normal), np.inf, bound)
    return expectations.within(call, value, bound, dtype, low=low, judged=judged, signed_zero=True)


def _rounded(operand: torch.Tensor | bool | int | float, dtype: torch.dtype) -> np.ndarray:
    if not isinstance(operand, torch.Tensor):
        operand = torch.tensor(operand, dtype=torch.float64)
    return oracle.operand(operand, dtype)


def _signals(x: np.ndarray) -> np.ndarray:
    """Find signalling NaN: those without the highest bit of the mantissa."""
    return np.isnan(x) & (x.copy().view(np.int64) >> 51 & 1 == 0)


def _by_mpmath(value: np.ndarray, x: np.ndarray, y: np.ndarray) -> oracle.Double:
    """The float64 power of float64 operands, refined where it is no power of 0 or 1, nor far beyond the range."""
    logarithm = np.abs(y * np.log(np.abs(x)))
    near = (logarithm > 0) & (logarithm < 800)
    found, low = oracle.refine(value[near], lambda base, exponent: base**exponent, x[near], y[near])
    value, rest = np.array(value), np.zeros(value.shape)
    value[near], rest[near] = found, low
    return value, rest


SPEC = OpSpec(
    name="pow",
    reference=torch.pow,
    cases=cases,
    large=_large.grown(cases),
    scenes=_scenes.of_elements(cases),
    apart=(
        _high,
        _ends,
        _scenes.special_pairs("pow", dtype_names.FLOATING),
        _scenes.with_numbers("pow", dtype_names.FLOATING, SHORTCUTS),
        _scenes.with_numbers("pow", ("float32", "float64"), FRACTIONS),
    ),
    refused=refused,
    dtypes=dtype_names.ALL,
    outs=OUTS,
    batch=elementwise.batch,
    parts=elementwise.parts,
    features=features.elementwise,
    expected=expected,
    gradients=gradients.of(gradients.power, "input", "exponent"),
    # A logarithm, a product and an exponential; and the square that models take.
    benchmarks=(
        *elementwise.benchmarks("pow", 1, element_flops=3, more=(2.5,)),
        *elementwise.benchmarks("pow", 1, more=(2,)),
    ),
    cuda_refuses=partial(cuda_refusals.cuda_refuses, "pow"),
)
