"""Rules of comparisons and selections, which are exact where the error cannot decide them, and of casts."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from conformance.error_analysis.functions import may_be_zero, operands, real
from conformance.error_analysis.pairs import (
    NoRule,
    Pair,
    exact,
    is_taken_apart,
    made,
    pair_of,
    plain,
    settled,
)
from conformance.float_formats import FORMATS, fits

aten = torch.ops.aten
Rule = Callable[..., Any]


def _comparison(of: Callable[..., torch.Tensor]) -> Rule:
    """Make the rule of a comparison: exact; unsure where the errors may decide."""

    def entered(func: Any, input: Any, other: Any) -> Pair:
        a, b, dtype = operands(input, other)
        if not isinstance(other, torch.Tensor):
            # torch rounds a number to the dtype of the tensor that it is compared with.
            b = exact(torch.tensor(other, dtype=dtype)) if dtype.is_floating_point else b
            value = of(a.value, b.value if dtype.is_floating_point else other)
        else:
            value = of(a.value, b.value)
        reach = a.error + b.error
        near = (reach > 0) & ~((real(a) - real(b)).abs() > reach)
        return Pair(value, None, (a.unsure | b.unsure | near).broadcast_to(value.shape), torch.bool)

    return entered


COMPARISONS = {name: _comparison(getattr(torch, name)) for name in ("eq", "ne", "lt", "le", "gt", "ge")}


def _logical(of: Callable[..., torch.Tensor]) -> Rule:
    """Make the rule of a function of truth values; a number is one by whether it is zero."""

    def entered(func: Any, *operands: Any) -> Pair:
        pairs = [pair_of(one) for one in operands]
        value = of(*(one.value for one in pairs))
        unsure = torch.zeros((), dtype=torch.bool)
        for one in pairs:
            unsure = unsure | one.unsure | may_be_zero(one)
        return Pair(value, None, unsure.broadcast_to(value.shape), torch.bool)

    return entered


LOGICAL = {
    name: _logical(getattr(torch, name))
    for name in ("logical_and", "logical_or", "logical_not", "logical_xor", "isnan", "isinf", "isfinite", "signbit")
}


def where(func: Any, condition: Any, input: Any = None, other: Any = None) -> Any:
    """Select elements of one or the other; where the condition is unsure, either may be right."""
    if input is None and other is None:
        raise NoRule("no bound can be derived: the reference asks where a condition holds. Give a bound")
    chosen, (a, b, dtype) = pair_of(condition), operands(input, other)
    if not dtype.is_floating_point:
        value = torch.where(chosen.value, plain(input), plain(other))
        unsure = torch.where(chosen.value, a.unsure, b.unsure) | chosen.unsure
        return Pair(value, None, unsure.broadcast_to(value.shape), dtype)
    value = torch.where(chosen.value, real(a), real(b))
    error = torch.where(chosen.value, a.error, b.error)
    unsure = torch.where(chosen.value, a.unsure, b.unsure)
    if chosen.unsure.any():
        apart = (real(a) - real(b)).abs() + torch.maximum(a.error, b.error)
        error = torch.where(chosen.unsure, apart, error)
        unsure = unsure | (chosen.unsure & ~apart.isfinite())
    return made(value, error, unsure, dtype)


def masked_fill(func: Any, input: Pair, mask: Any, value: Any) -> Any:
    filled = where(func, mask, value, input)
    return filled if filled.dtype == input.dtype else aten._to_copy(filled, dtype=input.dtype)


def nan_to_num(func: Any, input: Pair, nan: Any = None, posinf: Any = None, neginf: Any = None) -> Pair:
    """Replace NaN and infinities as torch does: the largest numbers are those of the dtype. Integers have neither."""
    if not input.dtype.is_floating_point:
        return exact(input.value.clone())
    limits = torch.finfo(input.dtype)
    high, low = limits.max if posinf is None else posinf, limits.min if neginf is None else neginf
    value = input.value.nan_to_num(0.0 if nan is None else nan, high, low)
    return Pair(value, input.error, input.unsure, input.dtype, input.rounding)


def to_copy(func: Any, input: Pair, *, dtype: torch.dtype | None = None, **kwargs: Any) -> Pair:
    """Cast: to a narrower dtype it rounds, and an implementation may do so, or not."""
    if dtype is None or dtype == input.dtype:
        return Pair(input.value.clone(), input.error.clone(), input.unsure.clone(), input.dtype, input.rounding)
    pair, value = settled(input), input.value
    if not dtype.is_floating_point:
        changed = value.to(dtype)
        if not input.dtype.is_floating_point:
            return Pair(changed, None, pair.unsure, dtype)
        if dtype == torch.bool:
            return Pair(changed, None, pair.unsure | (may_be_zero(pair) & (pair.error > 0)), dtype)
        ends = value + pair.error, value - pair.error
        doubt = (ends[0].trunc() != ends[1].trunc()) & (pair.error > 0)
        return Pair(changed, None, pair.unsure | doubt | ~fits(ends[0], dtype) | ~fits(ends[1], dtype), dtype)
    narrower = not input.dtype.is_floating_point or FORMATS[dtype].max < FORMATS[input.dtype].max
    narrower = narrower or FORMATS[dtype].precision < FORMATS[input.dtype].precision
    if not narrower or (is_taken_apart() and input.dtype.is_floating_point):
        return Pair(real(pair).clone(), pair.error.clone(), pair.unsure.clone(), dtype)
    if dtype.itemsize == 1:
        # Nobody leaves out a cast to float8: the value is one of its numbers, or the next one where the error may
        # decide.
        rounded = [(real(pair) + step).float().to(dtype).double() for step in (0.0, pair.error, -pair.error)]
        ends = torch.maximum((rounded[1] - rounded[0]).abs(), (rounded[2] - rounded[0]).abs())
        doubt = pair.unsure | ((pair.error > 0) & ~ends.isfinite() & ~rounded[0].isfinite())
        return made(rounded[0], torch.where(pair.error > 0, ends.nan_to_num(nan=math.inf), 0.0), doubt, dtype)
    result = made(real(pair).clone(), pair.error, pair.unsure, dtype, dtype)
    result.once = not pair.error.any()
    return result
