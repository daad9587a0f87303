"""The gradients of the fused operators, composed of the gradients of the operators that they fuse.

The forward pass saves only its arguments; the backward pass computes intermediate values again. If a gradient is to be
differentiated once more, and for gradients of tables of angles, torch computes it from the operator's formula.
"""

import math

import torch

from ntops.autograd.formula import Formula, composed_gradients, is_composed, needs, save, saved
from ntops.autograd.positions import joined, pairs, rotated_back
from ntops.autograd.products import contracted
from ntops.host import gradients, row_gradients
from ntops.host.products import product
from ntops.host.promotion import accumulate_dtype
from ntops.kernels import addmm, mm
from ntops.launch.recorder import repeatable


def _zeros(tensors, needed):
    return [one.new_zeros(one.shape) if wanted else None for one, wanted in zip(tensors, needed, strict=True)]


def _half_tables(cos, sin, interleaved, pair_count):
    """Return tables with one column for each pair: a half of a full-width table, whose halves are equal."""
    if cos.shape[1] == pair_count:
        return cos, sin

    return [table[:, ::2] if interleaved else table[:, :pair_count] for table in (cos, sin)]


def _setup_norm_rotation(ctx, inputs, output):
    x, weight, cos, sin, ctx.eps, ctx.interleaved, head_dim = inputs
    ctx.head_dim = cos.shape[1] if head_dim is None else head_dim
    save(ctx, x=x, weight=weight, cos=cos, sin=sin)


def _norm_rotation(x, weight, cos, sin, ctx):
    """Compute the operator with torch's functions."""
    values = x.to(accumulate_dtype(x.dtype))
    values = values * torch.rsqrt((values * values).mean(-1, keepdim=True) + ctx.eps) * weight
    heads = values.unflatten(-1, (-1, ctx.head_dim))
    cos, sin = _half_tables(cos, sin, ctx.interleaved, ctx.head_dim // 2)
    # The result is used twice: the sum of both gradients is rounded once.
    cos, sin = (table[: x.shape[1], None].to(values.dtype) for table in (cos, sin))
    x0, x1 = pairs(heads, ctx.interleaved)

    return joined(x0 * cos - x1 * sin, x0 * sin + x1 * cos, ctx.interleaved).flatten(-2).to(x.dtype)


def _backward_norm_rotation(ctx, gradient):
    values, needed = saved(ctx), needs(ctx, 0, 1, 2, 3)
    x, weight, cos, sin = (values[name] for name in ("x", "weight", "cos", "sin"))

    def composed(wanted):
        return composed_gradients(lambda *args: _norm_rotation(*args, ctx), (x, weight, cos, sin), wanted, gradient)

    if is_composed(gradient, x, weight, cos, sin):
        return (*composed(needed), None, None, None)

    of_tables = composed([False, False, *needed[2:]])[2:] if any(needed[2:]) else [None, None]

    if not x.numel() or not any(needed[:2]):
        return (*_zeros((x, weight), needed[:2]), *of_tables, None, None, None)

    tables = _half_tables(cos, sin, ctx.interleaved, ctx.head_dim // 2)
    cos, sin = (table[: x.shape[1]] for table in tables)
    heads = gradient.unflatten(-1, (-1, ctx.head_dim))
    # In float32, so that the value between norm and rotation is not rounded.
    back = rotated_back(heads, -sin, cos, bool(ctx.interleaved), accumulate_dtype(x.dtype))
    rows = row_gradients.matrix(back.flatten(2), 2), row_gradients.matrix(x, 2)
    found = row_gradients.norm(*rows, weight, float(ctx.eps), False, None, *needed[:2], False)

    return None if found[0] is None else found[0].view(x.shape), found[1], *of_tables, None, None, None


def _gelu_tanh(x):
    # The third derivative of torch's own is NaN from 13 on.
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * x * (1 + 0.044715 * x * x)))


_ACTIVATIONS = {
    "silu": torch.nn.functional.silu,
    "gelu": torch.nn.functional.gelu,
    "gelu_tanh": _gelu_tanh,
}


def _setup_mlp(ctx, inputs, output):
    x, gate_weight, up_weight, ctx.activation = inputs
    save(ctx, x=x, gate=gate_weight, up=up_weight)


def _mlp(x, gate, up, activation):
    """Compute the operator with torch's functions, between the products in float32."""
    gated, raised = ((x @ weight.mT).to(accumulate_dtype(x.dtype)) for weight in (gate, up))
    return (_ACTIVATIONS[activation](gated) * raised).to(x.dtype)


def _backward_mlp(ctx, gradient):
    values, needed = saved(ctx), needs(ctx, 0, 1, 2)
    x, gate, up = (values[name] for name in ("x", "gate", "up"))

    if is_composed(gradient, x, gate, up):
        found = composed_gradients(lambda *args: _mlp(*args, ctx.activation), (x, gate, up), needed, gradient)
        return (*found, None)

    if not gradient.numel() or not x.numel():
        return (*_zeros((x, gate, up), needed), None)

    rows = row_gradients.matrix(x, x.ndim - 1)
    slopes = row_gradients.matrix(gradient, gradient.ndim - 1)
    found = mlp(slopes, rows, gate, up, ctx.activation, *needed)
    return None if found[0] is None else found[0].view(x.shape), *found[1:], None


@repeatable(state=torch.get_float32_matmul_precision)
def mlp(gradient, x, gate, up, activation, to_x, to_gate, to_up):
    """Return the gradients of ``fused_gated_mlp`` of a matrix ``x``.

    The backward pass computes both products of the forward pass again, and rounds them to the dtype, as unfused layers
    do.

    :return: The gradients of ``x``, ``gate`` and ``up``, each ``None`` if it is not needed.
    """
    shape = torch.Size((x.shape[0], gate.shape[0]))
    gated, linear = (product(mm.premake, shape, x, weight.mT) for weight in (gate, up))
    dtype = x.dtype
    gated_slopes = gradients.elementwise(f"gated_{activation}", shape, dtype, gradient, gated, linear)
    linear_slopes = gradients.elementwise(f"activated_{activation}", shape, dtype, gradient, gated)
    of_x = None

    if to_x:
        first = contracted(gated_slopes, gate, (), ())
        of_x = product(addmm.premake, x.shape, linear_slopes, up, added=first, scales=(1.0, 1.0))

    of_gate = contracted(gated_slopes.mT, x, (), ()) if to_gate else None
    of_up = contracted(linear_slopes.mT, x, (), ()) if to_up else None
    return of_x, of_gate, of_up


FORMULAS = {
    "fused_gated_mlp": Formula(_setup_mlp, _backward_mlp),
    "fused_rmsnorm_rope": Formula(_setup_norm_rotation, _backward_norm_rotation),
}
