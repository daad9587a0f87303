"""Rules of elementwise functions of one number and of two.

The ulps of functions are those of ``conformance.bounds``, which were measured on torch for the CPU and for CUDA; for
other functions they are the ulps of CUDA's math library (CUDA C++ Programming Guide, "Mathematical Functions"),
doubled.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch.nn import functional

from conformance.error_analysis.pairs import (
    Pair,
    exact,
    loss,
    made,
    pair_of,
    plain,
    settled,
    ulp,
    unit,
)
from conformance.float_formats import FORMATS, compute_dtype

aten = torch.ops.aten
Rule = Callable[..., Any]


def least(dtype: torch.dtype) -> float:
    """Return the smallest normal number of the compute dtype, which an implementation that approximates a function may
    flush to zero."""
    return 2.0 ** FORMATS[compute_dtype(dtype)].least


def result_dtype(first: Any, second: Any) -> torch.dtype:
    """Return the common dtype of two operands, as torch promotes them."""

    def like(operand: Any) -> Any:
        return torch.empty((1,) * operand.ndim, dtype=operand.dtype) if isinstance(operand, torch.Tensor) else operand

    return torch.result_type(like(first), like(second))


def floating(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype of a function of real numbers."""
    return dtype if dtype.is_floating_point else torch.get_default_dtype()


def real(pair: Pair) -> torch.Tensor:
    """Return the value as float64."""
    return pair.value.double()


class Function(NamedTuple):
    """An elementwise function. Its error is the larger change of its value at either end of the operand's error, plus
    ``ulps`` of the result; 0.5: correctly rounded, 0: exact. ``flushed`` adds an absolute error of so many smallest
    normal numbers, ``flushed_by`` of so many times the operand, ``units`` so many unit roundoffs of the operand.
    ``periodic``: the error of the operand may pass an extreme, and the value changes by no more than it does.
    ``on_the_way``: an intermediate result of so many times the value may overflow."""

    of: Callable[..., torch.Tensor]
    ulps: float = 0.0
    flushed: float = 0.0
    flushed_by: float = 0.0
    units: float = 0.0
    periodic: bool = False
    on_the_way: float = 1.0


FUNCTIONS = {
    "abs": Function(torch.abs),
    "acos": Function(torch.acos, 4),
    "acosh": Function(torch.acosh, 8),
    "asin": Function(torch.asin, 8),
    "asinh": Function(torch.asinh, 6),
    "atan": Function(torch.atan, 4),
    "atanh": Function(torch.atanh, 6),
    "ceil": Function(torch.ceil),
    "cos": Function(torch.cos, 2, periodic=True),
    "cosh": Function(torch.cosh, 4, on_the_way=2),
    "deg2rad": Function(torch.deg2rad, 1),
    "digamma": Function(torch.digamma, 8, units=16),
    "erf": Function(torch.erf, 4),
    "erfc": Function(torch.erfc, 8, flushed=1),
    "erfinv": Function(torch.erfinv, 8),
    "exp": Function(torch.exp, 2),
    "exp2": Function(torch.exp2, 4),
    "expm1": Function(torch.expm1, 3),
    "floor": Function(torch.floor),
    "frac": Function(torch.frac),
    "hardsigmoid": Function(functional.hardsigmoid, 1, units=0.5),
    "hardswish": Function(functional.hardswish, 1, units=1, on_the_way=6),
    "hardtanh": Function(functional.hardtanh),
    "i0": Function(torch.i0, 8, on_the_way=32),
    "leaky_relu": Function(functional.leaky_relu, 1),
    "lgamma": Function(torch.lgamma, 8, units=8),
    "log": Function(torch.log, 2),
    "log10": Function(torch.log10, 4),
    "log1p": Function(torch.log1p, 3),
    "log2": Function(torch.log2, 3),
    "mish": Function(functional.mish, 8, flushed=1, flushed_by=1),
    "neg": Function(torch.neg),
    "rad2deg": Function(torch.rad2deg, 1),
    "reciprocal": Function(torch.reciprocal, 0.5),
    "relu": Function(torch.relu),
    "round": Function(torch.round),
    "rsqrt": Function(torch.rsqrt, 2),
    "sigmoid": Function(torch.sigmoid, 4, flushed=1),
    "sign": Function(torch.sign),
    "silu": Function(functional.silu, 4, flushed_by=1),
    "sin": Function(torch.sin, 2, periodic=True),
    "sinh": Function(torch.sinh, 4, on_the_way=2),
    "softplus": Function(functional.softplus, 4, flushed=1),
    "sqrt": Function(torch.sqrt, 2),
    "square": Function(torch.square, 0.5),
    "tanh": Function(torch.tanh, 3),
    "trunc": Function(torch.trunc),
}


