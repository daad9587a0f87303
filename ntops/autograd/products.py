"""The gradients of matrix products: products of the result's gradient with the other factor, transposed by strides
without a copy.

A broadcast factor gets one product over all the batch's terms, so that its sum is rounded once. If a gradient is to be
differentiated once more, torch computes it.
"""

import math

import torch

from ntops.autograd.formula import Formula, is_composed, needs, save, saved
from ntops.host import gradients
from ntops.host.products import product
from ntops.kernels import addmm, matmul
from ntops.launch.recorder import repeatable


@repeatable(state=torch.get_float32_matmul_precision)
def contracted(left, right, batch, own, alpha=1.0):
    """Compute ``alpha * left @ right``, summed over the batch dims that ``own`` lacks or has with size one.

    :param left: (*, M, K), with batch dims that broadcast to ``batch``.
    :param right: (*, K, N) likewise.
    :return: (*own, M, N).
    """
    rows, columns = left.shape[-2], right.shape[-1]
    missing = len(batch) - len(own)
    summed = [dim for dim, size in enumerate(batch) if dim < missing or (own[dim - missing] == 1 and size != 1)]
    kept = [dim for dim in range(len(batch)) if dim not in summed]
    shape = (*(batch[dim] for dim in kept), rows, columns)
    folded = not summed and left.ndim > 2 and right.ndim == 2

    if not folded:
        first, last = len(batch), len(batch) + 1
        left = left.expand(*batch, *left.shape[-2:]).permute(*kept, first, *summed, last)
        right = right.expand(*batch, *right.shape[-2:]).permute(*kept, *summed, first, last)
        terms = math.prod(left.shape[len(kept) + 1 :])
        left, right = left.reshape(*shape[:-1], terms), right.reshape(*shape[:-2], terms, columns)

    if alpha != 1:
        result = product(addmm.premake, torch.Size(shape), left, right, scales=(alpha, 0.0))
    else:
        result = product(matmul.premake, torch.Size(shape), left, right, folded=folded)

    return result.view(*own, rows, columns)


def _gradients(gradient, left, right, left_shape, right_shape, needed, alpha=1.0):
    """Return the gradients of both factors of ``alpha * left @ right``, matrices or batches of them; ``None`` for a
    factor that needs none, whose other factor may be ``None``."""
    batch = gradient.shape[:-2]

    if not is_composed(gradient, *(one for one in (left, right) if one is not None)):
        return [
            contracted(gradient, right.mT, (*batch,), (*left_shape[:-2],), alpha) if needed[0] else None,
            contracted(left.mT, gradient, (*batch,), (*right_shape[:-2],), alpha) if needed[1] else None,
        ]

    # As torch does: rounded before the product, alpha times the gradient would be off by more than results that cancel.
    found = [
        torch.matmul(gradient, right.mT).sum_to_size(left_shape) if needed[0] else None,
        torch.matmul(left.mT, gradient).sum_to_size(right_shape) if needed[1] else None,
    ]
    return [one if one is None or alpha == 1 else one * alpha for one in found]


def _setup_product(ctx, inputs, output):
    left, right = inputs
    ctx.shapes = left.shape, right.shape
    save(ctx, left=left if needs(ctx, 1)[0] else None, right=right if needs(ctx, 0)[0] else None)


def _backward_product(ctx, gradient):
    values, needed = saved(ctx), needs(ctx, 0, 1)
    left, right = values["left"], values["right"]
    shapes = [*ctx.shapes]
    # A vector is a matrix of one row or of one column.
    vectors = [len(shape) == 1 for shape in shapes]

    if vectors[1]:
        gradient, right = gradient.unsqueeze(-1), None if right is None else right[:, None]
        shapes[1] = (*shapes[1], 1)

    if vectors[0]:
        gradient, left = gradient.unsqueeze(-2), None if left is None else left[None]
        shapes[0] = (1, *shapes[0])

    found = _gradients(gradient, left, right, *shapes, needed)
    return tuple(one if one is None else one.view(shape) for one, shape in zip(found, ctx.shapes, strict=True))


def _setup_addmm(ctx, inputs, output):
    input, mat1, mat2, ctx.beta, ctx.alpha = inputs
    ctx.shapes = input.shape, mat1.shape, mat2.shape
    save(ctx, mat1=mat1 if needs(ctx, 2)[0] else None, mat2=mat2 if needs(ctx, 1)[0] else None)


def _backward_addmm(ctx, gradient):
    values, needed = saved(ctx), needs(ctx, 0, 1, 2)
    input = None

    if needed[0] and is_composed(gradient):
        input = (gradient * ctx.beta).sum_to_size(ctx.shapes[0])
    elif needed[0]:
        input = gradients.summed(gradient, (*ctx.shapes[0],), gradient.dtype, float(ctx.beta))

    factors = _gradients(gradient, values["mat1"], values["mat2"], *ctx.shapes[1:], needed[1:], float(ctx.alpha))
    return (input, *factors, None, None)


_PRODUCT = Formula(_setup_product, _backward_product)
FORMULAS = {"mm": _PRODUCT, "bmm": _PRODUCT, "matmul": _PRODUCT, "addmm": Formula(_setup_addmm, _backward_addmm)}
