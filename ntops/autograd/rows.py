"""The gradients of ``softmax``, ``log_softmax``, ``layer_norm`` and ``rms_norm``.

If a gradient is to be differentiated once more, torch computes it from the formula of the function.
"""

import numbers

import torch

from ntops.autograd.formula import Formula, composed_gradients, is_composed, needs, save, saved
from ntops.host import row_gradients
from ntops.host.promotion import accumulate_dtype


def _setup_softmax(ctx, inputs, output):
    input, dim, _ = inputs
    ctx.dim, ctx.dtype = dim, input.dtype
    save(ctx, result=output)


def _backward_softmax(ctx, gradient):
    result = saved(ctx)["result"]

    if is_composed(gradient, result):
        wide = accumulate_dtype(result.dtype)
        product = gradient.to(wide) * result.to(wide)
        total = product.sum(ctx.dim, keepdim=True) if result.ndim else product
        return (product - result.to(wide) * total).to(ctx.dtype), None, None

    return row_gradients.softmax_backward(gradient, result, ctx.dim, ctx.dtype), None, None


def _backward_log_softmax(ctx, gradient):
    result = saved(ctx)["result"]

    if is_composed(gradient, result):
        wide = gradient.to(accumulate_dtype(result.dtype))
        total = wide.sum(ctx.dim, keepdim=True) if result.ndim else wide
        return (wide - result.to(wide.dtype).exp() * total).to(ctx.dtype), None, None

    return row_gradients.softmax_backward(gradient, result, ctx.dim, ctx.dtype, log=True), None, None


def _norm(input, weight, bias, dims, eps, centered):
    """Compute a norm over the last ``dims`` dims with torch's functions."""
    over = [*range(-dims, 0)]
    values = input.to(accumulate_dtype(input.dtype))

    if centered:
        values = values - values.mean(over, keepdim=True)

    values = values * torch.rsqrt((values * values).mean(over, keepdim=True) + eps)
    values = values if weight is None else values * weight
    values = values if bias is None else values + bias

    return values.to(input.dtype)


def _norm_formula(centered):
    def setup_context(ctx, inputs, output):
        input, shape, weight, *bias, eps = inputs
        ctx.dims = 1 if isinstance(shape, numbers.Integral) else len(shape)
        ctx.eps = torch.finfo(accumulate_dtype(input.dtype)).eps if eps is None else float(eps)
        bias = bias[0] if centered else None
        ctx.bias_dtype = None if bias is None else bias.dtype
        save(ctx, input=input, weight=weight)
        ctx.places = (0, 2, 3) if centered else (0, 2)
        ctx.count = len(inputs)

    def backward(ctx, gradient):
        values = saved(ctx)
        input, weight = values["input"], values["weight"]
        needed = needs(ctx, *ctx.places)
        needed = needed if centered else (*needed, False)
        found = _norm_gradients(ctx, gradient, input, weight, needed, centered)
        by_place = dict(zip(ctx.places, found, strict=False))
        return tuple(by_place.get(place) for place in range(ctx.count))

    return Formula(setup_context, backward)


def _norm_gradients(ctx, gradient, input, weight, needed, centered):
    first = input.ndim - ctx.dims
    shape = input.shape[first:]

    if is_composed(gradient, input, *([] if weight is None else [weight])):
        bias = torch.zeros(shape, dtype=ctx.bias_dtype, device=input.device) if needed[2] else None
        return composed_gradients(
            lambda *args: _norm(*args, ctx.dims, ctx.eps, centered), (input, weight, bias), needed, gradient
        )

    if not input.numel():
        dtypes = input.dtype, weight.dtype if needed[1] else None, ctx.bias_dtype
        shapes = input.shape, shape, shape
        every = zip(shapes, dtypes, needed, strict=True)
        return [input.new_zeros(one, dtype=dtype) if wanted else None for one, dtype, wanted in every]

    found = row_gradients.norm(
        row_gradients.matrix(gradient, first),
        row_gradients.matrix(input, first),
        None if weight is None else weight.reshape(-1),
        ctx.eps,
        centered,
        ctx.bias_dtype,
        *needed,
    )
    whole = input.shape, shape, shape
    return [None if one is None else one.view(size) for one, size in zip(found, whole, strict=True)]


FORMULAS = {
    "softmax": Formula(_setup_softmax, _backward_softmax),
    "log_softmax": Formula(_setup_softmax, _backward_log_softmax),
    "layer_norm": _norm_formula(centered=True),
    "rms_norm": _norm_formula(centered=False),
}
