"""Planted defects of functions of one operand."""

from __future__ import annotations

import math

import torch

from conformance.selftest.defect_registry import defect

INF = math.inf


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
