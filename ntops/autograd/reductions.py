"""The gradients of reductions: that of a result goes to each element that was reduced."""

from ntops.autograd.formula import Formula, is_composed, save, saved
from ntops.host import cumulative, gradients
from ntops.host.promotion import accumulate_dtype
from ntops.host.reduction_arguments import dims_of
from ntops.kernels import cumsum


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
    # As in torch, the gradient is expanded, and written only if it is cast.
    return spread(ctx, gradient).expand(ctx.shape).to(ctx.dtype), *[None] * (ctx.count - 1)


def _backward_mean(ctx, gradient):
    count = 1

    for dim in ctx.dims:
        count *= ctx.shape[dim]

    whole = spread(ctx, gradient).expand(ctx.shape)

    # As in torch, the gradient is written: each element has memory of its own.
    if is_composed(gradient):
        found = (whole / count).to(ctx.dtype)
    else:
        found = gradients.elementwise("divided", ctx.shape, ctx.dtype, whole, float(count))

    return found, *[None] * (ctx.count - 1)


def _setup_with_result(ctx, inputs, output):
    setup(ctx, inputs, output)
    save(ctx, input=inputs[0], result=output)


def _backward_extreme(ctx, gradient):
    """Share the gradient of a result evenly among the elements that equal it."""
    values = saved(ctx)
    input, (result, gradient) = values["input"], (spread(ctx, one) for one in (values["result"], gradient))

    if is_composed(gradient, input, result):
        equal = input == result
        found = gradient * equal / equal.sum(ctx.dims, keepdim=True)
    else:
        count = gradients.elementwise("equal", result.shape, accumulate_dtype(input.dtype), input, result)
        whole = gradient.expand(ctx.shape)
        found = gradients.elementwise("shared", ctx.shape, ctx.dtype, whole, input, result, count)

    return found, *[None] * (ctx.count - 1)


def _backward_logsumexp(ctx, gradient):
    """Multiply the gradient of a result by each element's share of the sum of exponentials."""
    values = saved(ctx)
    input, (result, gradient) = values["input"], (spread(ctx, one) for one in (values["result"], gradient))

    if is_composed(gradient, input, result):
        found = gradient * (input - result).exp()
    else:
        found = gradients.elementwise("share_of_sum", ctx.shape, ctx.dtype, gradient.expand(ctx.shape), input, result)

    return found, *[None] * (ctx.count - 1)


def _setup_cumsum(ctx, inputs, output):
    input, ctx.dim, _ = inputs
    ctx.dtype = input.dtype


def _backward_cumsum(ctx, gradient):
    """Sum the gradients of the results from each element on, in the dtype of the argument, as torch does."""
    if not gradient.ndim:
        found = gradient.to(ctx.dtype)
    elif is_composed(gradient):
        found = gradient.to(ctx.dtype).flip(ctx.dim).cumsum(ctx.dim).flip(ctx.dim)
    else:
        found = cumulative.reversed_sums(cumsum.premake, gradient, ctx.dim, ctx.dtype)

    return found, None, None


FORMULAS = {
    "cumsum": Formula(_setup_cumsum, _backward_cumsum),
    "sum": Formula(setup, _backward_sum),
    "mean": Formula(setup, _backward_mean),
    **dict.fromkeys(("amax", "amin"), Formula(_setup_with_result, _backward_extreme)),
    "logsumexp": Formula(_setup_with_result, _backward_logsumexp),
}
