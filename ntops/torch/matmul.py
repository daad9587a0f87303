import itertools

import torch

from ntops.host.dim_order import broadcast_shapes
from ntops.host.products import check_factors, check_inner, product
from ntops.kernels.matmul import premake
from ntops.launch.recorder import repeatable


@repeatable(state=torch.get_float32_matmul_precision)
def matmul(input, other, *, out=None):
    """Compute the product of two vectors, matrices, or batches of them that broadcast, as :func:`torch.matmul` does.

    Half types accumulate in float32. Float32 follows :func:`torch.get_float32_matmul_precision` at the time of the
    call: "highest" is IEEE, anything else TF32. A broadcast batch is not copied, except for rows of ``input`` that are
    not evenly spaced if ``other`` is one matrix.

    :param input: A floating-point tensor, (K,) or (*, M, K).
    :param other: A tensor of the same dtype, (K,) or (*, K, N).
    :param out: Where the result is written; it has the very dtype of the operands.
    :return: A tensor, (*, M, N), without M for a vector ``input``, without N for a vector ``other``.
    :raises TypeError: An argument is not a tensor.
    :raises RuntimeError: Shapes, dtypes, devices or ``out`` do not fit.
    :raises NotImplementedError: Integers or bools, unless there is nothing to multiply; complex, sparse, quantized or
        nested operands.
    """
    check_factors(input=input, other=other)

    if input.ndim == 0 or other.ndim == 0:
        raise RuntimeError(f"arguments 'input' and 'other' need a dim each, but have {input.ndim} and {other.ndim}")

    check_inner(input=input, other=other)
    left = input[None] if input.ndim == 1 else input
    right = other[:, None] if other.ndim == 1 else other

    try:
        batch = broadcast_shapes(left.shape[:-2], right.shape[:-2])
    except RuntimeError:
        raise RuntimeError(
            f"the batch dims of arguments 'input' {tuple(input.shape)} and 'other' {tuple(other.shape)} do not "
            "broadcast together"
        ) from None

    # Many rows at a time read a matrix from memory once: 16 x 1 x 4096 took 77 us on an H200, and 17 us as one product.
    folded = left.ndim > 2 and right.ndim == 2

    if not folded:
        left = left.expand(*batch, *left.shape[-2:])
        right = right.expand(*batch, *right.shape[-2:])

    merged = _merges(input, other)
    shape = (*batch, *left.shape[-2:-1], *right.shape[-1:])

    if input.ndim > 1 and other.ndim > 1:
        return product(premake, torch.Size(shape), left, right, out, folded=folded, merged=merged)

    if other.ndim > 1:
        return product(premake, torch.Size((*batch, shape[-1])), left, right, out, vectors=(-2,), merged=merged)

    if input.ndim > 1:
        return product(premake, torch.Size(shape[:-1]), left, right, out, vectors=(-1,), folded=folded, merged=merged)

    return product(premake, torch.Size(batch), left, right, out, vectors=(-1, -1))


def _merges(input, other):
    """Tell whether torch, given ``out``, makes one product of a batch of matrices and a matrix or vector: if the batch
    is empty, or the rows of the batch, or its columns after a vector, are evenly spaced."""
    larger, smaller = (input, other) if input.ndim >= other.ndim else (other.mT, input)

    if larger.ndim < 3 or smaller.ndim > 2 or input.ndim == 2:
        return False

    rows = zip(larger.shape[:-1], larger.stride()[:-1], strict=True)
    even = (outer == size * inner for (_, outer), (size, inner) in itertools.pairwise(rows))
    return not larger.numel() or all(even)