def of_one_number(function: Function, func: Any, input: Pair, *args: Any, **kwargs: Any) -> Pair:
    x, dtype = settled(input), input.dtype
    if not dtype.is_floating_point:
        given = func(x.value, *args, **kwargs)
        if not given.dtype.is_floating_point:
            return exact(given)
        # Integers are first rounded to the dtype of the result.
        dtype = given.dtype
        x = settled(aten._to_copy(x, dtype=dtype))
    at = partial(function.of, **kwargs) if not args else lambda value: function.of(value, *args, **kwargs)
    v, value = real(x), at(real(x))
    error = torch.zeros(())
    if x.error.any():
        ends = torch.maximum((at(v + x.error) - value).abs(), (at(v - x.error) - value).abs())
        # If an end is no number, or another infinity, nothing is known.
        error = torch.where(x.error > 0, ends.nan_to_num(nan=math.inf), 0.0)
        if function.periodic:
            error = x.error.clamp(max=2.0)
    unsure = x.unsure | (error.isinf() & ~value.isfinite())
    if function.on_the_way != 1:
        largest = FORMATS[compute_dtype(dtype)].max / function.on_the_way
        unsure = unsure | (v.isfinite() & (value.abs() > largest))
    if function.units or function.flushed or function.flushed_by:
        flushed = (function.flushed + function.flushed_by * v.abs()) * least(dtype)
        error = error + function.units * unit(dtype) * v.abs() + flushed
    if function.ulps == 0.5:
        return made(value, error, unsure, dtype, compute_dtype(dtype))
    return made(value, error + loss(value, dtype, function.ulps) if function.ulps else error, unsure, dtype)


def tan(func: Any, input: Pair) -> Pair:
    """Apply the rule of tan: nothing is said where the operand's error may pass a pole."""
    x = settled(input)
    pole = (real(x) / math.pi - 0.5).round() * math.pi + math.pi / 2
    near = (x.error > 0) & ((real(x) - pole).abs() <= x.error)
    return of_one_number(Function(torch.tan, 6), func, Pair(x.value, x.error, x.unsure | near, x.dtype))


def log_sigmoid(func: Any, input: Pair) -> tuple[Pair, Pair]:
    """Apply the rule of the logarithm of sigmoid; the second result is torch's for the gradient."""
    pair = of_one_number(Function(functional.logsigmoid, 4, flushed=1), func, input)
    return pair, exact(torch.empty(0, dtype=input.dtype))


def gelu(func: Any, input: Pair, *, approximate: str = "none") -> Pair:
    """Apply the rule of gelu: 8u |x|, 4u |x| where tanh approximates it, as in ``bounds``."""
    units = 8 if approximate == "none" else 4
    return of_one_number(Function(functional.gelu, units=units), func, input, approximate=approximate)


def operands(first: Any, second: Any) -> tuple[Pair, Pair, torch.dtype]:
    """Return both operands as pairs, and the dtype to which they are promoted. A 0-d tensor beside others of a narrower
    dtype may be rounded to that, as the CPU does, or not, as CUDA does."""
    dtype = result_dtype(first, second)
    pairs = [pair_of(one, dtype) for one in (first, second)]
    for place, one in enumerate(pairs):
        if dtype.is_floating_point and one.dtype.is_floating_point and FORMATS[one.dtype].unit < FORMATS[dtype].unit:
            off = (one.value - one.value.to(dtype).double()).abs().nan_to_num(nan=0.0, posinf=math.inf)
            pairs[place] = Pair(one.value, one.error + off, one.unsure, one.dtype)
    return pairs[0], pairs[1], dtype


