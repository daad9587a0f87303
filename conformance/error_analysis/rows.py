"""Rules of operations that are composed of others, such as softmax and the norms."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from conformance.error_analysis.pairs import NoRule, Pair, made, settled, taken_apart, unit
from conformance.error_analysis.sums import dims_of

aten = torch.ops.aten
Rule = Callable[..., Any]


Composed = Callable[..., Any]


def composed(function: Composed) -> Rule:
    """Make the rule of a composed operation: each part loses its own; its casts are not the reference's."""

    def entered(func: Any, *args: Any, **kwargs: Any) -> Any:
        with taken_apart():
            return function(*args, **kwargs)

    return entered


def softmax(input: Any, dim: int, half_to_float: bool = False) -> Any:
    powers = (input - torch.amax(input, dim, True)).exp() if input.numel() else input
    found = powers / powers.sum(dim, True)
    return found.float() if half_to_float else found


def log_softmax(input: Any, dim: int, half_to_float: bool = False) -> Any:
    shifted = input - torch.amax(input, dim, True) if input.numel() else input
    found = shifted - shifted.exp().sum(dim, True).log()
    return found.float() if half_to_float else found


def logsumexp(input: Any, dim: Any, keepdim: bool = False) -> Any:
    dims = dims_of(dim, input.ndim)
    largest = torch.amax(input, dims, True)
    largest = torch.where(largest.isinf(), torch.zeros_like(largest), largest)
    found = (input - largest).exp().sum(dims, True).log() + largest
    return found if keepdim else found.reshape([size for one, size in enumerate(input.shape) if one not in dims])


def variance(input: Any, dim: Any = None, correction: float | None = None, keepdim: bool = False, **_: Any) -> Any:
    dims = dims_of(dim, input.ndim)
    apart = input - input.mean(dims, True)
    terms = math.prod(input.shape[one] for one in dims)
    return (apart * apart).sum(dims, keepdim) / float(max(terms - (1 if correction is None else correction), 0))


def _by_difference(input: Pair, mean: Pair, scale: Pair, found: Pair) -> Pair:
    """Add the error of norms that scale the operand and the mean each by itself, and round both."""
    sizes = (input.value.double().abs() + mean.value.abs()) * scale.value
    error = found.error + 2 * unit(found.dtype) * sizes.nan_to_num(nan=0.0, posinf=0.0)
    return made(found.value, error, found.unsure, found.dtype, found.rounding)


def layer_norm(input: Any, shape: Sequence[int], weight: Any, bias: Any, eps: float) -> Any:
    dims = list(range(input.ndim - len(shape), input.ndim))
    mean = input.mean(dims, True)
    apart = input - mean
    scale = ((apart * apart).mean(dims, True) + eps).rsqrt()
    found = _by_difference(input, mean, scale, apart * scale)
    found = found if weight is None else found * weight
    return (found if bias is None else found + bias), mean, scale


def group_norm(input: Any, weight: Any, bias: Any, n: int, c: int, area: int, groups: int, eps: float) -> Any:
    rows = input.reshape(n, groups, -1)
    mean = rows.mean(2, True)
    apart = rows - mean
    scale = ((apart * apart).mean(2, True) + eps).rsqrt()
    found = _by_difference(rows, mean, scale, apart * scale).reshape(input.shape)
    affine = [1, c, *(1 for _ in range(input.ndim - 2))]
    found = found if weight is None else found * weight.reshape(affine)
    return (found if bias is None else found + bias.reshape(affine)), mean.reshape(n, groups), scale.reshape(n, groups)


def attention(
    query: Any, key: Any, value: Any, attn_mask: Any = None, is_causal: bool = False, scale: float | None = None
) -> Any:
    """Apply the rule of attention. Probabilities may be rounded to the dtype of the values, as every fast
    implementation does (SPEC.md, 3)."""
    if query.ndim > 2 and (repeats := query.shape[-3] // max(key.shape[-3], 1)) > 1:
        key, value = (one.repeat_interleave(repeats, -3) for one in (key, value))
    scores = (query @ key.transpose(-2, -1)) * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    if is_causal:
        attn_mask = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool).tril()
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        scores = scores.masked_fill(torch.logical_not(attn_mask), -math.inf)
    elif attn_mask is not None:
        scores = scores + attn_mask
    largest = scores.amax(-1, True) if scores.numel() else scores
    largest = torch.where(largest == -math.inf, torch.zeros_like(largest), largest)
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
