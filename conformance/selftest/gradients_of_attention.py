"""What the backward pass of attention gets wrong."""

from __future__ import annotations

import math

import torch

from conformance.selftest import attention
from conformance.selftest.differentiable import Gradients, Step, backward


def _of(step: Step, name: int, others: Gradients) -> Gradients:
    """The gradients, that of one operand from ``others``."""
    return [a if place == name else b for place, a, b in zip(step.places, others, step.gradients(), strict=True)]


@backward(attention.OP, "causal", name="causal_ignored_for_keys")
def causal_ignored_for_keys(step: Step) -> Gradients:
    """The gradient of the keys knows of no causal mask."""
    return _of(step, 1, step.gradients(is_causal=None, causal_variant=None))


@backward(attention.OP, "causal")
def other_corner(step: Step) -> Gradients:
    """A causal mask of the lower right begins at the upper left in the backward pass."""
    return step.gradients(causal_variant=None)


@backward(attention.OP, "heads")
def last_head_of_a_group(step: Step) -> Gradients:
    """Keys that heads share get the gradient of the last head that reads them."""
    query, key = step.operands[:2]
    group = query.shape[-3] // max(key.shape[-3], 1)
    if group < 2:
        return step.gradients()
    dout = step.dout.clone()
    dout.unflatten(-3, (key.shape[-3], group))[..., :-1, :, :] = 0
    return _of(step, 1, step.gradients(dout))


@backward(attention.OP, "formula", name="scale_forgotten")
def attention_scale(step: Step) -> Gradients:
    """The gradient of the queries lacks the scale."""
    scale = step.kwargs.get("scale")
    scale = 1 / math.sqrt(step.operands[0].shape[-1]) if scale is None else float(scale)
    return step.gradients() if not scale else step.changed(step.gradients(), 0, lambda one: one / scale)


@backward(attention.OP, "needs")
def mask_without_gradient(step: Step) -> Gradients:
    """A mask of floats has no gradient."""
    return step.changed(step.changed(step.gradients(), "attn_mask", torch.zeros_like), 3, torch.zeros_like)


@backward(attention.OP, "mask")
def mask_left_out(step: Step) -> Gradients:
    """The backward pass knows of no mask."""
    mask = step.argument("attn_mask")
    if mask is None or mask.dtype != torch.bool:
        return step.gradients()
    place = step.places.index("attn_mask")
    return step.gradients(operands=[torch.ones_like(x) if n == place else x for n, x in enumerate(step.operands)])


@backward(attention.OP, "sums")
def keys_of_full_blocks(step: Step) -> Gradients:
    """Keys past the last full block of 16 have no gradient."""
    length = step.operands[1].shape[-2]
    if length <= 16 or not length % 16:
        return step.gradients()

    def cut(one: torch.Tensor) -> torch.Tensor:
        return torch.cat((one[..., : length // 16 * 16, :], torch.zeros_like(one[..., length // 16 * 16 :, :])), -2)

    return step.changed(step.changed(step.gradients(), 1, cut), 2, cut)


@backward(attention.OP, "heads")
def first_head_of_shared_values(step: Step) -> Gradients:
    """Values that heads share get the gradient of the first head that reads them."""
    query, value = step.operands[0], step.operands[2]
    group = query.shape[-3] // max(value.shape[-3], 1) if query.ndim > 2 else 1
    if group < 2:
        return step.gradients()
    dout = step.dout.clone()
    dout.unflatten(-3, (value.shape[-3], group))[..., 1:, :, :] = 0
    return _of(step, 2, step.gradients(dout))


@backward(attention.OP, "formula")
def values_for_constants(step: Step) -> Gradients:
    """The gradient of the scores lacks the row's own sum: queries and keys have that of a softmax without it."""
    query, key, value = (one.detach().double() for one in step.operands[:3])
    plain = len(step.operands) == 3 and query.shape[:-2] == key.shape[:-2] and "scale" not in step.kwargs
    if not plain or set(step.kwargs) - {"enable_gqa"} or len(step.args) > 3 or not query.numel() or not key.numel():
        return step.gradients()
    scale = 1 / math.sqrt(query.shape[-1])
    shares = (query @ key.mT * scale).softmax(-1)
    scores = shares * (step.dout.double() @ value.mT) * scale
    both = zip(step.gradients()[:2], (scores @ key, scores.mT @ query), strict=True)
    return [*(None if one is None else other for one, other in both), step.gradients()[2]]


@backward(attention.OP, "sums")
def queries_of_full_blocks(step: Step) -> Gradients:
    """Keys and values get nothing of queries past the last full block of 16."""
    length = step.dout.shape[-2]
    if length <= 16 or not length % 16:
        return step.gradients()
    dout = step.dout.clone()
    dout[..., length // 16 * 16 :, :] = 0
    both = zip(step.places, step.gradients(), step.gradients(dout), strict=True)
    return [other if place in (1, 2) else one for place, one, other in both]


@backward(attention.OP, "precision")
def scores_in_bfloat16(step: Step) -> Gradients:
    """Gradients of float32 are made of queries, keys and values in bfloat16."""
    if step.result.dtype != torch.float32:
        return step.gradients()
    query, key, value, *others = step.operands
    return step.gradients(operands=[*(one.detach().bfloat16() for one in (query, key, value)), *others])
