"""The gradients of ``cross_entropy``: of the input, and of probabilities.

The forward pass saves its arguments, and two or three numbers for each row. torch computes the gradient of the weights
of probabilities, and any gradient that is to be differentiated once more, from the formula.
"""

import torch

from ntops.autograd.formula import Formula, composed_gradients, is_composed, needs, save, saved
from ntops.host.cross_entropy import class_gradients
from ntops.host.promotion import accumulate_dtype


def _setup(ctx, inputs, output):
    input, target, weight, ctx.reduction, ctx.ignore_index, ctx.label_smoothing = inputs
    loss, statistics, divisor = output
    ctx.mark_non_differentiable(statistics, divisor)

    check_weight(ctx, 2, input.shape != target.shape)
    ctx.dtype = loss.dtype
    save(ctx, input=input, target=target, weight=weight, statistics=statistics, divisor=divisor)


def check_weight(ctx, place, is_index):
    """Refuse the weight of class indices, the argument at a place, if it requires a gradient.

    :raises RuntimeError: It does.
    """
    if is_index and any(needs(ctx, place)):
        raise RuntimeError("argument 'weight' requires grad, which weights of class indices do not have: detach it")


def composed(input, target, weight, ctx):
    """Compute the loss with torch's functions."""
    wide = accumulate_dtype(ctx.dtype)
    # torch takes indices of uint8, but its decomposition for graphs does not.
    target = target.to(wide if target.is_floating_point() else torch.int64)
    tensors = [input.to(wide), target, weight if weight is None else weight.to(wide)]
    loss = torch.nn.functional.cross_entropy(
        *tensors, ignore_index=ctx.ignore_index, reduction=ctx.reduction, label_smoothing=ctx.label_smoothing
    )
    return loss.to(ctx.dtype)


def _backward(ctx, gradient, *_):
    values, needed = saved(ctx), needs(ctx, 0, 1, 2)
    inputs = values["input"], values["target"], values["weight"]

    if needed[2] or is_composed(gradient, *(one for one in inputs if one is not None)):
        found = composed_gradients(lambda *args: composed(*args, ctx), inputs, needed, gradient)
        return (*found, None, None, None)

    found = class_gradients(
        gradient, *inputs, values["statistics"], values["divisor"], ctx.ignore_index, ctx.label_smoothing, *needed[:2]
    )
    return (*found, None, None, None, None)


FORMULAS = {"cross_entropy": Formula(_setup, _backward)}
