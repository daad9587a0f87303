"""The gradients of reductions: that of a result goes to each element that was reduced."""

from ntops.autograd.formula import Formula, is_composed
from ntops.host import gradients
from ntops.host.reductions import dims_of


def setup(ctx, inputs, output):
    """Keep what :func:`spread` needs."""
    input, dim, keepdim, *_ = inputs
    ctx.shape, ctx.dtype, ctx.keepdim, ctx.count = input.shape, input.dtype, keepdim, len(inputs)
    ctx.dims = dims_of(dim, input.ndim) if input.ndim else []


def spread(ctx, tensor):
    """Return a tensor of the result's shape, with the dims that were reduced of one element each."""
    for dim in [] if ctx.keepdim else ctx.dims:
        tensor = tensor.unsqueeze(dim)

    return tensor


def _backward_sum(ctx, gradient):
    # As in torch, the gradient is expanded and not written.
    return spread(ctx, gradient).to(ctx.dtype).expand(ctx.shape), *[None] * (ctx.count - 1)


def _backward_mean(ctx, gradient):
    count = 1

    for dim in ctx.dims:
        count *= ctx.shape[dim]

    if is_composed(gradient):
        gradient = gradient / count
    elif count > 1:
        gradient = gradients.elementwise("divided", gradient.shape, gradient.dtype, gradient, float(count))

    return _backward_sum(ctx, gradient)


FORMULAS = {"sum": Formula(setup, _backward_sum), "mean": Formula(setup, _backward_mean)}
