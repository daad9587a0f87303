"""Products in the form for Hopper: which calls they take, and their launch."""

import torch

from ntops._runtime import INTERPRETED
from ntops.host import choice, repetition
from ntops.torch.utils import get_default_num_stages, get_default_num_warps

# Tiles of the result and of K, warps that multiply, and stages. Small tiles take the place of splits of K: 16 x 4096 x
# 4096 ran at 1.04 of cuBLAS's speed on an H200 with 64 programs, and at 0.92 with 128, of which each two are added up;
# 128 x 4096 x 4096 at 1.09 in tiles of 64 x 64, and at 0.82 in 2 splits of tiles of 128 x 64. And tiles take all of
# their columns: 128 x 4096 x 11008 took 29.2 us in 86 tiles of 128 x 128, but 43.4 in 126 of which 88 columns each were
# computed, so that nearly all multiprocessors had one: to fill memory with zeros takes as long as to load it.
_HALF = (
    (128, 256, 64, 8, 3),
    (128, 128, 64, 8, 6),
    (64, 128, 128, 4, 4),
    (64, 64, 128, 4, 6),
    (32, 64, 128, 4, 8),
    (16, 128, 64, 8, 10),
    (16, 64, 128, 4, 10),
)
# Few rows want 256 bytes of each row or column at a time: 128 x 4096 x 4096 took 30.8 us in steps of 64 terms and 38.0
# in steps of 32 (cuBLAS 33.1).
_TF32 = (
    (256, 128, 32, 8, 4),
    (128, 128, 32, 8, 5),
    (128, 64, 32, 4, 8),
    (64, 64, 64, 4, 6),
    (16, 128, 64, 8, 6),
    (16, 64, 64, 4, 10),
)
POINTS = (
    *((16, 7 * 132 * 64), (16, 2**20), (32, 2**20), (64, 2**20)),
    *((65536, 64), (65536, 128), (128, 65536), (65536, 65536)),
)
"""M and N for which each of them is the fastest, from K = 16 on."""
_REGISTERS = 168
"""What a thread starts with; then groups of warps take those of the warp that loads."""
_OTHERS = 3072
"""Bytes of shared memory for all that is no tile, at most: barriers, and for each group a row to add."""


def takes(result, input, ieee, batch_dims, index):
    """Whether tensor descriptors could be of copies of all operands, so that the form of a product does not depend on
    their layout: rows of 16 bytes or a multiple."""
    dtype = input.dtype
    n, k = result.shape[-1], input.shape[-1]

    return (
        not INTERPRETED
        # These are numbers for the other form: here warps and stages are parts of a whole.
        and not (get_default_num_warps() or get_default_num_stages())
        and choice.device(index).hopper
        and (dtype.itemsize == 2 or (dtype is torch.float32 and not ieee))
        and batch_dims <= 1
        and k > 0
        and all(size * dtype.itemsize % 16 == 0 for size in (n, k))
    )


def known(dtype):
    """All tiles, with their warps and stages."""
    return _TF32 if dtype is torch.float32 else _HALF


