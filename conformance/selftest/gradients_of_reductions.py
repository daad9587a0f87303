"""What the backward passes of reductions get wrong."""

from __future__ import annotations

import math

import torch

from conformance.ops._reductions import reduced
from conformance.selftest import families as of
from conformance.selftest.differentiable import Gradients, Step, backward, first_operand

TILE = 32


def _dims(step: Step) -> tuple[int, ...]:
    """The dims that are reduced."""
    dim = step.args[1] if len(step.args) > 1 else step.kwargs.get("dim")
    return reduced(dim, step.operands[0].ndim)


def _spread(step: Step, tensor: torch.Tensor) -> torch.Tensor:
    """What has the result's shape, with a dim of 1 for each that is reduced."""
    dims, shape = _dims(step), step.operands[0].shape
    return tensor.detach().double().reshape([1 if dim in dims else size for dim, size in enumerate(shape)])


def _count(step: Step) -> int:
    return math.prod(step.operands[0].shape[dim] for dim in _dims(step))


def _scaled(step: Step, factor: float) -> Gradients:
    return [one if one is None else one * factor for one in step.gradients()]


@backward(("sum", "mean", "logsumexp", "amax", "amin"), "dims")
def aligned_with_the_last_dims(step: Step) -> Gradients:
    """The result's gradient is broadcast as it is, without dims of 1 for those that were reduced."""
    shape, dout = step.operands[0].shape, step.dout
    if dout.ndim == len(shape) or torch.broadcast_shapes(dout.shape, shape) != shape:
        return step.gradients()
    # The gradients for that of ones, times this one.
    return [one if one is None else one * dout.double() for one in step.gradients(torch.ones_like(dout))]


@backward("sum", "formula")
def divided_as_a_mean(step: Step) -> Gradients:
    """The gradient is that of a mean."""
    return _scaled(step, 1 / max(_count(step), 1))


@backward("mean", "formula")
def not_divided(step: Step) -> Gradients:
    """The gradient is that of a sum."""
    return _scaled(step, _count(step))


@backward("mean", "dims")
def divided_by_one_dim(step: Step) -> Gradients:
    """Of several dims the gradient is divided by the size of the first."""
    dims = _dims(step)
    return _scaled(step, _count(step) / max(step.operands[0].shape[dims[0]], 1)) if dims else step.gradients()


@backward("mean", "dims")
def divided_by_all(step: Step) -> Gradients:
    """The gradient is divided by the number of all elements of the operand."""
    return _scaled(step, _count(step) / max(step.operands[0].numel(), 1))


@backward("mean", "precision")
def reciprocal_of_half(step: Step) -> Gradients:
    """The reciprocal of the count is rounded to the half type."""
    count = _count(step)
    if step.result.dtype not in of.HALF or not count:
        return step.gradients()
    return _scaled(step, torch.tensor(1 / count).to(step.result.dtype).item() * count)


