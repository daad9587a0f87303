"""Products on Hopper: tell which calls the Gluon kernel takes, choose tiles, and launch it."""

import dataclasses
import functools

import torch

from ntops._runtime import INTERPRETED
from ntops.host import matrix_copy, split_k
from ntops.launch import config_selection, recorder
from ntops.launch.settings import get_default_num_stages, get_default_num_warps

# Tiles of the result and of K, the warps that multiply, and stages; for each, the pairs of elements that a
# multiprocessor multiplies in a nanosecond, and the nanoseconds in which it stores the tile.
_HALF = {
    (128, 256, 64, 8, 3): (3320, 560),
    (192, 128, 64, 12, 4): (3270, 940),
    (128, 192, 64, 8, 4): (3110, 690),
    (128, 160, 64, 8, 5): (2940, 1080),
    (160, 128, 64, 8, 5): (2930, 860),
    (128, 144, 64, 8, 5): (2840, 1220),
    (144, 128, 64, 8, 5): (2940, 880),
    (128, 128, 64, 8, 6): (3100, 310),
    (96, 128, 64, 8, 7): (2720, 980),
    (128, 80, 64, 8, 7): (2350, 880),
    (64, 256, 64, 4, 4): (2790, 230),
    (64, 192, 64, 4, 5): (2580, 650),
    (64, 160, 64, 4, 6): (2280, 260),
    (64, 128, 128, 4, 4): (2320, 330),
    (64, 96, 128, 4, 5): (2240, 1810),
    (64, 64, 128, 4, 6): (2650, 250),
    (48, 64, 128, 4, 7): (980, 80),
    (32, 128, 128, 8, 5): (1600, 420),
    (32, 64, 128, 4, 8): (3840, 490),
    (16, 64, 128, 4, 10): (1970, 50),
}
# With few rows, 256 bytes of each row or column at a time are best: 128 x 4096 x 4096 took 30.8 us in steps of 64 terms
# and 38.0 in steps of 32 (cuBLAS 33.1).
_TF32 = {
    (256, 128, 32, 8, 4): (1630, 2530),
    (128, 192, 32, 12, 5): (1550, 1310),
    (128, 128, 32, 8, 5): (1430, 950),
    (128, 64, 32, 4, 8): (890, 230),
    (64, 128, 32, 8, 8): (940, 270),
    (64, 64, 64, 4, 6): (620, 0),
    (32, 128, 64, 8, 5): (1400, 180),
    (16, 128, 64, 8, 6): (1400, 0),
    (16, 64, 64, 4, 10): (1400, 200),
}
SPLITS = (2, 3, 4, 6, 8)


@dataclasses.dataclass(frozen=True)
class Rates:
    """The constants of the time of a product: rates per nanosecond, of a multiprocessor where they do not say more."""

    read: float
    """Bytes of factors read from the L2 cache."""
    memory: float
    """Bytes that the device moves."""
    added: float
    """Bytes of partial sums that the device writes, reads and adds up."""
    launched: float
    """Nanoseconds until adding up begins."""
    torn: float
    """How many times as many bytes are read where K is no multiple of 128 bytes, so that a row's part of a tile lies in
    two lines of the cache."""


_RATES = {2: Rates(121, 4300, 3440, 2220, 1.65), 4: Rates(84, 3900, 8900, 1800, 1)}
"""The rates by the element size. These and the rates of tiles are fitted to 1,513 products of bfloat16 (in 1,172 of
them tiles twice as many as are here; seeds 811 to 818) and 62 of TF32 (seeds 4001, 9101 and 9102), timed on an H200
(Triton 3.6) as ``python -m conformance.benchmarks.tiles`` does. The choice takes on average 0.9 % longer than the best;
fitted to half of the products, 1.3 % for the other half."""
_OVERLAP = 3
"""The power of the norm by which computing and moving take as long as both: the longer one where they are far apart."""
POINTS = (
    *((16, 64, 4096), (32, 2304, 32768), (512, 6144, 1024), (1500, 2304, 64), (1024, 1024, 64), (16, 18432, 1024)),
    *((33, 5120, 4096), (512, 2304, 4096), (512, 1168, 3000), (2048, 3072, 2048), (1000, 5120, 8192)),
    *((777, 3072, 3000), (333, 18432, 8192), (1500, 3072, 1000), (384, 4096, 3000), (512, 2304, 5120)),
    *((700, 6144, 1024), (300, 4544, 14336), (384, 2304, 4096), (256, 3072, 8192), (197, 768, 2048)),
    *((777, 6144, 64), (300, 1024, 1000), (77, 5120, 5120), (48, 2048, 1000)),
)
"""Sizes that together make each of the tiles the fastest, and K split."""
_REGISTERS = {1: 168, 2: 168, 3: 128}
"""The registers of a thread at the start, by the number of groups of warps; the groups later take over those of the
loading warp."""
_OTHERS = 3072
"""The most bytes of shared memory used beside tiles: barriers, and for each group a row to add."""


