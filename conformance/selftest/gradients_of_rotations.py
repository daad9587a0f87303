"""What the backward passes of rotations of positions get wrong."""

from __future__ import annotations

import itertools

import torch

from conformance.ops.rotary_position_embedding import pairs
from conformance.selftest import families as of
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


def _tables(step: Step) -> int:
    """The number of the first table."""
    return 1 if step.op == "rotary_position_embedding" else 2


@backward("rotary_position_embedding fused_rmsnorm_rope", "formula")
def tables_swapped(step: Step) -> Gradients:
    """The gradients of sines and cosines change places."""
    found, first = step.gradients(), _tables(step)
    if step.operands[first].shape == step.operands[first + 1].shape:
        found[first], found[first + 1] = found[first + 1], found[first]
    return found


@backward("rotary_position_embedding fused_rmsnorm_rope", "needs")
def tables_without_gradient(step: Step) -> Gradients:
    """The tables are taken for constants."""
    found, first = step.gradients(), _tables(step)
    return [None if number in (first, first + 1) else one for number, one in enumerate(found)]


@backward("rotary_position_embedding fused_rmsnorm_rope", "formula")
def angles_of_next_position(step: Step) -> Gradients:
    """The input's gradient is rotated back by the angles of the next position."""
    first = _tables(step)
    turned = [
        one.roll(-1, 0) if number in (first, first + 1) else one
        for number, one in enumerate(map(torch.Tensor.detach, step.operands))
    ]
    return step.only(0, step.gradients(operands=turned))


@backward("rotary_position_embedding fused_rmsnorm_rope", "sums")
def tables_of_first_sequence(step: Step) -> Gradients:
    """The gradients of the tables are those of the first sequence."""
    found, first = step.gradients(), _tables(step)
    dout = step.dout.clone()
    dout[1:] = 0
    return [*found[:first], *step.gradients(dout)[first:]]


@backward("rotary_position_embedding", "formula")
def sine_without_minus(step: Step) -> Gradients:
    """Both terms of the sine's gradient are added."""
    input = step.operands[0].detach().clone(memory_format=torch.contiguous_format)
    interleaved = step.args[3] if len(step.args) > 3 else step.kwargs.get("interleaved", True)
    pairs(input, interleaved)[1].neg_()
    return step.only(1, step.gradients(operands=[input, *step.operands[1:]]))


@backward("rotary_position_embedding", "precision")
def half_accumulation_of_tables(step: Step) -> Gradients:
    """The gradients of the tables are accumulated in the half type, one sequence and head after the other."""
    found = step.gradients()
    batch, _, heads, _ = step.dout.shape
    if step.result.dtype not in of.HALF or not 0 < batch * heads <= 64:
        return found
    totals = [torch.zeros(one.shape, dtype=step.result.dtype) for one in step.operands[1:]]
    for sequence, head in itertools.product(range(batch), range(heads)):
        dout = torch.zeros_like(step.dout)
        dout[sequence, :, head] = step.dout[sequence, :, head]
        terms = zip(totals, step.gradients(dout)[1:], strict=True)
        totals = [total if term is None else (total + term).to(total.dtype) for total, term in terms]
    both = zip(found[1:], totals, strict=True)
    return [found[0], *(None if one is None else total.double() for one, total in both)]


@backward("rotary_position_embedding", "sums")
def rows_past_the_sequence(step: Step) -> Gradients:
    """Rows of the tables past the sequence have the gradient of its last position, and not 0."""
    length = step.result.shape[1]

    def more(one: torch.Tensor) -> torch.Tensor:
        return torch.cat((one[:length], one[length - 1 : length].expand(one[length:].shape))) if length else one

    return step.changed(step.changed(step.gradients(), 1, more), 2, more)


@backward("fused_rmsnorm_rope", "formula")
def no_projection(step: Step) -> Gradients:
    """The scale of the norm is taken for a constant."""
    x = step.operands[0].detach().double()
    eps = step.args[4] if len(step.args) > 4 else step.kwargs.get("eps", 1e-6)
    root = (x.square().mean(-1, keepdim=True) + float(eps)).rsqrt()
    # A row that is scaled by a constant is the norm of one whose square has the mean 1.
    slopes = _slopes(step, x * root)
    return step.only(0, [None if slopes is None else slopes * root, *step.gradients()[1:]])


def _slopes(step: Step, normal: torch.Tensor) -> torch.Tensor | None:
    """The gradient of normalized rows: rotated back, times the weight."""
    size = step.kwargs.get("head_dim") or step.operands[2].shape[1]
    dout = step.dout.double().unflatten(2, (normal.shape[2] // int(size), int(size)))
    interleaved = step.kwargs.get("interleaved", False)
    cos, sin = (
        (one if one.shape[1] == int(size) // 2 else pairs(one[:, None, None], interleaved)[0][:, 0, 0])
        for one in (step.operands[2].detach().double(), step.operands[3].detach().double())
    )
    cos, sin = (one[: dout.shape[1], None] for one in (cos, sin))
    g0, g1 = pairs(dout, interleaved)
    both = (g0 * cos + g1 * sin, g1 * cos - g0 * sin)
    back = torch.stack(both, -1 if interleaved else -2).reshape(normal.shape)
    return back * step.operands[1].detach().double()


@backward("fused_rmsnorm_rope", "sums")
def weight_of_first_sequence(step: Step) -> Gradients:
    """The weight's gradient is that of the first sequence."""
    dout = step.dout.clone()
    dout[1:] = 0
    return step.only(1, step.gradients(dout))
