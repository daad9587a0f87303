"""Rules of sums, extremes and products."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from conformance.error_analysis.functions import least, may_be_zero, real
from conformance.error_analysis.pairs import (
    Pair,
    exact,
    made,
    pair_of,
    plain,
    settled,
    unit,
)
from conformance.float_formats import FORMATS, compute_dtype
from conformance.product_bounds import (
    EQUAL_DRIFT,
    EQUAL_SQUARES,
    EQUAL_TERMS,
    PRODUCT_DRIFT,
    PRODUCT_WALK,
    TF32_BIAS,
    TF32_WALK,
    cut_off,
)

aten = torch.ops.aten
HALF = (torch.float16, torch.bfloat16)
Rule = Callable[..., Any]


LANES = 128
"""The fewest partial sums of a long sum in any implementation: fewer fill no vector unit, and no warp."""


def growth(terms: int) -> float:
    """Return how the error of a sum grows with its terms, in unit roundoffs of the sum of magnitudes: sqrt(K) where
    roundings are independent and one accumulator takes all (Higham, 4.2 and 2.8); for a long sum that of ``LANES``
    accumulators, and the depth of a tree over them."""
    if terms < 2:
        return 0.0
    return 1 + min(math.sqrt(terms), math.log2(terms) + math.sqrt(terms / LANES))


def dims_of(dim: Any, rank: int) -> list[int]:
    if dim is None or dim == []:
        return list(range(rank))
    return [one % max(rank, 1) for one in (dim if isinstance(dim, list | tuple) else [dim])]


def terms_of(input: Any, dims: Sequence[int]) -> int:
    """Return how many elements dims have together; a tensor without dims has one."""
    return math.prod(input.shape[one] for one in dims) if input.ndim else 1


def total(func: Any, input: Pair, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Pair:
    """Apply the rule of a sum of K terms: their errors, and ``growth`` unit roundoffs of the sum of magnitudes."""
    if not (dtype or input.dtype).is_floating_point:
        return exact(func.overloadpacket(input.value, *([] if dim is None else [dim, keepdim]), dtype=dtype))
    if dtype is not None and dtype != input.dtype:
        input = aten._to_copy(input, dtype=dtype)
    x, dims = settled(input), dims_of(dim, input.ndim)
    v = real(x)
    if not v.ndim:
        return x
    value, size = v.sum(dims, keepdim), v.abs().sum(dims, keepdim)
    terms = terms_of(v, dims)
    error = x.error.sum(dims, keepdim) + growth(terms) * unit(x.dtype) * size
    # Partial sums may overflow even beside an infinity, and then one infinity meets another.
    size = torch.where(v.isfinite(), v.abs(), 0.0).sum(dims, keepdim)
    overflows = ~value.isnan() & (size > FORMATS[compute_dtype(x.dtype)].max)
    return made(value, error.nan_to_num(nan=0.0, posinf=math.inf), any_of(x.unsure, dims, keepdim) | overflows, x.dtype)


def any_of(mask: torch.Tensor, dims: list[int], keepdim: bool) -> torch.Tensor:
    return mask.double().amax(dims, keepdim) > 0 if mask.numel() else mask.double().sum(dims, keepdim) > 0


def mean(func: Any, input: Pair, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Any:
    if dtype is not None and dtype != input.dtype:
        input = aten._to_copy(input, dtype=dtype)
    dims = dims_of(dim, input.ndim)
    return torch.sum(input, dims, keepdim) / float(terms_of(input, dims))


def prod(func: Any, input: Pair, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Pair:
    """Apply the rule of a product of K factors: what their errors change, K unit roundoffs, and, since partial products
    may vanish and grow again, so many smallest numbers as the factors above 1 make."""
    if not (dtype or input.dtype).is_floating_point:
        return exact(func.overloadpacket(input.value, *([] if dim is None else [dim, keepdim]), dtype=dtype))
    if dtype is not None and dtype != input.dtype:
        input = aten._to_copy(input, dtype=dtype)
    x, dims = settled(input), dims_of(dim, input.ndim)

    def of(factors: torch.Tensor) -> torch.Tensor:
        for one in sorted(dims, reverse=True) if factors.ndim else ():
            factors = factors.prod(one, keepdim)
        return factors

    terms = terms_of(x, dims)
    return _multiplied(of, x, torch.tensor(float(terms)), any_of(x.unsure, dims, keepdim) if x.ndim else x.unsure)


def cumprod(func: Any, input: Pair, dim: int, *, dtype: torch.dtype | None = None) -> Pair:
    """Apply the rule of cumulative products: each element is a product of those before it."""
    if not (dtype or input.dtype).is_floating_point:
        return exact(func(input.value, dim, dtype=dtype))
    x = settled(input if dtype is None else aten._to_copy(input, dtype=dtype))
    terms = torch.ones_like(real(x)).cumsum(dim)
    return _multiplied(lambda factors: factors.cumprod(dim), x, terms, x.unsure.cumsum(dim) > 0)


def _multiplied(of: Callable[[torch.Tensor], torch.Tensor], x: Pair, terms: torch.Tensor, unsure: torch.Tensor) -> Pair:
    """Return the products that ``of`` makes of settled factors."""
    value, size, form = of(real(x)), real(x).abs(), FORMATS[compute_dtype(x.dtype)]
    largest = of((torch.where(size.isfinite(), size, 1.0) + x.error).clamp(min=1.0))
    error = of(size + x.error) - of(size) + terms * unit(x.dtype) * value.abs()
    error = error.nan_to_num(nan=0.0, posinf=math.inf) + terms * largest * least(x.dtype)
    # Where a partial product overflows, what follows may be anything.
    return made(value, error, unsure | ((largest > form.max) & ~value.isnan()), x.dtype)


def cumsum(func: Any, input: Pair, dim: int, *, dtype: torch.dtype | None = None) -> Pair:
    """Apply the rule of a cumulative sum: each element is a sum of those before it."""
    if not (dtype or input.dtype).is_floating_point:
        return exact(func(input.value, dim, dtype=dtype))
    x = settled(input)
    v = real(x)
    terms = growth(v.shape[dim] if v.ndim else 1)
    error = x.error.cumsum(dim) + terms * unit(x.dtype) * v.abs().cumsum(dim)
    return made(v.cumsum(dim), error.nan_to_num(nan=0.0), x.unsure.cumsum(dim) > 0, x.dtype)


def logcumsumexp(func: Any, input: Pair, dim: int) -> Pair:
    """Apply the rule of logarithms of cumulative sums of powers: the largest error of the terms, what a sum of them
    loses against it, and two ulps of the logarithm."""
    x = settled(input)
    value = func(real(x), dim)
    terms = growth(x.shape[dim] if x.ndim else 1) + 4
    largest = real(x).abs().nan_to_num(posinf=0.0).cummax(dim).values if x.numel() else real(x)
    error = (x.error.cummax(dim).values if x.numel() else x.error) + unit(x.dtype) * (terms + 2 * largest)
    return made(value, error + 2 * unit(x.dtype) * value.abs(), x.unsure.cumsum(dim) > 0, x.dtype)


def extreme(of: Callable[..., torch.Tensor]) -> Rule:
    """Make the rule of a largest or smallest element: the largest error of those that may be it."""

    def entered(func: Any, input: Pair, dim: Any = None, keepdim: bool = False) -> Pair:
        x, dims = settled(input), dims_of(dim, input.ndim)
        v = x.value
        if not v.ndim:
            return x
        value, whole = of(v, dims, keepdim), of(v, dims, True)
        if not x.dtype.is_floating_point:
            return Pair(value, None, any_of(x.unsure, dims, keepdim), x.dtype)
        largest = x.error.amax(dims, True) if x.error.numel() else x.error.sum(dims, True)
        candidates = (v - whole).abs() <= x.error + largest
        error = (
            torch.where(candidates, x.error, 0.0).sum(dims, keepdim)
            if not v.numel()
            else torch.where(candidates, x.error, 0.0).amax(dims, keepdim)
        )
        return made(value, error, any_of(x.unsure, dims, keepdim), x.dtype)

    return entered


def with_places(of: str) -> Rule:
    """Make the rule of an extreme of a dim and its place, which the errors may decide."""

    def entered(func: Any, input: Pair, dim: int | None = None, keepdim: bool = False) -> Any:
        value = getattr(torch, f"a{of}")(input, () if dim is None else dim, keepdim)
        if dim is None:
            return value
        places = func(settled(input).value, dim, keepdim)[1]
        doubt = any_of(settled(input).error > 0, [dim], keepdim) | value.unsure
        return value, Pair(places, None, doubt, torch.int64)

    return entered


def argument(func: Any, input: Pair, dim: int | None = None, keepdim: bool = False) -> Pair:
    """Apply the rule of the place of an extreme, which the errors may decide."""
    x = settled(input)
    places = func(x.value, dim, keepdim)
    doubt = any_of((x.error > 0) | x.unsure, dims_of(dim, input.ndim), keepdim)
    return Pair(places, None, doubt.broadcast_to(places.shape), torch.int64)


def ordered(func: Any, input: Pair, *args: Any, **kwargs: Any) -> Any:
    """Apply the rule of sorting: each value has the largest error of all, and the errors may decide the places."""
    x = settled(input)
    value, places = func(x.value, *args, **kwargs)
    largest = x.error.max() if x.error.numel() else torch.zeros(())
    unsure = x.unsure.any().broadcast_to(value.shape)
    return made(value, largest, unsure, x.dtype), Pair(places, None, unsure | (largest > 0), torch.int64)


def running(func: Any, input: Pair, dim: int) -> Any:
    """Apply the rule of the largest or smallest elements so far, with their places: the largest error so far."""
    x = settled(input)
    value, places = func(x.value, dim)
    error = x.error.cummax(dim).values if x.error.numel() else x.error
    unsure = x.unsure.cumsum(dim) > 0 if x.ndim else x.unsure
    return made(value, error, unsure, x.dtype), Pair(places, None, unsure | (error > 0), torch.int64)


def located(func: Any, first: Any, second: Any, **kwargs: Any) -> Pair:
    """Apply the rule of places among sorted numbers, which the errors may decide."""
    a, b = pair_of(first), pair_of(second)
    places = func(a.value, b.value, **plain(kwargs))
    doubt = a.unsure.any() | a.error.any() | b.unsure.any() | b.error.any()
    return Pair(places, None, doubt.broadcast_to(places.shape).clone(), places.dtype)


def ranked(func: Any, input: Pair, *args: Any, **kwargs: Any) -> Any:
    """Apply the rule of one element by its rank, such as the median, with its place or without."""
    if not args and not kwargs:
        elements: Any = input.reshape(-1)
        value, _ = ordered(aten.sort.default, elements, -1)
        # Each has the largest error of all; of none the median is NaN.
        error = value.error[0] if value.numel() else torch.zeros(())
        return made(func(settled(input).value), error, value.unsure.any(), input.dtype)
    return ordered(func, input, *args, **kwargs)


def _cast(pair: Any) -> torch.Tensor:
    """Return the rounding error of a cast to a half dtype, if that was the operand's last operation."""
    if not isinstance(pair, Pair) or pair.rounding not in HALF:
        return torch.zeros(())
    return settled(pair).error - pair.error


