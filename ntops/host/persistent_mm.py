"""Products by way of tensor descriptors: which calls they take, and their launch."""

import torch
from triton.tools.tensor_descriptor import TensorDescriptor

from ntops.host import choice, repetition
from ntops.kernels import persistent_mm as kernels
from ntops.torch.utils import get_default_num_stages, get_default_num_warps

PARTS = 4
"""In how many parts a tile is stored where shared memory has no room for all of it."""
_GROUP = 8
"""Tiles that lie below each other and are computed together."""


def takes(result, input, ieee, batch_dims, index):
    """Whether tensor descriptors could be of copies of all operands, so that the form of a product does not depend on
    their layout: rows of 16 bytes or a multiple."""
    dtype = input.dtype
    n, k = result.shape[-1], input.shape[-1]

    return (
        choice.device(index).hopper
        and (dtype.itemsize == 2 or (dtype is torch.float32 and not ieee))
        and batch_dims <= 1
        and k > 0
        and all(size * dtype.itemsize % 16 == 0 for size in (n, k))
    )


def launch(chosen, index, output, input, mat2, added, numbers):
    """Launch ``kernels.multiply`` for matrices, or for a batch of each."""
    (m, n), k = output.shape[-2:], input.shape[-1]
    batch = output.numel() // (m * n)
    result = output.view(batch, m, n) if output.ndim == 2 else output
    stored = _describable(result)

    if stored is None:
        # Not ``repetition.empty``: a call that copies what its kernel stored must not be recorded.
        stored = torch.empty(result.shape, dtype=result.dtype, device=result.device)

    size = output.dtype.itemsize
    room = choice.device(index).shared_memory - 1024
    whole = (chosen.block_m + chosen.block_n) * chosen.block_k * size * chosen.num_stages
    whole += chosen.block_m * chosen.block_n * size * (1 if added is None else 2)
    parts = 1 if whole <= room else PARTS
    a, turned_a = _descriptor(input, chosen.block_m, chosen.block_k)
    b, turned_b = _descriptor(mat2.mT, chosen.block_n, chosen.block_k)
    tiles = batch * -(-m // chosen.block_m) * -(-n // chosen.block_n)
    alpha, beta = (*numbers, *(1.0, 0.0)[len(numbers) :])

    repetition.launch(
        kernels.multiply,
        (min(tiles, choice.device(index).multiprocessors),),
        {
            "num_warps": get_default_num_warps() or chosen.num_warps,
            "num_stages": get_default_num_stages() or chosen.num_stages,
        },
        TensorDescriptor(
            stored, list(stored.shape), list(stored.stride()), [1, chosen.block_m, chosen.block_n // parts]
        ),
        a,
        b,
        result if added is None else added,
        *(m, n, k, tiles),
        *(int(one.shape[0] > 1) for one in (a, b)),
        *(result if added is None else added).stride()[-2:],
        *(alpha, beta),
        *(turned_a, not turned_b),
        bool(numbers),
        added is not None,
        "tf32",
        parts,
        _GROUP,
        *(chosen.block_m, chosen.block_n, chosen.block_k),
    )

    if stored.data_ptr() != result.data_ptr():
        result.copy_(stored)


def _descriptor(matrices, rows, terms):
    """A descriptor of (R, K) or (B, R, K) matrices in tiles of (1, rows, terms), and whether it is of them turned.

    Matrices that cannot be described are copied, with K innermost, as all kernels can read it. Of those that are one
    along the batch there is one.
    """
    matrices = matrices[None] if matrices.ndim == 2 else matrices
    matrices = matrices[:1] if matrices.stride(0) == 0 else matrices
    found, block, turned = _describable(matrices), [1, rows, terms], False

    if found is None and (found := _describable(matrices.mT)) is not None:
        block, turned = [1, terms, rows], True

    # A contiguous one may begin anywhere.
    found = matrices.clone(memory_format=torch.contiguous_format) if found is None else found
    return TensorDescriptor(found, list(found.shape), list(found.stride()), block), turned


def _describable(matrices):
    """(B, R, C) matrices with strides that descriptors have, ``None`` if theirs are others: but for the last dim, which
    is contiguous, multiples of 16 bytes."""
    batch, rows, columns = matrices.shape
    unit = 16 // matrices.element_size()
    # That of a dim of one element counts for nothing, and may be anything.
    row = matrices.stride(1) if rows > 1 else -(-columns // unit) * unit
    step = matrices.stride(0) if batch > 1 else rows * row
    fits = matrices.stride(2) == 1 and all(stride > 0 and stride % unit == 0 for stride in (row, step))

    return matrices.as_strided(matrices.shape, (step, row, 1)) if fits and matrices.data_ptr() % 16 == 0 else None