def add(func: Any, input: Any, other: Any, alpha: float = 1, *, sign: float = 1) -> Any:
    """Apply the rule of a + alpha b: the errors of both, and the rounding of alpha b."""
    a, b, dtype = operands(input, other)
    if not dtype.is_floating_point:
        # Not by -alpha, which the smallest integer has not.
        by = aten.add if sign > 0 else aten.sub
        return exact(by(a.value, b.value if isinstance(other, torch.Tensor) else other, alpha=alpha))
    product = alpha * sign * real(b)
    error = a.error + abs(alpha) * b.error
    if abs(alpha) != 1:
        error = error + ulp(product, compute_dtype(dtype)) / 2 + pair_of(alpha, dtype).error * real(b).abs()
    result = made(real(a) + product, error, a.unsure | b.unsure, dtype, compute_dtype(dtype))
    result.once = abs(alpha) == 1 and _are_numbers(dtype, a, b)
    return result


def _are_numbers(dtype: torch.dtype, *pairs: Pair) -> bool:
    """Tell whether all of these are exact, and numbers of the dtype."""
    for one in pairs:
        value = real(one)
        if one.error.any() or not ((value == value.to(dtype).double()) | value.isnan()).all():
            return False
    return True


def rsub(func: Any, input: Any, other: Any, alpha: float = 1) -> Any:
    return add(func, other, input, alpha, sign=-1)


def may_be_zero(pair: Pair) -> torch.Tensor:
    return (pair.error > 0) & (real(pair).abs() <= pair.error)


def mul(func: Any, input: Any, other: Any) -> Any:
    """Apply the rule of a b: |a| eb + |b| ea + ea eb. Infinity times what may be zero is not sure."""
    a, b, dtype = operands(input, other)
    if not dtype.is_floating_point:
        return exact(torch.mul(a.value, b.value if isinstance(other, torch.Tensor) else other))
    x, y = real(a), real(b)
    value = x * y
    error = (x.abs() * b.error + y.abs() * a.error + a.error * b.error).nan_to_num(nan=0.0, posinf=math.inf)
    doubt = (x.isinf() & may_be_zero(b)) | (y.isinf() & may_be_zero(a))
    result = made(value, error, a.unsure | b.unsure | doubt, dtype, compute_dtype(dtype))
    result.once = _are_numbers(dtype, a, b)
    return result


def div(func: Any, input: Any, other: Any, *, rounding_mode: str | None = None) -> Any:
    """Apply the rule of a / b: (ea + |a / b| eb) / (|b| - eb). A floored quotient of exact numbers is exact; any other
    may reach the next whole number within its error."""
    a, b, dtype = operands(input, other)
    if rounding_mode is None:
        dtype = floating(dtype)
    elif not isinstance(other, torch.Tensor):
        # The divisor decides the whole number as it is rounded to the compute dtype.
        b = exact(real(b).to(compute_dtype(dtype)).double())
    if not dtype.is_floating_point:
        divided = torch.div(a.value, b.value if isinstance(other, torch.Tensor) else other, rounding_mode=rounding_mode)
        return exact(divided)
    x, y = real(a), real(b)
    quotient = x / y
    below = y.abs() - b.error
    error = (a.error + quotient.abs() * b.error) / below
    error = torch.where((a.error == 0) & (b.error == 0), 0.0, torch.where(below > 0, error, math.inf))
    unsure = a.unsure | b.unsure | ((below <= 0) & (b.error > 0))
    if rounding_mode is None:
        return made(quotient, error, unsure, dtype, compute_dtype(dtype))
    value = torch.div(x, y, rounding_mode=rounding_mode)
    step = torch.floor if rounding_mode == "floor" else torch.trunc
    # torch rounds a quotient that it truncates to its dtype first, and a floored one at two places (``bounds.floor``).
    near = [quotient.to(narrow).double() for narrow in (compute_dtype(dtype), dtype)]
    reach = torch.where(error > 0, error + ulp(quotient, compute_dtype(dtype)), 0.0)
    ends = torch.zeros(())
    for one in (*near, quotient + reach, quotient - reach):
        ends = torch.maximum(ends, (step(one) - value).abs())
    if rounding_mode == "floor":
        large = value.abs() >= 2.0 ** (FORMATS[dtype].precision - 2)
        ends = torch.where(large, ulp(value, dtype).clamp(min=1.0), torch.where(error == 0, 0.0, ends))
    return made(value, ends, unsure, dtype, compute_dtype(dtype))


