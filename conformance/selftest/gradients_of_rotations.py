"""What the backward passes of rotations of positions get wrong."""

from __future__ import annotations

import torch

from conformance.selftest.differentiable import Gradients, Step, backward


@backward("rotary_position_embedding fused_rmsnorm_rope", "formula")
def rotates_on(step: Step) -> Gradients:
    """The input's gradient is rotated by the angles, and not back."""
    sine = 1 if step.op == "rotary_position_embedding" else 3
    turned = [-one if place == sine else one for place, one in zip(step.places, step.operands, strict=True)]
    return step.only(0, step.gradients(operands=turned))


@backward("rotary_position_embedding", "formula")
def other_pairs(step: Step) -> Gradients:
    """The backward pass takes the other elements for a pair."""
    if len(step.args) > 3:
        return step.gradients()
    return step.gradients(interleaved=not step.kwargs.get("interleaved", True))


@backward("rotary_position_embedding", "sums")
def first_head_of_tables(step: Step) -> Gradients:
    """The gradients of the tables are those of the first head."""
    dout = step.dout.clone()
    dout[:, :, 1:] = 0
    return [step.gradients()[0], *step.gradients(dout)[1:]]


@backward("fused_rmsnorm_rope", "needs")
def weight_left_out(step: Step) -> Gradients:
    """The weight has no gradient."""
    return step.changed(step.gradients(), 1, torch.zeros_like)