_LARGE_RESULT = 2**20
"""From this many elements on, results of half types whose rows do not begin at multiples of 16 bytes are stored through
a copy; else, and of float32, each thread stores its own. 577 x 1280 x 1500 takes 9.7 us so (10.8 through a copy), 33 x
1024 x 5003 7.5 us (8.6); 512 x 768 x 30522 72.7 us (58.8), 1702 x 512 x 1001 14.5 us (10.3)."""
_FEW = 16
"""Up to this many rows of a result the other factor is not copied if its K fits: 8 x 4096 x 50257 (M x K x N) takes
342 us with a copy, 217 without."""


def takes_sizes(result, input, ieee, batch_dims, index):
    """Tell whether the kernel takes a product of these sizes. Factors whose rows do not begin at multiples of 16 bytes
    are copied: 25 x 3000 x 5003 takes 37 us so, and 57 us in Triton's kernel."""
    dtype = input.dtype

    return (
        not INTERPRETED
        # The user's numbers are for Triton's kernel: here warps and stages are parts of a fixed design.
        and not (get_default_num_warps() or get_default_num_stages())
        and config_selection.device(index).hopper
        and (dtype.itemsize == 2 or (dtype is torch.float32 and not ieee))
        and batch_dims <= 1
        and input.shape[-1] > 0
    )


def takes_layout(result, mat2, batch_dims):
    """Tell whether the kernel takes a product of these layouts, of sizes that it takes. Of few rows and a K that fits,
    the layout of the other factor decides, which is not copied; a K that does not fit is not read in place by any
    kernel of tensor cores."""
    has_whole_rows = mat2.shape[-2] * mat2.element_size() % 16 == 0
    is_read = result.shape[-2] > _FEW or batch_dims or not has_whole_rows
    return bool(is_read or _described(_batch(mat2))[0] is not None)


def known(dtype):
    """Return all tiles, with their warps and stages, and the rates of each."""
    return _TF32 if dtype is torch.float32 else _HALF


