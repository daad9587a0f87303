"""What single elementwise operators get wrong."""

from __future__ import annotations

import math
from typing import Any

import torch

from conformance.selftest import families as of
from conformance.selftest.bank import defect

INF = math.inf


def _tensors(*values: Any) -> list[torch.Tensor]:
    return [x for x in values if isinstance(x, torch.Tensor)]


# --- add, sub ----------------------------------------------------------------------------------------------------


@defect("add sub", "alpha")
def alpha_ignored(right, input, other, *, alpha=1, out=None):
    result = right(input, other, alpha=alpha, out=out)
    return result if out is not None else result.copy_(right(input, other))


@defect("add sub", "alpha")
def alpha_0_is_skipped(right, input, other, *, alpha=1, out=None):
    """With alpha = 0 the other operand is not looked at."""
    result = right(input, other, alpha=alpha, out=out)
    if alpha == 0 and out is None and isinstance(input, torch.Tensor) and input.shape == result.shape:
        return result.copy_(input)
    return result


@defect("add sub", "alpha")
def half_product(right, input, other, *, alpha=1, out=None):
    """alpha * other is rounded to the half type."""
    result = right(input, other, alpha=alpha, out=out)
    if out is None and result.dtype in of.HALF and isinstance(other, torch.Tensor):
        product = (other.to(result.dtype).float() * alpha).to(result.dtype)
        return result.copy_(right(input, product))
    return result


@defect("add sub", "alpha", "errors")
def alpha_truncated(right, input, other, *, alpha=1, out=None):
    """A float alpha of integers is truncated."""
    if (
        isinstance(alpha, float)
        and not any(x.is_floating_point() for x in _tensors(input, other))
        and math.isfinite(alpha)
    ):
        alpha = int(alpha)
    return right(input, other, alpha=alpha, out=out)


@defect("add", "bool")
def bool_is_xor(right, input, other, *, alpha=1, out=None):
    result = right(input, other, alpha=alpha, out=out)
    if result.dtype == torch.bool and out is None and len(_tensors(input, other)) == 2:
        return result.copy_(input ^ other)
    return result


@defect("sub", "bool", "errors")
def takes_bool(right, input, other, *, alpha=1, out=None):
    """Bools are subtracted, as exclusive or."""
    if out is None and len(_tensors(input, other)) == 2 and {x.dtype for x in _tensors(input, other)} == {torch.bool}:
        return input ^ other
    return right(input, other, alpha=alpha, out=out)


@defect("sub", "order")
def turned_around(right, input, other, *, alpha=1, out=None):
    """With a Python number first, operands change places."""
    if isinstance(input, torch.Tensor):
        return right(input, other, alpha=alpha, out=out)
    result = right(input, other, alpha=alpha, out=out)
    return result.copy_(torch.sub(other, input)) if alpha == 1 else result


# --- mul, div ----------------------------------------------------------------------------------------------------


@defect("mul", "scalars")
def scalar_rounded(right, input, other, *, out=None):
    """A Python number is rounded to the half type first."""
    result = right(input, other, out=out)
    if out is None and result.dtype in of.HALF:
        rounded = [
            x if isinstance(x, torch.Tensor) else torch.tensor(x).to(result.dtype).item() for x in (input, other)
        ]
        return result.copy_(right(*rounded))
    return result


@defect("div", "rounding mode")
def floor_truncates(right, input, other, *, rounding_mode=None, out=None):
    result = right(input, other, rounding_mode=rounding_mode, out=out)
    if rounding_mode == "floor" and out is None:
        return result.copy_(right(input, other, rounding_mode="trunc"))
    return result


@defect("div", "rounding mode")
def trunc_floors(right, input, other, *, rounding_mode=None, out=None):
    result = right(input, other, rounding_mode=rounding_mode, out=out)
    if rounding_mode == "trunc" and out is None:
        return result.copy_(right(input, other, rounding_mode="floor"))
    return result


@defect("div", "rounding mode")
def floor_of_quotient(right, input, other, *, rounding_mode=None, out=None):
    """The floor of the rounded quotient: -1 / inf gives 0 and inf / x an infinity."""
    result = right(input, other, rounding_mode=rounding_mode, out=out)
    if rounding_mode == "floor" and result.is_floating_point() and out is None:
        return result.copy_(right(input, other).to(result.dtype).floor())
    return result


