"""Gradients of attention: with P = softmax(scores), dV = P^T g, dP = g V^T and dS = P (dP - rowsum(P dP)), and dS times
keys, queries and 1 are the others (T. Dao et al., FlashAttention, arXiv:2205.14135, appendix B.2)."""

from __future__ import annotations

import math

import numpy as np
import torch

from conformance import bounds, float_formats, oracle, product_bounds
from conformance.ops import _attention as attention
from conformance.ops._attention_oracle import _mask
from conformance.ops._gradients import Gradients
from conformance.running import Running, exact
from conformance.spec import Call

NAMES = ("query", "key", "value", "attn_mask")


def attended(call: Call, dout: torch.Tensor) -> Gradients:
    """Of a call without a cache."""
    arguments = attention.Arguments(*call.args, **call.kwargs)
    (part,) = attention.parts(arguments)
    dtype = dout.dtype
    scale = arguments.scale
    scale = attention.standard_scale(part.query.shape[-1]) if scale is None else float(oracle.operand(scale, dtype))
    with np.errstate(all="ignore"):
        found = _gradients(part, exact(dout, dtype), scale, arguments.attn_mask)
    places = {name: place for place, name in enumerate(NAMES[: len(call.args)])}
    return {places.get(name, name): gradient for name, gradient in found.items()}


def _gradients(part: attention.Part, g: Running, scale: float, whole: torch.Tensor | None) -> dict[str, Running]:
    dtype = g.dtype
    q, k, v = (exact(x, dtype) for x in (part.query, part.key, part.value))
    own = k.shape, v.shape
    group = q.shape[-3] // max(k.shape[-3], 1)
    k, v = (one.laid(lambda array: np.repeat(array, group, axis=-3)) for one in (k, v))
    added, allowed = _mask(part, (*q.shape[:-1], k.shape[-2]))
    weights = _weights(q, k, scale, added, allowed)
    sides = (g @ v.mT).stored()
    along = (weights * sides).sum(-1, keepdims=True)
    # Or the sum of g times the result, which is stored.
    result = (weights @ v).stored()
    # Whose sum is not divided by the total of the weights before its end.
    beyond = ~(2 * allowed.astype(float) @ np.abs(v.value) <= float_formats.FORMATS[g.compute].max).all(
        -1, keepdims=True
    )
    along_result = (g * result).sum(-1, keepdims=True).error + np.where(beyond, np.inf, 0.0)
    along = Running(along.value, along.error + along_result, dtype).stored()
    slopes = (weights * (sides - along).stored()).stored()
    to_query = _scaled(slopes, k, scale)
    to_key, to_value = _shared(_scaled(slopes.mT, q, scale), own[0]), _shared(weights.mT @ g, own[1])
    found = {"query": to_query, "key": to_key, "value": to_value}
    if whole is not None and whole.is_floating_point():
        found["attn_mask"] = slopes.summed_to(tuple(whole.shape))
    return found


def _scaled(left: Running, right: Running, scale: float) -> Running:
    """The product times the scale; either factor may be scaled first, and stored."""
    found = (left @ right).stored()
    size = max(1.0, abs(scale)) * (np.abs(left.value) @ np.abs(right.value))
    factor = Running(np.asarray(scale), np.asarray(abs(scale) * float_formats.FORMATS[left.compute].unit), left.dtype)
    result = found * factor
    lost = ~(size <= float_formats.FORMATS[left.compute].max)
    return Running(result.value, np.where(lost, np.inf, result.error), left.dtype)


def _shared(found: Running, shape: tuple[int, ...]) -> Running:
    """The sum over the heads of queries that share a head of keys."""
    group = found.shape[-3] // max(shape[-3], 1)
    # Of no heads of queries the sum is 0.
    if group == 1 or not shape[-3]:
        return found
    return found.stored().laid(lambda array: array.reshape(*shape[:-2], group, *shape[-2:])).sum(-3)


def _weights(q: Running, k: Running, scale: float, added: np.ndarray, allowed: np.ndarray) -> Running:
    """The weights, of scores that are off by ``bounds.score_error``; a row without keys has none."""
    dtype = q.dtype
    score = np.where(allowed, q.value @ k.mT.value * scale + added, -np.inf)
    size = product_bounds.aligned(q.value, dtype) @ product_bounds.aligned(k.mT.value, dtype) * abs(scale)
    plain = np.where(allowed, np.abs(added), 0.0)
    off = bounds.score_error(size, plain, q.shape[-1], dtype)
    if product_bounds.uses_tf32(dtype):
        off = (
            off
            + product_bounds.TF32_BIAS * size
            + product_bounds.TF32_WALK * product_bounds.tf32_spread(q.value, k.mT.value) * abs(scale)
        )
    # What is not finite in a query or key, or beyond the range, is anybody's in its whole row: what a mask hides may
    # still be added to it.
    lost = ~(q.error.sum(-1, keepdims=True) + np.swapaxes(k.error.sum(-1, keepdims=True), -1, -2) == 0)
    lost |= ~(2 * size * max(1.0, 1 / max(abs(scale), 1e-300)) <= float_formats.FORMATS[q.compute].max)
    row = lost.any(-1, keepdims=True)
    total, least, most = (_log_sum(score + sign * off) for sign in (0, -1, 1))
    value = np.where(allowed, np.exp(score - total), 0.0)
    high, low = np.minimum(np.exp(score + off - least), 1.0), np.exp(score - off - most)
    form = float_formats.FORMATS[q.compute]
    below = np.where(value > 0, np.abs(score - score.max(-1, keepdims=True, initial=-np.inf)), 0.0)
    own = bounds.softmax(value, below, dtype) + math.ldexp(2.0, form.least)
    error = np.where(allowed, np.maximum(high - value, value - low) + own, 0.0)
    error = np.where(row | np.isnan(error), np.inf, error)
    return Running(value, np.where(allowed.any(-1, keepdims=True) | row, error, 0.0), dtype).stored()


def _log_sum(score: np.ndarray) -> np.ndarray:
    """log(sum(exp(score))) of each row; of one without keys 0."""
    top = score.max(-1, keepdims=True, initial=-np.inf)
    top = np.where(np.isfinite(top), top, 0.0)
    total = np.exp(score - top).sum(-1, keepdims=True)
    return top + np.log(np.where(total == 0, 1.0, total))
