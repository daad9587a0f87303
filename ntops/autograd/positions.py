"""The gradients of ``dropout``, with the same mask, and of ``rotary_position_embedding``, with the negative angles.

torch computes the gradients of the tables of angles, which are seldom needed, and any gradient that is to be
differentiated once more.
"""

import torch

from ntops.autograd.formula import Formula, is_composed, needs, save, saved
from ntops.host.dim_order import contiguous_strides
from ntops.host.dropout import masked
from ntops.host.promotion import accumulate_dtype
from ntops.host.rope import rotate
from ntops.launch import recorder
from ntops.launch.recorder import repeatable


def _setup_dropout(ctx, inputs, output):
    _, seed, ctx.p = inputs
    save(ctx, seed=seed)


def _backward_dropout(ctx, gradient):
    seed = saved(ctx)["seed"]
    # Call the operator itself where torch must trace it.
    function = torch.ops.ntops.dropout if is_composed(gradient) else masked
    return function(gradient, seed, ctx.p), None, None


@repeatable
def rotated_back(gradient, sin, cos, interleaved, dtype):
    """Return the gradient of a rotation: the result's gradient rotated by the negative angles.

    :param gradient: (B, T, H, D).
    :param sin: The negative sines, (T, D / 2); ``cos`` has the cosines.
    :return: A contiguous tensor of ``dtype``.
    """
    strides = contiguous_strides(gradient.shape)
    output = recorder.empty(gradient.shape, strides, dtype, gradient.device)

    if output.numel():
        rotate(output, gradient, sin, cos, interleaved)

    return output


def pairs(tensor, interleaved):
    """Return the first and the second elements of each pair of heads of (..., D), each (..., D / 2)."""
    half = tensor.shape[-1] // 2
    return (tensor[..., ::2], tensor[..., 1::2]) if interleaved else (tensor[..., :half], tensor[..., half:])


def joined(first, second, interleaved):
    """Return heads with these first and second elements of pairs."""
    return torch.stack((first, second), -1).flatten(-2) if interleaved else torch.cat((first, second), -1)


def _setup_rotation(ctx, inputs, output):
    input, sin, cos, ctx.interleaved = inputs
    ctx.dtype, ctx.table_dtypes = input.dtype, (sin.dtype, cos.dtype)
    save(ctx, input=input if any(needs(ctx, 1, 2)) else None, sin=sin, cos=cos)


def _backward_rotation(ctx, gradient):
    values, needed = saved(ctx), needs(ctx, 0, 1, 2)
    input, sin, cos = (values[name] for name in ("input", "sin", "cos"))
    length, found = gradient.shape[1], [None, None, None]
    tables = [table[:length] for table in (sin, cos)]

    if any(needed[1:]) or is_composed(gradient, sin, cos):
        found = _composed_rotation(ctx, gradient, input, sin, cos, needed)
    else:
        found[0] = rotated_back(gradient, -tables[0], tables[1], bool(ctx.interleaved), ctx.dtype)

    return (*found, None)


def _composed_rotation(ctx, gradient, input, sin, cos, needed):
    length, wide = gradient.shape[1], accumulate_dtype(ctx.dtype)
    sines, cosines = (table[:length, None].to(wide) for table in (sin, cos))
    first, second = pairs(gradient.to(wide), ctx.interleaved)
    found = [None, None, None]

    if needed[0]:
        back = joined(first * cosines + second * sines, second * cosines - first * sines, ctx.interleaved)
        found[0] = back.to(ctx.dtype)

    if any(needed[1:]):
        x0, x1 = pairs(input.to(wide), ctx.interleaved)
        slopes = (second * x0 - first * x1, first * x0 + second * x1)

        for place, (slope, table, dtype) in enumerate(zip(slopes, (sin, cos), ctx.table_dtypes, strict=True), 1):
            if needed[place]:
                # Positions past the sequence do not take part.
                rest = table.shape[0] - length
                found[place] = torch.nn.functional.pad(slope.sum((0, 2)), (0, 0, 0, rest)).to(dtype)

    return found


FORMULAS = {
    "dropout": Formula(_setup_dropout, _backward_dropout),
    "rotary_position_embedding": Formula(_setup_rotation, _backward_rotation),
}