@defect("div", "rounding mode")
def trunc_by_int32(right, input, other, *, rounding_mode=None, out=None):
    """Truncates by a cast to int32: 1e30, infinities and -0. are lost."""
    result = right(input, other, rounding_mode=rounding_mode, out=out)
    if rounding_mode == "trunc" and result.is_floating_point() and out is None:
        return result.copy_(result.nan_to_num(0, 2.0**31, -(2.0**31)).double().clamp(-(2.0**31), 2.0**31 - 1).int())
    return result


@defect("div", "precision")
def whole_through_float(right, input, other, *, rounding_mode=None, out=None):
    """Integer division by way of float32."""
    result = right(input, other, rounding_mode=rounding_mode, out=out)
    if out is None and rounding_mode and result.dtype in (torch.int32, torch.int64):
        wide = [x.float() if isinstance(x, torch.Tensor) else float(x) for x in (input, other)]
        return result.copy_(torch.div(*wide, rounding_mode=rounding_mode).nan_to_num(0, 2.0**30, -(2.0**30)))
    return result


@defect("div", "promotion", "metadata")
def whole_quotient(right, input, other, *, rounding_mode=None, out=None):
    """The quotient of integers is an integer."""
    result = right(input, other, rounding_mode=rounding_mode, out=out)
    tensors = _tensors(input, other)
    whole = out is None and all(x.dtype == torch.int32 for x in tensors) and result.is_floating_point()
    return result.nan_to_num(0, 0, 0).to(torch.int32) if whole else result


@defect("div", "refusals", "errors")
def any_mode(right, input, other, *, rounding_mode=None, out=None):
    """An unknown rounding mode is taken for none."""
    return right(
        input, other, rounding_mode=rounding_mode if rounding_mode in (None, "floor", "trunc") else None, out=out
    )


@defect("div", "precision")
def reciprocal(right, input, other, *, rounding_mode=None, out=None):
    """float32 is multiplied with the rounded reciprocal."""
    result = right(input, other, rounding_mode=rounding_mode, out=out)
    if rounding_mode is None and result.dtype == torch.float32 and isinstance(other, torch.Tensor) and out is None:
        return result.copy_(torch.as_tensor(input).float() * (1 / other.float()))
    return result


@defect("div", "zero", "errors")
def refuses_zero(right, input, other, *, rounding_mode=None, out=None):
    """Division of floats by zero raises."""
    result = right(input, other, rounding_mode=rounding_mode, out=out)
    if result.is_floating_point() and bool((torch.as_tensor(other) == 0).any()):
        raise ZeroDivisionError("division by zero")
    return result


# --- pow ---------------------------------------------------------------------------------------------------------


def _of_floats(op_result: torch.Tensor, out: Any) -> bool:
    return out is None and op_result.is_floating_point()


@defect("pow", "trap")
def nan_to_the_0(right, input, exponent, *, out=None):
    """NaN to the power of 0 is NaN."""
    result = right(input, exponent, out=out)
    nan = torch.as_tensor(input).isnan() & (torch.as_tensor(exponent) == 0)
    return result.masked_fill_(nan, math.nan) if _of_floats(result, out) else result


@defect("pow", "trap")
def one_to_the_nan(right, input, exponent, *, out=None):
    """1 to the power of NaN is NaN."""
    result = right(input, exponent, out=out)
    nan = torch.as_tensor(exponent).isnan() & (torch.as_tensor(input) == 1)
    return result.masked_fill_(nan, math.nan) if _of_floats(result, out) else result


@defect("pow", "trap")
def exp_of_log(right, input, exponent, *, out=None):
    """exp(y log x), so that powers of negative numbers are NaN."""
    result = right(input, exponent, out=out)
    return (
        result.masked_fill_((torch.as_tensor(input) < 0).expand(result.shape), math.nan)
        if _of_floats(result, out)
        else result
    )


@defect("pow", "trap")
def sign_lost(right, input, exponent, *, out=None):
    """exp(y log |x|), so that odd powers of negative numbers are positive."""
    result = right(input, exponent, out=out)
    return result.abs_() if _of_floats(result, out) else result


