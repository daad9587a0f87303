"""The gradients of ``scaled_dot_product_attention``.

The forward pass saves its operands, its output, and two numbers for each query. Where calls are traced, the backward
pass is an operator of its own. If a gradient is to be differentiated once more, torch computes it from the formula of
attention, with the matrix of scores in memory.
"""

import math

import torch

from ntops.autograd.formula import Formula, composed_gradients, is_composed, needs, save, saved
from ntops.host import attention_gradients
from ntops.host.promotion import accumulate_dtype


def _setup(ctx, inputs, output):
    query, key, value, mask, _, is_causal, scale, _, variant = inputs
    output, statistics = output
    ctx.mark_non_differentiable(statistics)
    ctx.scale = 1 / math.sqrt(query.shape[-1]) if scale is None else float(scale)
    name = getattr(variant, "name", variant)
    ctx.lower_right = name == "LOWER_RIGHT" if is_causal else None
    save(ctx, query=query, key=key, value=value, mask=mask, output=output, statistics=statistics)


def _attend(query, key, value, mask, lower_right, scale):
    """Compute attention with torch's functions; a query to which no key takes part has zeros."""
    dtype = query.dtype
    query, key, value = (one.to(accumulate_dtype(dtype)) for one in (query, key, value))
    group = query.shape[-3] // max(key.shape[-3], 1)
    key, value = (one.repeat_interleave(group, -3) for one in (key, value))
    scores = query @ key.mT * scale
    kept = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device)

    if lower_right is not None:
        kept = kept.tril(scores.shape[-1] - scores.shape[-2] if lower_right else 0)

    if mask is not None and mask.dtype is torch.bool:
        kept = kept & mask
    elif mask is not None:
        scores = scores + mask.to(scores.dtype)

    scores = scores.masked_fill(~kept, -math.inf)
    empty = (scores == -math.inf).all(-1, keepdim=True)
    weights = torch.softmax(scores.masked_fill(empty, 0.0), -1).masked_fill(empty, 0.0)

    return (weights @ value).to(dtype)


def _backward(ctx, gradient, _):
    values = saved(ctx)
    query, key, value, mask, output = (values[name] for name in ("query", "key", "value", "mask", "output"))
    needed = needs(ctx, 0, 1, 2, 3)
    tensors = [one for one in (gradient, query, key, value, mask) if one is not None]

    if torch.is_grad_enabled():
        inputs = (query, key, value, mask)
        found = composed_gradients(
            lambda *inputs: _attend(*inputs, ctx.lower_right, ctx.scale), inputs, needed, gradient
        )
        return (*found, *[None] * 5)

    statistics = values["statistics"]
    statistics = statistics if statistics.ndim == 4 else statistics.unsqueeze(1)
    batched = [one if one.ndim == 4 else one.unsqueeze(0) for one in (gradient, output, query, key, value)]

    if is_composed(*tensors):
        causal = (ctx.lower_right is not None, bool(ctx.lower_right))
        function = torch.ops.ntops.scaled_dot_product_attention.gradients
        found = function(*batched, statistics, mask, *causal, ctx.scale, needed)
        found = [one if wanted else None for one, wanted in zip(found, needed, strict=True)]
    else:
        found = attention_gradients.attention(*batched, statistics, mask, ctx.lower_right, ctx.scale, *needed)

    shapes = (query.shape, key.shape, value.shape, None)
    found = [one if one is None or shape is None else one.view(shape) for one, shape in zip(found, shapes, strict=True)]

    return (*found, *[None] * 5)


FORMULAS = {"scaled_dot_product_attention": Formula(_setup, _backward)}
