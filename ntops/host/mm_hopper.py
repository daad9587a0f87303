"""Products on Hopper: tell which calls the Gluon kernel takes, choose tiles, and launch it."""

import dataclasses
import functools

import torch

from ntops._runtime import INTERPRETED
from ntops.host import matrix_copy
from ntops.launch import config_selection, recorder
from ntops.launch.settings import get_default_num_stages, get_default_num_warps

# Tiles of the result and of K, the warps that multiply, and stages.
_HALF = (
    (128, 256, 64, 8, 3),
    (192, 128, 64, 12, 4),
    (128, 128, 64, 8, 6),
    (64, 256, 64, 4, 4),
    (64, 128, 128, 4, 4),
    (64, 64, 128, 4, 6),
    (32, 64, 128, 4, 8),
    (16, 128, 64, 8, 10),
    (16, 64, 128, 4, 10),
)
# With few rows, 256 bytes of each row or column at a time are best: 128 x 4096 x 4096 took 30.8 us in steps of 64 terms
# and 38.0 in steps of 32 (cuBLAS 33.1).
_TF32 = (
    (256, 128, 32, 8, 4),
    (128, 192, 32, 12, 5),
    (128, 128, 32, 8, 5),
    (128, 64, 32, 4, 8),
    (64, 128, 32, 8, 8),
    (64, 64, 64, 4, 6),
    (32, 128, 64, 8, 5),
    (16, 128, 64, 8, 6),
    (16, 64, 64, 4, 10),
)
_SPLITS = (2, 3, 4, 6, 8)


@dataclasses.dataclass(frozen=True)
class Rates:
    """The rates of a multiprocessor per nanosecond; fields that say so are of the whole device.

    The rates are fitted to 30 products of bfloat16 and 7 of TF32, of 2 to 5000 rows, with all tiles and parts of K, on
    an H200 (Triton 3.6), within 8 % of the measured times. The choice takes on average 1 % longer than the best.
    """

    read: float
    """Bytes of factors read from the L2 cache."""
    multiplied: float
    """Pairs of elements multiplied."""
    stored: float
    """Bytes of results stored."""
    memory: float
    """Bytes that the device moves."""
    added: float
    """Bytes of partial sums that the device writes, reads and adds up."""
    launched: float
    """Nanoseconds until adding up begins."""


_RATES = {2: Rates(92, 3060, 37, 4000, 3500, 6000), 4: Rates(84, 1530, 45, 4000, 2600, 6000)}
"""The rates by the element size."""
POINTS = (
    *((16, 64, 1024), (16, 131072, 1024), (64, 4096, 1024), (64, 8192, 1024), (128, 8192, 1024), (33, 18432, 7168)),
    *(
        (32, 8192, 1024),
        (64, 10240, 1024),
        (192, 33792, 1024),
        (128, 33792, 1024),
        (8192, 8192, 1024),
        (65536, 131072, 1024),
    ),
    # Sizes where K is split.
    *((512, 512, 2**15), (1024, 1024, 2**15), (128, 128, 2**15)),
)
"""Sizes that together make each of the tiles the fastest."""
_REGISTERS = {1: 168, 2: 168, 3: 128}
"""The registers of a thread at the start, by the number of groups of warps; the groups later take over those of the
loading warp."""
_OTHERS = 3072
"""The most bytes of shared memory used beside tiles: barriers, and for each group a row to add."""


_FEW = 16
"""Up to this many rows of a result the other factor is not copied: 8 x 4096 x 50257 takes 342 us with a copy, 217
without."""
COPIED = 128
"""From this many rows and columns of a result on, copying a factor costs less than it saves."""


def takes_sizes(result, input, ieee, batch_dims, index):
    """Tell whether the kernel takes a product of these sizes, if its factors lie as descriptors need them: rows begin
    at multiples of 16 bytes. Of results of many rows and columns other factors are copied, which pays; another result
    is stored through a copy."""
    dtype = input.dtype
    m, n, k = *result.shape[-2:], input.shape[-1]

    return (
        not INTERPRETED
        # The user's numbers are for Triton's kernel: here warps and stages are parts of a fixed design.
        and not (get_default_num_warps() or get_default_num_stages())
        and config_selection.device(index).hopper
        and (dtype.itemsize == 2 or (dtype is torch.float32 and not ieee))
        and batch_dims <= 1
        and k > 0
        and (k * dtype.itemsize % 16 == 0 or min(m, n) >= COPIED)
    )