@backward(("sum", "mean", "logsumexp"), "sums")
def past_the_last_tile(step: Step) -> Gradients:
    """Elements past the last full tile of 32 of the last reduced dim have no gradient."""
    (found,), dims = step.gradients(), _dims(step)
    if found is None or not dims or found.shape[dims[-1]] <= TILE:
        return [found]
    size = found.shape[dims[-1]]
    found.narrow(dims[-1], size // TILE * TILE, size % TILE).zero_()
    return [found]


@backward(("sum", "mean", "amax"), "precision")
def through_bfloat16(step: Step) -> Gradients:
    """The gradient of float32 passes through bfloat16."""
    return step.gradients(step.dout.bfloat16() if step.dout.dtype == torch.float32 else None)


@backward(("sum", "mean"), "needs")
def first_dim_alone(step: Step) -> Gradients:
    """Of several dims the gradient is spread over the first; along the others the first element has it."""
    (found,) = step.gradients()
    for dim in _dims(step)[1:]:
        if found is not None and found.shape[dim] > 1:
            found.narrow(dim, 1, found.shape[dim] - 1).zero_()
    return [found]


@backward(("amax", "amin"), "formula")
def ties_get_all(step: Step) -> Gradients:
    """Each of several equal extremes gets the whole gradient, not its share."""
    (found,) = step.gradients()
    if found is None:
        return [None]
    # Their gradients are equal, and those of all others are zero.
    dims = _dims(step)
    count = (found != 0).sum(dims, keepdim=True) if dims else (found != 0).long()
    return [found * count]


@backward(("amax", "amin"), "formula")
def shared_along_one_dim(step: Step) -> Gradients:
    """Over several dims equal extremes share the gradient along the last of them, and not along the others."""
    (found,), dims = step.gradients(), sorted(_dims(step))
    if found is None or len(dims) < 2:
        return [found]
    alike = found != 0
    return [found * alike.sum(dims, keepdim=True) / alike.sum(dims[-1], keepdim=True).clamp_min(1)]


@backward(("amax", "amin"), "formula")
def first_of_ties(step: Step) -> Gradients:
    """The first of several equal extremes gets the whole gradient."""
    (found,), dims = step.gradients(), _dims(step)
    if found is None or not dims or not found.numel():
        return [found]
    rows = found.movedim(dims, tuple(range(-len(dims), 0))).flatten(-len(dims))
    first = (rows != 0).cumsum(-1) == 1
    whole = torch.where(first & (rows != 0), rows.sum(-1, keepdim=True), 0.0)
    shape = [found.shape[dim] for dim in dims]
    return [whole.unflatten(-1, shape).movedim(tuple(range(-len(dims), 0)), dims)]


@backward(("amax", "amin"), "formula")
def extremes_of_all(step: Step) -> Gradients:
    """Elements that are not the extreme of the whole operand have no gradient."""
    (found,), x = step.gradients(), first_operand(step)
    if found is None or not x.numel():
        return [found]
    return [torch.where(x == (x.amax() if step.op == "amax" else x.amin()), found, 0.0)]


@backward(("amax", "amin"), "precision")
def ties_of_half(step: Step) -> Gradients:
    """Elements are compared with the extreme in bfloat16: those nearby count as ties."""
    (found,), x = step.gradients(), first_operand(step)
    if found is None or not x.numel() or step.result.dtype != torch.float32:
        return [found]
    ties = x.bfloat16() == _spread(step, step.result).bfloat16()
    dims = _dims(step)
    return [ties / (ties.sum(dims, keepdim=True) if dims else 1) * _spread(step, step.dout)]


@backward("logsumexp", "formula")
def unshared(step: Step) -> Gradients:
    """Each element gets the whole gradient."""
    return [_spread(step, step.dout).expand(step.operands[0].shape)]


@backward("logsumexp", "dims")
def shares_of_all(step: Step) -> Gradients:
    """Shares are those of the whole operand."""
    x = first_operand(step)
    return [(x - x.flatten().logsumexp(0)).exp() * _spread(step, step.dout)] if x.numel() else step.gradients()


@backward("logsumexp", "precision")
def shares_in_bfloat16(step: Step) -> Gradients:
    """Shares of float32 are rounded to bfloat16."""
    shares = (first_operand(step) - _spread(step, step.result)).exp()
    if step.result.dtype != torch.float32:
        return step.gradients()
    return [shares.bfloat16().double() * _spread(step, step.dout)]


@backward("cumsum", "dims")
def excluded_from_the_end(step: Step) -> Gradients:
    """The last element of a sum has no gradient."""
    (found,) = step.gradients()
    dim = step.args[1] if len(step.args) > 1 else step.kwargs["dim"]
    if found is not None and found.ndim and found.shape[dim]:
        found.select(dim, -1).zero_()
    return [found]


@backward("cumsum", "formula")
def total_less_what_is_before(step: Step) -> Gradients:
    """The sum of all that follows is the total less the sum before: what is not finite spoils the others."""
    dim = step.args[1] if len(step.args) > 1 else step.kwargs["dim"]
    if not step.dout.ndim:
        return step.gradients()
    wide = step.dout.double()
    return [wide.sum(dim, True) - wide.cumsum(dim) + wide]