def floor_divide(func: Any, input: Any, other: Any) -> Any:
    return div(func, input, other, rounding_mode="floor")


def _smooth(of: Callable[..., torch.Tensor], ulps: Callable[..., Any]) -> Rule:
    """Make the rule of a function of two numbers: its change by the error of each, and ``ulps`` of it."""

    def entered(func: Any, input: Any, other: Any) -> Any:
        a, b, dtype = operands(input, other)
        if not dtype.is_floating_point:
            if not isinstance(input, torch.Tensor) or not isinstance(other, torch.Tensor):
                return exact(of(plain(input), plain(other)))
            return exact(of(a.value, b.value))
        x, y = real(a), real(b)
        value, error = of(x, y), torch.zeros(())
        for pair, at in ((a, lambda e: of(x + e, y)), (b, lambda e: of(x, y + e))):
            if pair.error.any():
                ends = torch.maximum((at(pair.error) - value).abs(), (at(-pair.error) - value).abs())
                error = error + torch.where(pair.error > 0, ends.nan_to_num(nan=math.inf), 0.0)
        unsure = a.unsure | b.unsure | (error.isinf() & ~value.isfinite())
        return made(value, error + loss(value, dtype, 1) * ulps(x, y), unsure, dtype)

    return entered


def _powers(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return 4 + |y ln x| ulps, as in ``bounds``; a square is a product."""
    return torch.where(y == 2, 0.5, 4 + (y * x.abs().log()).abs().nan_to_num(nan=0.0, posinf=0.0))


_POWERS = _smooth(torch.pow, _powers)


def power(func: Any, input: Any, exponent: Any) -> Any:
    """Apply the rule of a power; a number becomes one of the tensor's dtype first, as in torch."""
    dtype = result_dtype(input, exponent)
    if dtype.is_floating_point:
        input, exponent = (
            one if isinstance(one, torch.Tensor) else torch.tensor(one, dtype=dtype) for one in (input, exponent)
        )
    return _POWERS(func, input, exponent)


PAIRS_OF_NUMBERS = {
    "atan2": _smooth(torch.atan2, lambda x, y: 6),
    "hypot": _smooth(torch.hypot, lambda x, y: 2),
    "pow": power,
    "fmod": _smooth(torch.fmod, lambda x, y: 0),
    "remainder": _smooth(torch.remainder, lambda x, y: 1),
    "copysign": _smooth(torch.copysign, lambda x, y: 0),
    "xlogy": _smooth(torch.xlogy, lambda x, y: 4),
}


def _chosen(of: Callable[..., torch.Tensor]) -> Rule:
    """Make the rule of choosing one of two numbers: the larger of their errors, or the error of the one that is chosen
    for sure."""

    def entered(func: Any, input: Any, other: Any) -> Any:
        a, b, dtype = operands(input, other)
        if not dtype.is_floating_point:
            return exact(of(a.value, torch.as_tensor(b.value if isinstance(other, torch.Tensor) else other)).to(dtype))
        x, y = torch.broadcast_tensors(real(a), real(b))
        value, near = of(x, y), (x - y).abs() <= a.error + b.error
        larger = torch.maximum(a.error, b.error)
        error = torch.where(near, larger, torch.where(value == x, a.error, b.error))
        return made(value, error, a.unsure | b.unsure, dtype)

    return entered


CHOICES = {name: _chosen(getattr(torch, name)) for name in ("maximum", "minimum", "fmax", "fmin")}


def clamp(func: Any, input: Pair, min: Any = None, max: Any = None) -> Any:
    """Clamp from below and then from above, as torch does."""
    found = input
    for bound, choice in ((min, torch.maximum), (max, torch.minimum)):
        if bound is not None:
            bound = bound if isinstance(bound, torch.Tensor) else torch.tensor(bound)
            found = choice(found, bound)
    dtype = result_dtype(input, min if max is None else max)
    return found if found.dtype == dtype else aten._to_copy(found, dtype=dtype)


def clamp_min(func: Any, input: Pair, min: Any) -> Any:
    return clamp(func, input, min)


def clamp_max(func: Any, input: Pair, max: Any) -> Any:
    return clamp(func, input, None, max)