def takes_layout(result, mat2, batch_dims):
    """Tell whether the kernel takes a product of these layouts, of sizes that it takes: the layouts of few rows
    decide."""
    return bool(result.shape[-2] > _FEW or batch_dims or _described(_batch(mat2))[0] is not None)


def known(dtype):
    """Return all tiles, with their warps and stages."""
    return _TF32 if dtype is torch.float32 else _HALF


@functools.lru_cache(4096)
def fastest(m, n, k, dtype, multiprocessors, batch=0):
    """Return the tile, warps, stages and parts of K that take the least time; of two equally fast ones the smaller
    tile.

    :param batch: The number of products of a batch, whose K is not split; 0 for a single product.
    """
    products = max(batch, 1)
    itemsize, rates = dtype.itemsize, _RATES[dtype.itemsize]

    def nanoseconds(block_m, block_n, tiles, splits):
        # Rows and columns beyond the end are not read.
        read = (min(block_m, m) + min(block_n, n)) * itemsize / rates.read
        stored = block_m * block_n * (4 if splits > 1 else itemsize) / rates.stored
        turn = k / splits * max(read, block_m * block_n / rates.multiplied) + stored

        # The programs of a wave share the memory bandwidth; the last wave may have few. Part of what one row of tiles
        # reads has left the cache before the next row of tiles reads it: 64 x 8192 x 28672 takes 122 us in one row of
        # tiles, and 173 us in two. The factors of a batch are small.
        again = 1 if batch else 1 + 0.35 * min(-(-m // block_m) - 1, 8)
        moved = products * (m * k + k * n * again + m * n) * itemsize / rates.memory
        whole, rest = divmod(tiles * splits, multiprocessors)
        taken = whole * max(turn, moved * multiprocessors / (tiles * splits))
        taken += max(turn, moved * rest / (tiles * splits)) if rest else 0

        # Each partial result is written and read again.
        return taken if splits == 1 else taken + rates.launched + (splits + 0.5) * m * n * 4 / rates.added

    found = []

    for one in known(dtype):
        tiles = products * -(-m // one[0]) * -(-n // one[1])
        # Parts are whole blocks of 16 terms, each with enough terms to be worth a program.
        most = 1 if batch else min(multiprocessors // tiles, k // 512)
        possible = (splits for splits in _SPLITS if splits <= most and k % (16 * splits) == 0)
        found += [(nanoseconds(*one[:2], tiles, splits), one[0] * one[1], one, splits) for splits in (1, *possible)]

    *_, tile, splits = min(found)
    return *tile, splits


def parts(options, dtype, is_wide=False):
    """Return the number of parts in which a tile of a result of this dtype is stored: storing a large tile at once
    would leave no room for stages.

    :param is_wide: Whether the dtype is wider than that of the factors.
    """
    is_partial = (options.splits > 1 or is_wide) and options.block_m >= 64
    return 4 if is_partial or options.block_m * options.block_n * dtype.itemsize > 65536 else 1


def shared_memory(options, dtype):
    """Return the bytes of shared memory of a program: factor tiles of all stages, and a buffer through which results
    are stored."""
    stage = (options.block_m + options.block_n) * options.block_k
    stored = torch.float32 if options.splits > 1 else dtype
    result = options.block_m * options.block_n // parts(options, stored)
    return stage * options.num_stages * dtype.itemsize + result * stored.itemsize + _OTHERS


def launch(chosen, index, output, input, mat2, added=None, numbers=(), up=None, activation=""):
    """Launch ``kernels.multiply`` for matrices, or for a batch of each.

    :param up: The second right factor, with an ``activation``, in tiles of less than 64 rows. The result is the
        activated product with ``mat2`` times the product with ``up``.
    """
    # Import here, so that calls of the other kernel do not pay for it (37 ms).
    from ntops.kernels import mm_hopper as kernels

    left, right, result, rows, columns = input, mat2, output, chosen.block_m, chosen.block_n
    swapped = chosen.block_m < 64 or input.dtype is torch.float32

    # The transposed product is ``mat2.mT @ input.mT``. The tensor cores take 64 rows of the left factor at a time,
    # which few rows of ``input`` would not fill; and in TF32 they take the left factor from registers in any layout,
    # but the right factor with K innermost only.
    if swapped:
        left, right, result, rows, columns = mat2.mT, input.mT, output.mT, columns, rows
        added = None if added is None else added.mT

    groups = chosen.num_warps // 4
    batch, m, n = _batch(result).shape
    stored, is_turned = _described(_batch(result))
    # A store writes 16 bytes at a time, also past the end of a row, and the memory between rows is not part of the
    # result.
    is_direct = stored is not None and stored.shape[2] * stored.element_size() % 16 == 0

    if not is_direct:
        stored, is_turned = matrix_copy.empty(output, _batch(output).shape), swapped

    a, a_turned = _read(_batch(left))
    b, b_turned = _read(_batch(right.mT))
    block = rows // groups, columns // parts(chosen, output.dtype, output.dtype is not input.dtype)
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

    recorder.launch(
        kernels.multiply,
        (min(tiles, config_selection.device(index).multiprocessors),),
        {"num_warps": 4, "maxnreg": _REGISTERS[groups]},
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
        matrix_copy.write(_batch(output), stored)


def _batch(matrices):
    return matrices[None] if matrices.ndim == 2 else matrices


def _descriptor(matrices, is_turned, rows, columns):
    """Return a descriptor of (B, R, C) matrices in blocks of (1, rows, columns), or of both transposed."""
    from triton.experimental.gluon import language as gl
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

    block = [1, columns, rows] if is_turned else [1, rows, columns]
    size = matrices.element_size()
    layout = gl.NVMMASharedLayout(min(128, block[2] * size), 8 * size, rank=3)
    return TensorDescriptor(matrices, list(matrices.shape), list(matrices.stride()), block, layout)


def _read(matrices):
    """Return (B, R, K) matrices with strides that descriptors allow, and whether they are transposed.

    Other matrices are copied: in their own order of dims, or with K innermost, which all kernels can read. An expanded
    batch becomes a batch of one.
    """
    matrices = matrices[:1] if matrices.stride(0) == 0 else matrices
    found, is_turned = _described(matrices)

    if found is None:
        # The tensor cores take 32-bit elements with K innermost only.
        is_turned = matrices.element_size() == 2 and matrices.stride(1) == 1 and matrices.stride(2) != 1
        found = matrix_copy.aligned(matrices.mT if is_turned else matrices)

    return found, is_turned


def _laid_out(matrices, is_turned):
    """Return the matrices, transposed on request, with strides that descriptors allow; copied if theirs are others."""
    matrices = matrices.mT if is_turned else matrices
    found = _describable(matrices)

    return matrix_copy.aligned(matrices) if found is None else found


def _described(matrices):
    """Return the matrices or their transposes with strides that descriptors allow, and whether transposed; else
    ``None``."""
    found = _describable(matrices)
    turned = _describable(matrices.mT) if found is None else None
    return (found, False) if turned is None else (turned, True)


def _describable(matrices):
    """Return (B, R, C) matrices with strides that descriptors allow, or ``None``: the last dim is contiguous, and the
    other strides are multiples of 16 bytes."""
    batch, rows, columns = matrices.shape
    unit = 16 // matrices.element_size()
    # The stride of a dim of one element does not matter, and may be anything.
    row = matrices.stride(1) if rows > 1 else -(-columns // unit) * unit
    step = matrices.stride(0) if batch > 1 else rows * row
    fits = matrices.stride(2) == 1 and all(stride > 0 and stride % unit == 0 for stride in (row, step))

    return matrices.as_strided(matrices.shape, (step, row, 1)) if fits and matrices.data_ptr() % 16 == 0 else None