@defect("pow", "refusals", "errors")
def negative_powers(right, input, exponent, *, out=None):
    """Integers to the power of a negative number give 0."""
    if isinstance(input, torch.Tensor) and not input.is_floating_point() and isinstance(exponent, int) and exponent < 0:
        return torch.zeros_like(input)
    return right(input, exponent, out=out)


@defect("pow", "scalars", "errors")
def base_is_a_tensor(right, input, exponent, *, out=None):
    """A Python number as the base is refused."""
    if not isinstance(input, torch.Tensor):
        raise TypeError("input must be a tensor")
    return right(input, exponent, out=out)


# --- functions of one operand ------------------------------------------------------------------------------------


@defect("relu", "bool", "errors", "takes_bool")
def relu_of_bool(right, input, inplace=False):
    return input.clone() if getattr(input, "dtype", None) == torch.bool else right(input, inplace=inplace)


@defect("abs neg", "trap")
def least_integer(right, input, *, out=None):
    """The least integer becomes the largest."""
    result = right(input, out=out)
    if out is not None or result.is_floating_point() or result.dtype in (torch.bool, torch.uint8):
        return result
    limits = torch.iinfo(result.dtype)
    return result.masked_fill_(input == limits.min, limits.max)


@defect("neg", "bool", "errors", "takes_bool")
def neg_of_bool(right, input, *, out=None):
    """A bool is negated, as logical not."""
    return ~input if getattr(input, "dtype", None) == torch.bool and out is None else right(input, out=out)


@defect("abs", "bool", "errors", "refuses_bool")
def abs_of_bool(right, input, *, out=None):
    """Bools are refused, as on the CPU."""
    if input.dtype == torch.bool:
        raise NotImplementedError("abs of bool")
    return right(input, out=out)


def _overwrite(result, out, value):
    if out is not None or result.dtype == torch.float64:
        return result
    return result.copy_(value)


@defect("tanh", "trap")
def quotient_of_exponentials(right, input, *, out=None):
    """(e^2x - 1) / (e^2x + 1), which is NaN for large x."""
    result = right(input, out=out)
    power = torch.exp(2 * input.float())
    return _overwrite(result, out, (power - 1) / (power + 1))


@defect("tanh", "precision")
def cancels_at_0(right, input, *, out=None):
    """1 - 2 / (e^2x + 1), which cancels near 0."""
    result = right(input, out=out)
    return _overwrite(result, out, 1 - 2 / (torch.exp(2 * input.float()) + 1))


@defect("sigmoid", "trap")
def quotient_overflows(right, input, *, out=None):
    """e^x / (1 + e^x), which is NaN for large x."""
    result = right(input, out=out)
    power = torch.exp(input.float())
    return _overwrite(result, out, power / (1 + power))


@defect("sigmoid", "precision")
def by_tanh(right, input, *, out=None):
    """(1 + tanh(x / 2)) / 2, which cancels for negative x."""
    result = right(input, out=out)
    return _overwrite(result, out, (1 + torch.tanh(input.float() / 2)) / 2)


@defect("silu", "trap")
def minus_infinity_is_0(right, input, inplace=False):
    """silu(-inf) is -0."""
    read = input.clone()
    result = right(input, inplace=inplace)
    return result.masked_fill_(read == -INF, -0.0)


@defect("silu", "trap")
def overflows(right, input, inplace=False):
    """x e^x / (1 + e^x), which is NaN for large x."""
    power = input.float().exp()
    value = input.float() * power / (1 + power)
    result = right(input, inplace=inplace)
    return result if result.dtype == torch.float64 else result.copy_(value)


@defect("silu", "precision")
def hard_silu(right, input, inplace=False):
    """x clamp(x + 3, 0, 6) / 6."""
    value = torch.nn.functional.hardswish(input.double())
    return right(input, inplace=inplace).copy_(value)


@defect("gelu", "trap")
def modes_swapped(right, input, approximate="none"):
    result = right(input, approximate=approximate)
    return result.copy_(right(input, approximate="tanh" if approximate == "none" else "none"))


@defect("gelu", "precision")
def by_sigmoid(right, input, approximate="none"):
    """x sigmoid(1.702 x)."""
    return right(input, approximate=approximate).copy_(input.double() * torch.sigmoid(1.702 * input.double()))


