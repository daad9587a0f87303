"""Products of float32 in IEEE arithmetic on the CUDA cores: tell which calls the Gluon kernel takes, choose tiles, and
launch it."""

import functools

import torch

from ntops._runtime import INTERPRETED
from ntops.host import matrix_copy
from ntops.launch import config_selection, recorder
from ntops.launch.settings import get_default_num_stages, get_default_num_warps

_TILES = {
    (128, 128, 32, 8, 2): (4, 128, 1.0),
    (64, 128, 16, 4, 4): (2, None, 0.9),
    (64, 64, 32, 4, 4): (2, None, 0.75),
    (32, 256, 16, 4, 4): (1, None, 0.75),
    (32, 64, 32, 2, 4): (1, None, 0.65),
}
"""For the tiles of the result and of K, warps and stages: the warps below each other, the most registers of a thread,
and the speed of many programs relative to the first."""
_FEW = 128
"""Of fewer rows, a copy of the other factor costs more than it saves."""
_SPLITS = (1, 2, 3, 4, 6, 8)
_MULTIPLIED = 190
"""Pairs of elements that a multiprocessor multiplies in a nanosecond."""
_ALONE = 1.4
"""The time of a program that has a multiprocessor to itself, relative to its share with others."""
_BEGUN = 5000
"""The nanoseconds that a program of 128 x 128 takes beside its products: the first loads, and the stores."""
_ADDED, _LAUNCHED = 3500, 4000
"""Bytes of partial sums that the device adds up in a nanosecond; the nanoseconds until it begins."""
POINTS = ((4096, 4096, 1024), (512, 512, 2**15), (2048, 64, 4096), (32, 65536, 512), (32, 64, 512))
"""Sizes that together make each of the tiles the fastest."""


def takes(result, input, ieee, batch_dims, index):
    """Tell whether the kernel takes a product."""
    return (
        not INTERPRETED
        # The user's numbers are for Triton's kernel: here registers and shared memory are parts of a fixed design.
        and not (get_default_num_warps() or get_default_num_stages())
        and config_selection.device(index).hopper
        and (ieee and input.dtype is torch.float32 and result.dtype is torch.float32)
        and batch_dims <= 1
        and input.shape[-1] > 0
    )


def known():
    """Return all tiles, with their warps and stages."""
    return tuple(_TILES)


@functools.lru_cache(4096)
def fastest(m, n, k, multiprocessors, batch=0):
    """Return the tile, warps, stages and parts of K that take the least time.

    :param batch: The number of products of a batch, whose K is not split; 0 for a single product.
    """

    def nanoseconds(tile, splits):
        block_m, block_n = tile[:2]
        programs = max(batch, 1) * -(-m // block_m) * -(-n // block_n) * splits
        turns = -(-programs // multiprocessors)
        each = block_m * block_n * (k / splits / _MULTIPLIED + _BEGUN / 128**2) / _TILES[tile][2]
        taken = each * (_ALONE if turns == 1 else turns)

        return taken if splits == 1 else taken + _LAUNCHED + (splits + 0.5) * m * n * 4 / _ADDED

    possible = (1,) if batch else [one for one in _SPLITS if k // one >= 256 or one == 1]
    _, tile, splits = min((nanoseconds(tile, one), tile, one) for tile in _TILES for one in possible)
    return *tile, splits


def shared_memory(options):
    """Return the bytes of shared memory of a program."""
    return (options.block_m + options.block_n) * options.block_k * options.num_stages * 4


def registers(options):
    """Return the registers of a thread: its sums, the factors of a few terms, and addresses."""
    tile = options.block_m, options.block_n, options.block_k, options.num_warps, options.num_stages
    return _TILES[tile][1] or 168


def launch(chosen, output, input, mat2, added=None, numbers=()):
    """Launch ``kernels.multiply`` for matrices, or for a batch of each; with splits, ``output`` is (splits, M, N)."""
    # Import here, so that calls of other kernels do not pay for it.
    from ntops.kernels import mm_fma as kernels

    m, n, k = *output.shape[-2:], input.shape[-1]
    warps_m, limit, _ = _TILES[chosen.block_m, chosen.block_n, chosen.block_k, chosen.num_warps, chosen.num_stages]
    a, unit_a = _laid_out(input if input.ndim == 3 else input[None], n)
    b, unit_b = _laid_out(mat2.mT if mat2.ndim == 3 else mat2.mT[None], m)
    is_turned = tuple(one.stride(2) != 1 for one in (a, b))
    factors = tuple(zip((a, b), is_turned, (unit_a, unit_b), strict=True))
    batch = output.shape[0] if output.ndim == 3 and chosen.splits == 1 else 1
    tiles_m, tiles_n = -(-m // chosen.block_m), -(-n // chosen.block_n)
    steps = -(-k // chosen.block_k)
    alpha, beta = (*numbers, *(1.0, 0.0)[len(numbers) :])
    added = output if added is None else added
    options = {"num_warps": chosen.num_warps} | ({"maxnreg": limit} if limit else {})

    recorder.launch(
        kernels.multiply,
        (batch * tiles_m * tiles_n, chosen.splits),
        options,
        output,
        a,
        b,
        added,
        *(m, n, k),
        *(tiles_m, tiles_n),
        -(-steps // chosen.splits) * chosen.block_k,
        *(-(-m // unit_a), -(-n // unit_b)),
        *(one.stride(2 if turned else 1) // unit for one, turned, unit in factors),
        output.stride(0) if output.ndim == 3 else 0,
        *(one.stride(0) // unit if one.shape[0] > 1 else 0 for one, _, unit in factors),
        *output.stride()[-2:],
        *added.stride()[-2:],
        *(alpha, beta),
        *(unit_a, unit_b),
        *is_turned,
        alpha != 1,
        len(numbers) == 2,
        *(chosen.block_m, chosen.block_n, chosen.block_k),
        chosen.num_stages,
        warps_m,
    )


def _laid_out(matrices, others):
    """Return (B, R, K) matrices as (B, K, R), with rows innermost or, where the product has few ``others``, with K
    innermost; and how many elements may be copied at a time. What lies otherwise is copied: 4096 x 4096 elements take
    40 us on an H200; 64 x 32064 x 3072 takes 431 us with K innermost, 487 with a copy.
    """
    batch, rows, terms = matrices.shape
    matrices = matrices[:1] if batch > 1 and matrices.stride(0) == 0 else matrices
    step = matrices.stride(0) if matrices.shape[0] > 1 else 0
    pitch = matrices.stride(2) if terms > 1 else -(-rows // 4) * 4

    if (matrices.stride(1) == 1 or rows == 1) and pitch > 0:
        found = matrices.mT.as_strided((matrices.shape[0], terms, rows), (step, pitch, 1))

        if matrices.data_ptr() % 16 == 0 and not (pitch % 4 or step % 4 or rows % 4):
            return found, 4

        if others < _FEW:
            return found, 1
    elif matrices.stride(2) == 1 and others < _FEW:
        return matrices.mT, 1

    return matrix_copy.aligned(matrices.mT), 4