def _uncast(pair: Any) -> Pair:
    """Return the operand settled, without the error that ``_cast`` returns."""
    found = pair_of(pair)
    return Pair(found.value, pair.error, found.unsure, found.dtype) if _cast(pair).any() else found


def _of_casts(
    of: Callable[..., torch.Tensor], first: tuple[Any, torch.Tensor], second: tuple[Any, torch.Tensor], *args: Any
) -> torch.Tensor:
    """Return what the casts of factors, each a pair and its values, may change in sums of products: what they change if
    the values are rounded, of which equal ones are rounded alike, and three deviations of independent roundings; all
    roundings together where that is less."""
    (input, x), (other, y) = first, second
    casts = [(pair, _cast(pair)) for pair in (input, other)]
    if not any(half.any() for _, half in casts):
        return torch.zeros(())
    most, deviations = torch.zeros(()), torch.zeros(())
    for pair in ((casts[0][1], y), (x, casts[1][1])):
        if pair[0].ndim and pair[1].ndim:
            most = most + of(*(one.abs() for one in pair), *args)
            deviations = deviations + 3 * of(*(one**2 for one in pair), *args).sqrt()
    if all(half.ndim for _, half in casts):
        most = most + of(casts[0][1], casts[1][1], *args)
    factors = zip(casts, (x, y), strict=True)
    rounded = [one.to(pair.rounding).double() if half.any() else one for (pair, half), one in factors]
    together = (of(*rounded, *args) - of(x, y, *args)).abs().nan_to_num(nan=math.inf)
    return torch.minimum(most, together + deviations)


