"""The gradients of ``linear_cross_entropy``: of the input, the linear weight, the bias, and probabilities.

The forward pass saves its arguments, and two or three numbers for each row. Where calls are traced, torch's functions
compute the gradients from these, in chunks of classes, too: in a compiled training step no tensor has all logits. torch
computes the gradient of the weights of probabilities, and any gradient that is to be differentiated once more, from the
formula, with all logits.
"""

import torch

from ntops.autograd.formula import Formula, composed_gradients, is_composed, needs, save, saved
from ntops.autograd.losses import check_weight, composed
from ntops.host.cross_entropy_arguments import smoothing_of
from ntops.host.linear_cross_entropy import Layer, index_of, linear_class_gradients, logits_shape, part

_NAMES = ("input", "linear_weight", "target", "linear_bias", "weight")


def _setup(ctx, inputs, output):
    input, linear_weight, target, linear_bias, weight, ctx.reduction, ignore_index, ctx.label_smoothing, _ = inputs
    loss, statistics, divisor = output
    ctx.mark_non_differentiable(statistics, divisor)
    check_weight(ctx, 4, target.shape != logits_shape(input, linear_weight))
    ctx.ignore_index, ctx.dtype = index_of(ignore_index), loss.dtype
    tensors = dict(zip(_NAMES, (input, linear_weight, target, linear_bias, weight), strict=True))
    save(ctx, **tensors, statistics=statistics, divisor=divisor)


def _composed(input, linear_weight, target, linear_bias, weight, ctx):
    """Compute the loss with torch's functions."""
    bias = None if linear_bias is None else linear_bias.reshape(-1)
    logits = torch.nn.functional.linear(input, linear_weight.flatten(0, -2), bias)
    return composed(logits.view(logits_shape(input, linear_weight)), target, weight, ctx)


def _backward(ctx, gradient, *_):
    values, needed = saved(ctx), needs(ctx, 0, 1, 2, 3, 4)
    inputs = [values[name] for name in _NAMES]

    if not (needed[4] or is_composed(gradient, *(one for one in inputs if one is not None))):
        numbers = values["statistics"], values["divisor"], ctx.ignore_index, ctx.label_smoothing
        return *linear_class_gradients(gradient, *inputs, *numbers, *needed[:4]), *[None] * 5

    layer = Layer(*(values[name] for name in ("input", "linear_weight", "linear_bias")))

    if needed[4] or torch.is_grad_enabled() or not isinstance(layer.classes, int) or not layer.classes:
        found = composed_gradients(lambda *args: _composed(*args, ctx), inputs, needed, gradient)
        return *found, None, None, None, None

    return *_traced(ctx, gradient, layer, values, needed), *[None] * 5


def _traced(ctx, gradient, layer, values, needed):
    """Return the gradients as :func:`linear_class_gradients`, of torch's functions."""
    input, linear_weight, target, linear_bias = (values[name] for name in _NAMES[:4])
    statistics, wide = values["statistics"], values["statistics"].dtype
    slope, is_ignored, parts = _slopes(ctx, gradient, layer, values)
    maximum, logarithm = (one.view(layer.rows, 1, *layer.others) for one in statistics[:2])
    of_rows, of_columns, of_bias, of_target = [], [], [], []
    step = part(layer.classes)

    for first in range(0, layer.classes, step):
        classes = slice(first, min(first + step, layer.classes))
        columns = layer.columns(classes)
        bias = None if linear_bias is None else linear_bias.reshape(-1)[columns]
        logits = torch.nn.functional.linear(layer.input, layer.weight[columns], bias)
        below = logits.view(layer.rows, classes.stop - first, *layer.others).to(wide) - maximum - logarithm
        sums, factors, scales = parts(classes)
        flow = slope * (below.exp() * sums - factors)
        flow = (flow if is_ignored is None else flow.masked_fill(is_ignored, 0)).flatten(1).to(input.dtype)

        if needed[0]:
            rows = (flow @ layer.weight[columns]).to(wide)
            of_rows[:] = [rows + of_rows[0] if of_rows else rows]

        if needed[1]:
            of_columns.append(flow.mT @ layer.input)

        if needed[2]:
            of_target.append((slope * below * scales).to(target.dtype))

        if needed[3]:
            of_bias.append(flow.sum(0, dtype=wide).to(input.dtype))

    return (
        of_rows[0].to(input.dtype).view(input.shape) if needed[0] else None,
        torch.cat(of_columns).view(linear_weight.shape) if needed[1] else None,
        torch.cat(of_target, 1).view(target.shape) if needed[2] else None,
        torch.cat(of_bias).view(linear_bias.shape) if needed[3] else None,
    )


def _slopes(ctx, gradient, layer, values):
    """Return the gradient of each row's loss, with a dim of classes; whether a row is ignored, or ``None``; and a
    function of a slice of classes.

    The function returns the sums of the factors of a row's losses, the factors of the losses of these classes, and what
    makes the gradient of their probabilities of that of the row's loss.
    """
    target, weight, statistics, divisor = (values[name] for name in ("target", "weight", "statistics", "divisor"))
    wide, is_index = statistics.dtype, target.shape != logits_shape(values["input"], values["linear_weight"])
    smoothing = smoothing_of(ctx.label_smoothing)
    kept, smooth = 1 - smoothing, smoothing / layer.classes
    slope = gradient.expand(layer.rows, *layer.others).to(wide)
    slope = (slope / divisor if divisor.numel() else slope).unsqueeze(1)
    target = layer.batched(target, is_index)
    target = target.long().unsqueeze(1) if is_index else target
    ones = (layer.classes, *[1] * len(layer.others))
    weights = torch.ones(ones, dtype=wide, device=target.device) if weight is None else weight.to(wide).view(ones)
    share = statistics[2].view(slope.shape) if statistics.shape[0] == 3 else 0.0

    if not is_index:

        def of_probabilities(classes):
            factors = (target[:, classes].to(wide) * kept + smooth) * weights[classes]
            return share, factors, -kept * weights[classes]

        return slope, None, of_probabilities

    is_ignored = target == ctx.ignore_index
    own = weights.view(-1)[target.masked_fill(is_ignored, 0)] * kept

    def of_indices(classes):
        places = torch.arange(classes.start, classes.stop, device=target.device).view(-1, *ones[1:])
        factors = torch.where(target == places, own, 0) + smooth * weights[classes]
        return own + smooth * share, factors, None

    return slope, is_ignored, of_indices


FORMULAS = {"linear_cross_entropy": Formula(_setup, _backward)}
