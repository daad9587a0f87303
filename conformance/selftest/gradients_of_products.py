"""What the backward passes of products of matrices get wrong."""

from __future__ import annotations

import math

import torch

from conformance.selftest import families as of
from conformance.selftest.differentiable import Gradients, Step, backward


@backward("addmm", "formula", name="factor_forgotten")
def beta_forgotten(step: Step) -> Gradients:
    """The input's gradient lacks beta."""
    return step.only(0, step.gradients(beta=None))


@backward("addmm", "formula", name="alpha_forgotten")
def product_without_alpha(step: Step) -> Gradients:
    """The gradients of the matrices lack alpha."""
    found = step.gradients(alpha=None)
    return [step.gradients()[0], *found[1:]]


@backward("matmul", "sums")
def first_batch(step: Step) -> Gradients:
    """A matrix that is multiplied with each of a batch gets the gradient of the first alone."""
    found = step.gradients()
    left, right = step.operands
    if left.ndim < 3 or right.ndim != 2 or not step.dout.numel():
        return found
    rows = left.detach().double().flatten(0, -3)[0].mT
    return step.changed(found, 1, lambda one: rows @ step.dout.double().flatten(0, -3)[0])


@backward("mm bmm matmul addmm", "sums")
def rows_of_full_blocks(step: Step) -> Gradients:
    """The second factor's gradient leaves out rows past the last full block of 16."""
    if step.dout.ndim < 2 or step.dout.shape[-2] <= 16 or not step.dout.shape[-2] % 16:
        return step.gradients()
    dout = step.dout.clone()
    dout[..., dout.shape[-2] // 16 * 16 :, :] = 0
    return step.only(len(step.operands) - 1, step.gradients(dout))


@backward("mm addmm", "sums")
def rows_behind_zeros(step: Step) -> Gradients:
    """The second factor's gradient ends at the first block of 16 rows without a gradient, as of a prompt."""
    starts = range(0, step.dout.shape[-2] - 15, 16) if step.dout.ndim > 1 else ()
    zeros = next((start for start in starts if not step.dout[..., start : start + 16, :].any()), None)
    if zeros is None:
        return step.gradients()
    dout = step.dout.clone()
    dout[..., zeros:, :] = 0
    return step.only(len(step.operands) - 1, step.gradients(dout))


@backward("mm bmm", "formula")
def not_transposed(step: Step) -> Gradients:
    """Where the factors are square they are not transposed."""
    left, right = (one.detach().double() for one in step.operands)
    if left.shape != right.shape or left.shape[-1] != left.shape[-2]:
        return step.gradients()
    return [step.dout.double() @ right, left @ step.dout.double()]


@backward("mm bmm matmul addmm fused_gated_mlp", "precision")
def half_products(step: Step) -> Gradients:
    """Gradients of float32 are products of bfloat16."""
    if step.result.dtype != torch.float32:
        return step.gradients()
    return step.gradients(step.dout.bfloat16(), [one.bfloat16() for one in step.operands])


@backward("mm bmm matmul addmm", "sums")
def columns_of_full_blocks(step: Step) -> Gradients:
    """The first factor's gradient leaves out columns past the last full block of 16."""
    if step.dout.ndim < 2 or step.dout.shape[-1] <= 16 or not step.dout.shape[-1] % 16:
        return step.gradients()
    dout = step.dout.clone()
    dout[..., dout.shape[-1] // 16 * 16 :] = 0
    return step.only(len(step.operands) - 2, step.gradients(dout))


@backward("mm bmm matmul addmm", "layout")
def second_factor_in_order_of_memory(step: Step) -> Gradients:
    """The backward pass reads the second factor as if it were contiguous."""
    *others, last = step.operands
    return step.gradients(operands=[*others, of.dense(last.detach())])


@backward("addmm", "sums")
def first_row_of_input(step: Step) -> Gradients:
    """An input that is one row for all has the gradient of the first row."""
    input = step.argument(0)
    if input is None or (input.ndim == 2 and input.shape[0] != 1):
        return step.gradients()
    dout = step.dout.clone()
    dout[1:] = 0
    return step.only(0, step.gradients(dout))


@backward("matmul", "sums")
def first_of_a_shared_batch(step: Step) -> Gradients:
    """A batch of one that meets several has the gradient of the first of them."""
    left, right = step.operands
    if min(left.ndim, right.ndim) < 3 or left.shape[-3] == right.shape[-3]:
        return step.gradients()
    dout = step.dout.clone()
    dout[..., 1:, :, :] = 0
    return step.only(0 if left.shape[-3] == 1 else 1, step.gradients(dout))


@backward("mm bmm matmul addmm", "needs")
def second_factor_alone(step: Step) -> Gradients:
    """The last factor has no gradient where it alone needs one."""
    alone = step.needed[-1] and sum(step.needed) == 1
    return [None for _ in step.operands] if alone else step.gradients()


@backward("fused_gated_mlp", "formula")
def derivative_of_silu(step: Step) -> Gradients:
    """The gradient of the gate's weight has the derivative of silu, whatever the activation."""
    return step.only(1, step.gradients(activation=None)) if len(step.args) < 4 else step.gradients()


@backward("fused_gated_mlp", "sums")
def tokens_of_full_blocks(step: Step) -> Gradients:
    """The gradients of the weights leave out tokens past the last full block of 16."""
    tokens = math.prod(step.dout.shape[:-1])
    if tokens <= 16 or not tokens % 16:
        return step.gradients()
    dout = step.dout.clone().contiguous()
    dout.view(tokens, -1)[tokens // 16 * 16 :] = 0
    return [step.gradients()[0], *step.gradients(dout)[1:]]


@backward("fused_gated_mlp", "dims")
def weights_of_first_sequence(step: Step) -> Gradients:
    """The gradients of the weights are those of the first sequence."""
    if step.dout.ndim < 3:
        return step.gradients()
    dout = step.dout.clone()
    dout[1:] = 0
    return [step.gradients()[0], *step.gradients(dout)[1:]]


@backward("fused_gated_mlp", "needs")
def frozen_gate(step: Step) -> Gradients:
    """Where the gate's weight needs no gradient, the other one gets none."""
    found = step.gradients()
    return found if step.needed[1] else [found[0], None, None]


@backward("fused_gated_mlp", "formula")
def weights_swapped(step: Step) -> Gradients:
    """The gradients of both weights change places."""
    x, gate, up = step.gradients()
    return [x, up, gate] if gate is not None and up is not None else [x, gate, up]


@backward("fused_gated_mlp", "formula")
def one_path(step: Step) -> Gradients:
    """The gradient of x comes by way of the gate alone."""
    x, gate, up = (one.detach().double() for one in step.operands)
    linear = x @ up.mT
    found = step.gradients()
    whole, to_up = found[0], step.dout.double() * _activated(step, x @ gate.mT)
    return found if whole is None or not linear.numel() else [whole - to_up @ up, *found[1:]]


def _activated(step: Step, x: torch.Tensor) -> torch.Tensor:
    from conformance.ops.fused_gated_mlp import OF_TORCH

    return OF_TORCH[step.args[3] if len(step.args) > 3 else step.kwargs.get("activation", "silu")](x)