def _product(of: Callable[..., torch.Tensor], terms: Callable[..., int], tensor_cores: bool = True) -> Rule:
    """Make the rule of sums of K products: |A| eB + eA |B|, and 4 sqrt(K) unit roundoffs of |A| |B| and K / 8 of the
    result, K / 4 where terms are equal, as in ``bounds``: tensor cores have one accumulator."""

    def entered(func: Any, input: Pair, other: Pair, *args: Any) -> Any:
        a, b, dtype = _uncast(input), _uncast(other), input.dtype
        if not dtype.is_floating_point:
            return exact(of(a.value, b.value, *args))
        x, y = real(a), real(b)
        value, size = of(x, y, *args), of(x.abs(), y.abs(), *args)
        count, form = terms(x, y), FORMATS[compute_dtype(dtype)]
        # Each product is rounded, by half a step at least; those of zeros are exact.
        drift = torch.full((), PRODUCT_DRIFT)
        if count >= EQUAL_TERMS:
            drift = torch.where(count * of(x**2, y**2, *args) <= EQUAL_SQUARES * value**2, EQUAL_DRIFT, PRODUCT_DRIFT)
        error = unit(dtype) * (PRODUCT_WALK * math.sqrt(count) * size + drift * count * value.abs())
        error = error + torch.where(size > 0, count * form.subnormal / 2, 0.0)
        for first, second in ((a.error, y.abs()), (x.abs(), b.error), (a.error, b.error)):
            if first.any() and second.any():
                error = error + of(first, second, *args)
        error = error + _of_casts(of, (input, x), (other, y), *args)
        if tensor_cores and dtype == torch.float32 and torch.get_float32_matmul_precision() != "highest":
            walk = TF32_BIAS * value.abs() + TF32_WALK * of(x**2, y**2, *args).sqrt()
            cut = of(*(torch.as_tensor(cut_off(one.numpy())) for one in (x, y)), *args)
            error = error + torch.maximum(walk, (cut - value).abs().nan_to_num(nan=0.0))
        if not size.isfinite().all():
            # Partial sums may overflow even beside an infinity, and then one infinity meets another.
            size = of(*(torch.where(one.isfinite(), one.abs(), 0.0) for one in (x, y)), *args)
        unsure = ~value.isnan() & (size > form.max)
        doubts = (
            (a.unsure, torch.ones_like(y, dtype=torch.bool)),
            (torch.ones_like(x, dtype=torch.bool), b.unsure),
            (~x.isfinite(), may_be_zero(b)),
            (may_be_zero(a), ~y.isfinite()),
        )
        for first, second in doubts:
            if first.any() and second.any():
                unsure = unsure | (of(first.double(), second.double(), *args) > 0)
        return made(value, error.nan_to_num(nan=0.0, posinf=math.inf), unsure, dtype)

    return entered


