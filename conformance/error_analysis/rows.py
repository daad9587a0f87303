"""Rules of operations that are composed of others, such as softmax and the norms."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from conformance.error_analysis.functions import real
from conformance.error_analysis.pairs import NoRule, Pair, made, settled, taken_apart
from conformance.error_analysis.sums import dims_of, terms_of
from conformance.float_formats import FORMATS, compute_dtype

aten = torch.ops.aten
Rule = Callable[..., Any]


Composed = Callable[..., Any]


def composed(function: Composed) -> Rule:
    """Make the rule of a composed operation: each part loses its own; its casts are not the reference's."""

    def entered(func: Any, *args: Any, **kwargs: Any) -> Any:
        with taken_apart():
            return function(*args, **kwargs)

    return entered


def _subtracted(largest: Any) -> Any:
    """Return the largest number of a row as what is subtracted from all of it, and, of a logarithm, added again: its
    error changes nothing."""
    return Pair(largest.value, None, largest.unsure, largest.dtype) if isinstance(largest, Pair) else largest


def softmax(input: Any, dim: int, half_to_float: bool = False) -> Any:
    powers = (input - _subtracted(torch.amax(input, dim, True))).exp() if input.numel() else input
    found = powers / powers.sum(dim, True)
    return found.float() if half_to_float else found


def log_softmax(input: Any, dim: int, half_to_float: bool = False) -> Any:
    shifted = input - _subtracted(torch.amax(input, dim, True)) if input.numel() else input
    found = shifted - shifted.exp().sum(dim, True).log()
    return found.float() if half_to_float else found


def logsumexp(input: Any, dim: Any, keepdim: bool = False) -> Any:
    dims = dims_of(dim, input.ndim)
    if not terms_of(input, dims):
        return input.exp().sum(dims, keepdim).log()
    largest = torch.amax(input, dims, True)
    largest = _subtracted(torch.where(largest.isinf(), torch.zeros_like(largest), largest))
    found = (input - largest).exp().sum(dims, True).log() + largest
    return found if keepdim else found.reshape([size for one, size in enumerate(input.shape) if one not in dims])


def variance(input: Any, dim: Any = None, correction: float | None = None, keepdim: bool = False, **_: Any) -> Any:
    dims = dims_of(dim, input.ndim)
    apart = input - input.mean(dims, True)
    terms = terms_of(input, dims)
    return (apart * apart).sum(dims, keepdim) / float(max(terms - (1 if correction is None else correction), 0))


