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
