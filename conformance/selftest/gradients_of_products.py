"""What the backward passes of products of matrices get wrong."""

from __future__ import annotations

import torch

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


@backward("mm bmm", "formula")
def not_transposed(step: Step) -> Gradients:
    """Where the factors are square they are not transposed."""
    left, right = (one.detach().double() for one in step.operands)
    if left.shape != right.shape or left.shape[-1] != left.shape[-2]:
        return step.gradients()
    return [step.dout.double() @ right, left @ step.dout.double()]


@backward("mm bmm matmul addmm", "precision")
def half_products(step: Step) -> Gradients:
    """Gradients of float32 are products of bfloat16."""
    if step.result.dtype != torch.float32:
        return step.gradients()
    return step.gradients(step.dout.bfloat16(), [one.bfloat16() for one in step.operands])


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