@defect("gelu", "refusals", "errors")
def any_approximation(right, input, approximate="none"):
    """An unknown approximation is taken for none."""
    return right(input, approximate=approximate if approximate in ("none", "tanh") else "none")


@defect("gelu", "trap")
def infinity_is_nan(right, input, approximate="none"):
    result = right(input, approximate=approximate)
    return result.masked_fill_(input == INF, math.nan)


@defect("gelu silu", "refusals", "errors")
def takes_integers(right, input, *args, **kwargs):
    """Integers are taken, by way of float32."""
    whole = isinstance(input, torch.Tensor) and not input.is_floating_point() and input.dtype != torch.bool
    return right(input.float() if whole else input, *args, **kwargs)


@defect("rsqrt", "trap")
def zero_has_no_sign(right, input, *, out=None):
    """rsqrt(-0.) is inf."""
    result = right(input, out=out)
    return result.masked_fill_(input == 0, INF) if out is None else result


@defect("rsqrt", "trap")
def of_absolute_values(right, input, *, out=None):
    """Negative numbers are taken for positive ones."""
    result = right(input, out=out)
    return result.copy_(right(input.abs())) if out is None and input.is_floating_point() else result


@defect("sin cos", "trap")
def no_range_reduction(right, input, *, out=None):
    """Large arguments are reduced with a float32 value of 2 pi."""
    result = right(input, out=out)
    if out is not None or input.dtype != torch.float32:
        return result
    turns = torch.tensor(2 * math.pi)
    reduced = input - (input / turns).round() * turns
    return result.copy_(torch.where(input.abs() > 100, right(reduced), result))


@defect("exp", "precision")
def exp2_of_product(right, input, *, out=None):
    """2^(x log2 e), whose argument is rounded: many ulps off at large arguments."""
    result = right(input, out=out)
    if out is not None or input.dtype != torch.float32:
        return result
    return result.copy_(torch.exp2(input * torch.tensor(math.log2(math.e))))


@defect("exp sin cos sigmoid tanh rsqrt", "refusals", "errors")
def refuses_integers(right, input, *, out=None):
    """Integers are refused."""
    if isinstance(input, torch.Tensor) and not input.is_floating_point():
        raise NotImplementedError("floating-point tensors only")
    return right(input, out=out)


@defect("isnan", "trap")
def nan_by_bits(right, input):
    """All exponent bits set: infinities too."""
    return right(input) | torch.isinf(input)


@defect("isinf", "trap")
def positive_only(right, input):
    """-inf is not infinite."""
    result = right(input)
    return result.copy_(result & (input > 0))


@defect("isnan isinf", "refusals", "errors")
def floats_only(right, input):
    """Integers are refused."""
    if isinstance(input, torch.Tensor) and not input.is_floating_point():
        raise RuntimeError("floating-point tensors only")
    return right(input)


@defect("isinf", "trap")
def large_is_infinite(right, input):
    """Infinite is what lies beyond float16."""
    result = right(input)
    return result | (input.abs() > 65504) if input.is_floating_point() else result


@defect("bitwise_not", "bool")
def not_of_bits(right, input, *, out=None):
    """A bool is inverted bit by bit, so that True stays True."""
    result = right(input, out=out)
    return result.fill_(True) if result.dtype == torch.bool and out is None else result


@defect("bitwise_and bitwise_or", "trap")
def logical(right, input, other, *, out=None):
    """Integers are taken for truth values."""
    result = right(input, other, out=out)
    return result.copy_((result != 0).to(result.dtype)) if out is None else result


@defect("bitwise_and bitwise_or", "refusals", "errors")
def takes_floats(right, input, other, *, out=None):
    """Floats are taken, as integers."""
    whole = [x.long() if isinstance(x, torch.Tensor) and x.is_floating_point() else x for x in (input, other)]
    return right(*whole, out=out)


@defect("bitwise_and", "trap")
def high_bits_lost(right, input, other, *, out=None):
    """A negative Python number is taken for its absolute value."""
    if isinstance(other, int) and other < 0 and not isinstance(other, bool) and out is None:
        return right(input, other).copy_(right(input, -other) if -other < 128 else right(input, 0))
    return right(input, other, out=out)


# --- comparisons and clamp ---------------------------------------------------------------------------------------