@functools.lru_cache(4096)
def fastest(m, n, k, dtype, multiprocessors, batch=0):
    """Return the tile, warps, stages and parts of K that take the least time; of two equally fast ones the smaller
    tile.

    :param batch: The number of products of a batch, whose K is not split; 0 for a single product.
    """
    products = max(batch, 1)
    itemsize, rates = dtype.itemsize, _RATES[dtype.itemsize]
    torn = rates.torn if k * itemsize % 128 else 1
    moved = products * (m * k + k * n + m * n) * itemsize / rates.memory

    def nanoseconds(tile, tiles, splits):
        block_m, block_n, *_ = tile
        multiplied, stored = known(dtype)[tile]
        # Rows and columns beyond the end are not read.
        read = (min(block_m, m) + min(block_n, n)) * itemsize * torn / rates.read
        stores = stored * (2 if splits > 1 else 1)
        turn = split_k.part(k, splits) * max(read, block_m * block_n / multiplied) + stores
        whole, rest = divmod(tiles * splits, multiprocessors)

        # The programs of a wave share the memory bandwidth; the last wave may have few.
        def wave(programs):
            return (turn**_OVERLAP + (moved * programs / (tiles * splits)) ** _OVERLAP) ** (1 / _OVERLAP)

        taken = whole * wave(multiprocessors) + (wave(rest) if rest else 0)

        # Each partial result is written and read again.
        return taken if splits == 1 else taken + rates.launched + (splits + 0.5) * m * n * 4 / rates.added

    found = []

    for one in known(dtype):
        tiles = products * -(-m // one[0]) * -(-n // one[1])
        # Each part has enough terms to be worth a program.
        most = 1 if batch else min(multiprocessors // tiles, k // 512)
        possible = (splits for splits in SPLITS if splits <= most and split_k.has_parts(k, splits))
        found += [(nanoseconds(one, tiles, splits), one[0] * one[1], one, splits) for splits in (1, *possible)]

    *_, tile, splits = min(found)
    return *tile, splits


def stored_columns(options, dtype, dtype_of_result):
    """Return how many columns of a tile are stored at a time, of each block of its columns: storing many at once would
    leave no room for stages."""
    _, *blocks = _laid(options, dtype)
    is_wide = dtype_of_result.itemsize > dtype.itemsize and options.block_m >= 64
    is_large = options.block_m * options.block_n * dtype_of_result.itemsize > 65536
    return [max(block // 4, 16) if is_wide or is_large else block for block in blocks]


def shared_memory(options, dtype, dtype_of_result=None):
    """Return the bytes of shared memory of a program: factor tiles of all stages, and a buffer through which results
    are stored.

    :param dtype_of_result: That of a wider result, for which all tiles fit as well.
    """
    stage = (options.block_m + options.block_n) * options.block_k
    result = torch.float32 if options.splits > 1 else dtype_of_result or dtype
    rows, *_ = _laid(options, dtype)
    columns = sum(stored_columns(options, dtype, result))
    return stage * options.num_stages * dtype.itemsize + rows * columns * result.itemsize + _OTHERS


def is_swapped(options, dtype):
    """Tell whether the kernel computes the transposed product: in TF32, and where the rows are no multiple of 64 for
    each group of four warps."""
    return options.block_m % (16 * options.num_warps) > 0 or dtype is torch.float32


def _laid(options, dtype):
    """Return the rows of a tile as the kernel computes it, and its columns as those of one or two blocks, which are
    powers of two."""
    rows, columns = options.block_m, options.block_n
    rows, columns = (columns, rows) if is_swapped(options, dtype) else (rows, columns)
    first = 1 << (columns.bit_length() - 1)
    return (rows, first, columns - first) if columns > first else (rows, first)


def launch(chosen, index, output, input, mat2, added=None, numbers=(), up=None, activation=""):
    """Launch ``kernels.multiply`` for matrices, or for a batch of each; with splits, ``output`` is (splits, M, N).

    :param up: The second right factor, with an ``activation``, in tiles of less than 64 rows. The result is the
        activated product with ``mat2`` times the product with ``up``.
    """
    # Import here, so that calls of the other kernel do not pay for it (37 ms).
    from ntops.kernels import mm_hopper as kernels

    left, right, result = input, mat2, output
    swapped = is_swapped(chosen, input.dtype)

    # The transposed product is ``mat2.mT @ input.mT``. The tensor cores take 64 rows of the left factor at a time,
    # which few rows of ``input`` would not fill; and in TF32 they take the left factor from registers in any layout,
    # but the right factor with K innermost only.
    if swapped:
        left, right, result = mat2.mT, input.mT, output.mT
        added = None if added is None else added.mT

    groups = chosen.num_warps // 4
    batch, m, n = _batch(result).shape
    target, is_turned = _described(_batch(result))
    stored, unit, copied = (0, 0, 0), 0, None

    # A descriptor stores 16 bytes at a time, also past the end of a row, and the memory between rows is not part of the
    # result.
    if target is None or target.shape[2] * target.element_size() % 16:
        is_turned = swapped

        if result.element_size() > 2 or result.numel() < _LARGE_RESULT:
            target = _batch(result)
            stored, unit = _by_pointer(target)
        else:
            target = copied = matrix_copy.empty(output, _batch(output).shape)

    a, a_turned = _read(_batch(left))
    b, b_turned = _read(_batch(right.mT))
    kind, others, strides = kernels.NOTHING, result, (0, 0)
    rows, *columns = _laid(chosen, input.dtype)

    if added is not None:
        strides = added.stride()
        kind = kernels.MATRIX if all(strides) else kernels.COLUMN if strides[0] else kernels.ROW
        others = _laid_out(added[None], is_turned) if all(strides) else added
    elif up is not None:
        others = _descriptor(_laid_out(_batch(up.mT), a_turned), a_turned, rows // groups, chosen.block_k)

    # Of each block of columns: the descriptors of the right factor, the result and the addend.
    described = [
        (
            _descriptor(b, b_turned, width, chosen.block_k),
            target if unit else _descriptor(target, is_turned, rows // groups, part),
            _descriptor(others, is_turned, rows // groups, part) if kind == kernels.MATRIX else others,
        )
        for width, part in zip(columns, stored_columns(chosen, input.dtype, output.dtype), strict=True)
    ]
    more = described[1] if len(columns) > 1 else (None, None, None)
    tiles_m, tiles_n = -(-m // rows), -(-n // sum(columns))
    tiles = batch * tiles_m * tiles_n
    alpha, beta = (*numbers, *(1.0, 0.0)[len(numbers) :])
    steps = -(-split_k.part(left.shape[-1], chosen.splits) // chosen.block_k)

    recorder.launch(
        kernels.multiply,
        (min(tiles, config_selection.device(index).multiprocessors),),
        {"num_warps": 4, "maxnreg": _REGISTERS[groups]},
        described[0][1],
        _descriptor(a, a_turned, rows // groups, chosen.block_k),
        described[0][0],
        described[0][2],
        *(*more[:2], more[2] if kind == kernels.MATRIX else None),
        *(m, n, tiles, tiles_m, tiles_n, steps, steps if chosen.splits > 1 else 0),
        *(int(one.shape[0] > 1) for one in (a, b)),
        *stored,
        *strides,
        *(alpha, beta),
        *(a_turned, not b_turned, is_turned),
        unit,
        alpha != 1,
        kind.value,
        activation,
        groups,
        chosen.num_stages,
        len(columns) > 1,
    )

    if copied is not None:
        matrix_copy.write(_batch(output), copied)


def _by_pointer(matrices):
    """Return the strides with which threads store (B, M, N) matrices, in units of the elements that each stores at a
    time, and their number."""
    strides = matrices.stride()
    is_even = not any(number % 2 for number in (*strides[:2], matrices.shape[2]))
    unit = 2 if strides[2] == 1 and is_even and matrices.data_ptr() % (2 * matrices.element_size()) == 0 else 1

    return (strides[0] // unit, strides[1] // unit, strides[2] if unit == 1 else 1), unit


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