def vector_norm(
    input: Any, ord: float = 2, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Any:
    """Apply the rule of a norm by its powers, which may overflow or vanish, of one element too."""
    if dtype is not None and dtype != input.dtype:
        input = aten._to_copy(input, dtype=dtype)
    dims, given = dims_of(dim, input.ndim), input.dtype
    if ord == 0:
        return (input != 0).to(input.dtype).sum(dims, keepdim)
    if math.isinf(ord):
        return (torch.amax if ord > 0 else torch.amin)(input.abs(), dims, keepdim)
    if ord == 1:
        return input.abs().sum(dims, keepdim)
    if ord == 2:
        return (input * input).sum(dims, keepdim).sqrt()
    if given in (torch.float16, torch.bfloat16):
        # As numbers of a half type the exponents would be others.
        input = aten._to_copy(input, dtype=torch.float32)
    return aten._to_copy(input.abs().pow(ord).sum(dims, keepdim).pow(1 / ord), dtype=given)


def cdist(first: Any, second: Any, p: float, compute_mode: int | None = None) -> Any:
    return vector_norm(first.unsqueeze(-2) - second.unsqueeze(-3), p, [-1])


def logaddexp(first: Any, second: Any) -> Any:
    largest = torch.maximum(first, second)
    found = largest + (first - second).abs().neg().exp().log1p()
    return torch.where((first == second) & largest.isinf(), largest, found)


def var_mean(input: Any, dim: Any = None, correction: float | None = None, keepdim: bool = False) -> Any:
    dims = dims_of(dim, input.ndim)
    mean = input.mean(dims, keepdim)
    # What updates the mean element by element gets no number from an infinity.
    unsure = mean.unsure | ~mean.value.isfinite()
    return variance(input, dim, correction, keepdim), made(mean.value, mean.error, unsure, mean.dtype, mean.rounding)


def std_mean(input: Any, dim: Any = None, correction: float | None = None, keepdim: bool = False) -> Any:
    found, mean = var_mean(input, dim, correction, keepdim)
    return found.sqrt(), mean


def _normalized(input: Any, mean: Any, scale: Any, weight: Any, bias: Any) -> Any:
    """Return (input - mean) scale weight + bias. Some multiply scale and weight first, the operand and the mean each by
    that, and subtract the latter from the bias: they round these, which may overflow or vanish."""
    found, form = (input - mean) * scale, FORMATS[compute_dtype(input.dtype)]
    terms, factor = real(input).abs() + real(mean).abs(), real(scale)
    lost: Any = 0.0
    if weight is not None:
        found, factor, lost = found * weight, factor * real(weight).abs(), terms * form.subnormal
    sizes = terms * factor
    unsure = found.unsure | ~sizes.isfinite()
    lost = lost + 3 * form.unit * sizes
    if bias is not None:
        found, size = found + bias, real(bias).abs()
        sizes, lost = sizes + size, lost + form.unit * size
    # NaN stays sure; infinity less infinity may come of the second form alone.
    unsure = found.unsure | (~found.value.isnan() & (unsure | (torch.maximum(sizes, factor) > form.max)))
    error = found.error + lost.nan_to_num(nan=0.0, posinf=0.0)
    return made(found.value, error, unsure, found.dtype, found.rounding)


def layer_norm(input: Any, shape: Sequence[int], weight: Any, bias: Any, eps: float) -> Any:
    dims = list(range(input.ndim - len(shape), input.ndim))
    mean = input.mean(dims, True)
    apart = input - mean
    scale = ((apart * apart).mean(dims, True) + eps).rsqrt()
    return _normalized(input, mean, scale, weight, bias), mean, scale


def group_norm(input: Any, weight: Any, bias: Any, n: int, c: int, area: int, groups: int, eps: float) -> Any:
    rows = input.reshape(n, groups, c // groups * area)
    mean = rows.mean(2, True)
    apart = rows - mean
    scale = ((apart * apart).mean(2, True) + eps).rsqrt()
    parts = [1, groups, c // groups, *(1 for _ in range(input.ndim - 2))]
    weight, bias = (None if one is None else one.reshape(parts) for one in (weight, bias))
    whole, places = input.reshape([n, groups, c // groups, *input.shape[2:]]), [n, groups, *(1 for _ in parts[2:])]
    found = _normalized(whole, mean.reshape(places), scale.reshape(places), weight, bias)
    return found.reshape(input.shape), mean.reshape(n, groups), scale.reshape(n, groups)


def batch_norm(
    input: Any, weight: Any, bias: Any, mean: Any, variance: Any, training: bool, momentum: float, eps: float
) -> Any:
    """Apply the rule of batch norm, by the numbers that are given or by those of the batch."""
    dims = [one for one in range(input.ndim) if one != 1]
    affine = [1, -1, *(1 for _ in range(input.ndim - 2))]
    given: list[Any] = [None if one is None else one.reshape(affine) for one in (weight, bias, mean, variance)]
    weight, bias, mean, variance = given
    if training or mean is None:
        mean = input.mean(dims, True)
        variance = ((input - mean) * (input - mean)).mean(dims, True)
    scale = (variance + eps).rsqrt()
    return _normalized(input, mean, scale, weight, bias), mean.reshape(-1), scale.reshape(-1)


def batch_norm_given(input: Any, weight: Any, bias: Any, mean: Any, variance: Any, momentum: float, eps: float) -> Any:
    return batch_norm(input, weight, bias, mean, variance, False, momentum, eps)


def attention(
    query: Any, key: Any, value: Any, attn_mask: Any = None, is_causal: bool = False, scale: float | None = None
) -> Any:
    """Apply the rule of attention. Probabilities may be rounded to the dtype of the values, as every fast
    implementation does (SPEC.md, 3)."""
    if query.ndim > 2 and (repeats := query.shape[-3] // max(key.shape[-3], 1)) > 1:
        key, value = (one.repeat_interleave(repeats, -3) for one in (key, value))
    scores = (query @ key.transpose(-2, -1)) * (1 / math.sqrt(max(query.shape[-1], 1)) if scale is None else scale)
    if is_causal:
        attn_mask = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool).tril()
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        scores = scores.masked_fill(torch.logical_not(attn_mask), -math.inf)
    elif attn_mask is not None:
        scores = scores + attn_mask
    largest = scores.amax(-1, True) if scores.numel() else scores
    largest = torch.where(largest == -math.inf, torch.zeros_like(largest), largest)
    largest = _subtracted(largest)
    powers = (scores - largest).exp()
    sums = powers.sum(-1, True)
    rounded = powers
    if value.dtype != torch.float32 and value.dtype != torch.float64:
        powers = settled(powers)
        rounded = Pair(powers.value, powers.error, powers.unsure, value.dtype, value.dtype)
    found = (rounded @ value) / torch.where(sums == 0, torch.ones_like(sums), sums)
    return found, (largest + sums.log()).squeeze(-1)


def flash(
    query: Any,
    key: Any,
    value: Any,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: Any = None,
    scale: float | None = None,
) -> Any:
    return attention_math(query, key, value, attn_mask, dropout_p, is_causal, scale=scale)


def attention_math(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    dropout_mask: Any = None,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    if dropout_p:
        raise NoRule("no bound can be derived: dropout is random. Give a bound")
    return attention(query, key, value, attn_mask, is_causal, scale)


def item(func: Any, input: Pair) -> Any:
    """Return a number that the reference reads out of a tensor. Raises NoRule where it has an error, which cannot
    follow it."""
    if input.error.any():
        raise NoRule("no bound can be derived: the reference reads a number out of a tensor that it computed")
    return input.value.item()


def glu(func: Any, input: Pair, dim: int = -1) -> Any:
    first, second = input.chunk(2, dim)
    return first * second.sigmoid()
