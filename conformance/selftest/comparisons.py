"""Planted defects of bit operations, comparisons and clamp."""

from __future__ import annotations

import torch

from conformance.selftest.defect_registry import defect


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