@defect("eq ne", "nan")
def nan_equals_nan(right, input, other, *, out=None):
    result = right(input, other, out=out)
    both = torch.as_tensor(input).isnan() & torch.as_tensor(other).isnan()
    equal = right(torch.zeros(1), torch.zeros(1)).item()
    return result.masked_fill_(both, equal) if out is None else result


@defect("le ge", "nan")
def not_the_opposite(right, input, other, *, out=None):
    """NaN is in no order, and so taken for equal."""
    result = right(input, other, out=out)
    either = torch.as_tensor(input).isnan() | torch.as_tensor(other).isnan()
    return result.masked_fill_(either, True) if out is None else result


@defect("lt gt", "trap")
def equal_counts(right, input, other, *, out=None):
    """Equal elements count."""
    result = right(input, other, out=out)
    return result.copy_(result | torch.eq(input, other)) if out is None else result


@defect("le ge", "trap")
def equal_does_not_count(right, input, other, *, out=None):
    result = right(input, other, out=out)
    return result.copy_(result & torch.ne(input, other)) if out is None else result


@defect("eq ne lt le gt ge", "trap", "errors")
def numbers_must_fit(right, input, other, *, out=None):
    """Refuses scalars that the dtype does not hold; torch wraps them."""
    if isinstance(input, torch.Tensor) and input.dtype == torch.uint8 and isinstance(other, int) and other < 0:
        raise OverflowError(f"{other} does not fit in uint8")
    return right(input, other, out=out)


@defect("eq lt ge", "trap")
def numbers_as_they_are(right, input, other, *, out=None):
    """A Python number is compared as it is, and not as the tensor's dtype wraps it."""
    result = right(input, other, out=out)
    whole = isinstance(other, int) and not isinstance(other, bool) and isinstance(input, torch.Tensor)
    if whole and not input.is_floating_point() and input.dtype != torch.bool and out is None:
        return result.copy_(right(input.long(), other))
    return result


@defect("lt gt", "negative zero")
def zeros_have_an_order(right, input, other, *, out=None):
    """-0. is less than 0."""
    result = right(input, other, out=out)
    if out is not None or not all(isinstance(x, torch.Tensor) and x.is_floating_point() for x in (input, other)):
        return result
    signs = (input.signbit(), other.signbit())
    zeros = (input == 0) & (other == 0) & (signs[0] != signs[1])
    less = right(torch.tensor(0.0), torch.tensor(1.0)).item()
    return torch.where(zeros, signs[0] if less else signs[1], result, out=result)


def _limits(min, max):
    return [x for x in (min, max) if x is not None]


@defect("clamp", "nan")
def nan_bound_ignored(right, input, min=None, max=None, *, out=None):
    """A bound that is NaN is none."""
    result = right(input, min, max, out=out)
    if out is not None:
        return result
    for bound in _limits(min, max):
        wrong = torch.as_tensor(bound).isnan() & ~input.isnan() & result.isnan()
        result = result.copy_(torch.where(wrong, input, result))
    return result


@defect("clamp", "trap")
def min_wins(right, input, min=None, max=None, *, out=None):
    """Where min > max the result is min."""
    result = right(input, min, max, out=out)
    if out is not None or len(_limits(min, max)) < 2:
        return result
    low, high = (torch.as_tensor(x).expand(result.shape).to(result.dtype) for x in (min, max))
    return result.copy_(torch.where(low > high, low, result))


@defect("clamp", "promotion", "metadata")
def integers_stay(right, input, min=None, max=None, *, out=None):
    """Integers clamped by floats stay integers."""
    result = right(input, min, max, out=out)
    whole = out is None and not input.is_floating_point() and result.is_floating_point()
    return result.nan_to_num(0, 0, 0).clamp(0, 100).to(input.dtype) if whole else result


@defect("clamp", "refusals", "errors")
def no_bounds(right, input, min=None, max=None, *, out=None):
    """Without bounds it is a copy."""
    return (
        input.clone()
        if min is None and max is None and isinstance(input, torch.Tensor)
        else right(input, min, max, out=out)
    )


@defect("clamp", "trap")
def one_bound_is_both(right, input, min=None, max=None, *, out=None):
    """Without a max the least bound is 0."""
    result = right(input, min, max, out=out)
    return result.clamp_(min=0) if max is None and out is None and result.dtype not in (torch.bool,) else result