def average(func: Any, input: Pair, size: Sequence[int], *args: Any) -> Pair:
    """Apply the rule of averages over windows: sums of as many terms as a window has."""
    x = settled(input)
    value, magnitude = func(real(x), size, *args), func(real(x).abs(), size, *args)
    error = func(x.error, size, *args) + (growth(math.prod(size)) + 1) * unit(x.dtype) * magnitude
    unsure = func(x.unsure.double(), size, *args) > 0
    overflows = value.isfinite() & (magnitude * math.prod(size) > FORMATS[compute_dtype(x.dtype)].max)
    return made(value, error.nan_to_num(nan=0.0, posinf=math.inf), unsure | overflows, x.dtype)


def interpolated(func: Any, input: Pair, *args: Any) -> Pair:
    """Apply the rule of linear interpolation: weights are differences of coordinates, which have an error of a unit
    roundoff of the size of their dim."""
    x = settled(input)
    value, magnitude = func(real(x), *args), func(real(x).abs(), *args)
    sizes = sum(max(one, other) for one, other in zip(x.shape[2:], value.shape[2:], strict=True))
    form, taps = FORMATS[compute_dtype(x.dtype)], 2 ** (x.ndim - 2)
    error = func(x.error, *args) + (4 + 2 * sizes) * form.unit * magnitude + taps * form.subnormal
    unsure = func(x.unsure.double(), *args) > 0
    overflows = value.isfinite() & (magnitude > form.max / 2)
    return made(value, error.nan_to_num(nan=0.0, posinf=math.inf), unsure | overflows, x.dtype)


mm = _product(torch.matmul, lambda x, y: x.shape[-1])


def addmm(func: Any, input: Any, first: Pair, second: Pair, *, beta: float = 1, alpha: float = 1) -> Any:
    """Apply the rule of beta input + alpha (A B)."""
    found = mm(func, first, second)
    found = found if alpha == 1 else found * alpha
    return found if beta == 0 else _begun(found, input if beta == 1 else input * beta, first.shape[-1])


def _begun(found: Any, start: Any, terms: int) -> Any:
    """Return sums of products plus a number to which some add them one after the other: each sum may lose half an ulp
    of it."""
    total = found + start
    if not total.dtype.is_floating_point:
        return total
    size = real(pair_of(start)).abs()
    # Sums on the way may be larger than the last one.
    largest = FORMATS[compute_dtype(total.dtype)].max / (terms + 1)
    overflows = total.value.isfinite() & (real(found).abs() + size > largest)
    lost = (unit(total.dtype) * math.sqrt(terms + 1) * size).nan_to_num(posinf=0.0)
    return made(total.value, total.error + lost, total.unsure | overflows, total.dtype, total.rounding)


def convolution(func: Any, input: Pair, weight: Pair, bias: Any, *args: Any) -> Any:
    """Apply the rule of a convolution: a product for each output element; a bias is one term more."""

    def of(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return aten.convolution(x, w, None, *args)

    transposed = bool(args[3])
    grouped = 1 if transposed else 0
    found = _product(of, lambda x, w: math.prod(w.shape) // max(w.shape[grouped], 1))(func, input, weight)
    if bias is None:
        return found
    terms = math.prod(weight.shape) // max(weight.shape[grouped], 1)
    return _begun(found, bias.reshape(-1, *(1 for _ in range(input.ndim - 2))), terms)