def fastest(m, n, dtype, multiprocessors):
    """Those that take the least time for a result of (m, n); 0 multiprocessors: there are programs enough for any.

    In a cycle, a multiprocessor of an H200 reads about 51 bytes of factors that lie in the L2 cache, of which each tile
    reads all of its rows and columns; and it multiplies about 1740 pairs of half types.
    """

    def cycles(one):
        """For each term; of two that take as long, the small tiles."""
        block_m, block_n, *_ = one
        tiles = -(-m // block_m) * -(-n // block_n)
        turns = -(-tiles // multiprocessors) if multiprocessors else tiles
        return turns * max((block_m + block_n) / 51, block_m * block_n / 3480), block_m * block_n

    return min(known(dtype), key=cycles)


def parts(options, dtype):
    """In how many parts a tile of a result is stored: large ones would leave no room for stages."""
    return 4 if options.block_m * options.block_n * dtype.itemsize > 65536 else 1


def shared_memory(options, dtype):
    """What a program has, in bytes: tiles of the factors for all stages, and what results are stored through."""
    stage = (options.block_m + options.block_n) * options.block_k
    result = options.block_m * options.block_n // parts(options, dtype)
    return (stage * options.num_stages + result) * dtype.itemsize + _OTHERS


def launch(chosen, index, output, input, mat2, added=None, numbers=(), up=None, activation=""):
    """Launch ``kernels.multiply`` for matrices, or for a batch of each.

    :param up: With an ``activation``, in tiles of less than 64 rows: what ``input`` is multiplied by beside ``mat2``.
        The result is the activated product times the other one.
    """
    # Calls that take the other form need not wait for this import (37 ms).
    from ntops.kernels import mm_hopper as kernels

    left, right, result, rows, columns = input, mat2, output, chosen.block_m, chosen.block_n
    swapped = chosen.block_m < 64 or input.dtype is torch.float32

    # The product turned is ``mat2.mT @ input.mT``. The matrix units take 64 rows of the left factor at a time, which
    # few rows of ``input`` would not fill; and in TF32 they take the left factor in any layout, out of registers, but
    # the right one with K innermost only.
    if swapped:
        left, right, result, rows, columns = mat2.mT, input.mT, output.mT, columns, rows
        added = None if added is None else added.mT

    groups = chosen.num_warps // 4
    batch, m, n = _batch(result).shape
    stored, is_turned = _described(_batch(result))
    # A store writes 16 bytes at a time, past the end of a row too: what lies between rows is not the result's.
    is_direct = stored is not None and stored.shape[2] * stored.element_size() % 16 == 0

    if not is_direct:
        # Not ``repetition.empty``: a call that copies what its kernel stored must not be recorded.
        stored, is_turned = torch.empty(_batch(output).shape, dtype=output.dtype, device=output.device), swapped

    a, a_turned = _read(_batch(left))
    b, b_turned = _read(_batch(right.mT))
    block = rows // groups, columns // parts(chosen, input.dtype)
    kind, others, strides = kernels.NOTHING, result, (0, 0)

    if added is not None:
        strides = added.stride()
        kind = kernels.MATRIX if all(strides) else kernels.COLUMN if strides[0] else kernels.ROW
        others = _descriptor(_laid_out(added[None], is_turned), is_turned, *block) if all(strides) else added
    elif up is not None:
        others = _descriptor(_laid_out(_batch(up.mT), a_turned), a_turned, rows // groups, chosen.block_k)

    tiles_m, tiles_n = -(-m // rows), -(-n // columns)
    tiles = batch * tiles_m * tiles_n
    alpha, beta = (*numbers, *(1.0, 0.0)[len(numbers) :])

    repetition.launch(
        kernels.multiply,
        (min(tiles, choice.device(index).multiprocessors),),
        {"num_warps": 4, "maxnreg": _REGISTERS},
        _descriptor(stored, is_turned, *block),
        _descriptor(a, a_turned, rows // groups, chosen.block_k),
        _descriptor(b, b_turned, columns, chosen.block_k),
        others,
        *(m, n, tiles, tiles_m, tiles_n, -(-left.shape[-1] // chosen.block_k)),
        *(int(one.shape[0] > 1) for one in (a, b)),
        *strides,
        *(alpha, beta),
        *(a_turned, not b_turned, is_turned),
        alpha != 1,
        kind.value,
        activation,
        groups,
        chosen.num_stages,
    )

    if not is_direct:
        output.copy_(stored.view(output.shape))


def _batch(matrices):
    return matrices[None] if matrices.ndim == 2 else matrices


def _descriptor(matrices, is_turned, rows, columns):
    """A descriptor of (B, R, C) matrices in blocks of (1, rows, columns), or of both turned."""
    from triton.experimental.gluon import language as gl
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

    block = [1, columns, rows] if is_turned else [1, rows, columns]
    size = matrices.element_size()
    layout = gl.NVMMASharedLayout(min(128, block[2] * size), 8 * size, rank=3)
    return TensorDescriptor(matrices, list(matrices.shape), list(matrices.stride()), block, layout)


def _read(matrices):
    """(B, R, K) matrices as they can be described, and whether turned.

    Those that cannot be are copied, with K innermost, as all kernels can read it. Of those that are one along the batch
    there is one.
    """
    matrices = matrices[:1] if matrices.stride(0) == 0 else matrices
    found, is_turned = _described(matrices)
    # A contiguous one may begin anywhere.
    return matrices.clone(memory_format=torch.contiguous_format) if found is None else found, is_turned


def _laid_out(matrices, is_turned):
    """Matrices, or these turned, so that they can be described; copied where they cannot be."""
    matrices = matrices.mT if is_turned else matrices
    found = _describable(matrices)

    if found is None:
        batch, rows, columns = matrices.shape
        unit = 16 // matrices.element_size()
        found = matrices.new_empty(batch, rows, -(-columns // unit) * unit)[..., :columns].copy_(matrices)

    return found


def _described(matrices):
    """Matrices, or these turned, as they can be described, and whether turned; ``None`` where they cannot be."""
    found = _describable(matrices)
    turned = _describable(matrices.mT) if found is None else None
    return (found, False) if turned is None else (turned, True)


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
