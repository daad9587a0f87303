"""Planted defects of add, sub, mul, div and pow."""

from __future__ import annotations

import math
from typing import Any

import torch

from conformance.selftest import families as of
from conformance.selftest.defect_registry import defect


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


@defect("sub", "alpha")
def alpha_negated_as_a_difference(right, input, other, *, alpha=1, out=None):
    """-alpha is 0 - alpha: of 0. it is no -0., and -0. - 0. * x becomes 0."""
    result = right(input, other, alpha=alpha, out=out)
    if alpha == 0 and out is None and result.is_floating_point():
        return result.masked_fill_(result == 0, 0.0)
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
