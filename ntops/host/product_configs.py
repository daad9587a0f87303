"""Configurations of matrix products: the rule that chooses one, and those that it may be forced to take. Figures are of
M x K x N."""

import dataclasses
import math

import torch

from ntops.host import few_rows, mm_fma, mm_hopper, split_k
from ntops.launch import config_selection
from ntops.launch.configuration import heuristic
from ntops.launch.devices import next_power_of_2

POINTERS = 1
"""The form of NineToothed's kernel, which runs everywhere."""
HOPPER = 2
"""The form of ``ntops.kernels.mm_hopper``, for operands that descriptors fit: half types and TF32, on Hopper."""
FMA = 3
"""The form of ``ntops.kernels.mm_fma``: float32 in IEEE arithmetic, on Hopper."""
FEW_ROWS = 4
"""The form of ``ntops.kernels.few_rows``, which runs everywhere."""

_LARGE, _LARGE_OF_BATCH, _LARGE_UNALIGNED, _LARGE_OF_BATCH_UNALIGNED = 2**22, 2**21, 2**20, 500_000
"""The values of M * N * K from which the form is ``HOPPER``. Smaller products take the host longer than the device, and
this form, which makes three descriptors, takes the host the longest. A batch has many small products: 384 of 197 x 64 x
197 take 44 us so, and 62 us in the other form; 16 of 197 x 72 x 77 take 10.6 us so, and 7.7 us in the other. If rows
are no multiple of 32 bytes, the other form loads 2 bytes at a time: 3 x 1000 x 1000 takes 22 us in it (cuBLAS 7), 128
of 16 x 500 x 64 take 23 us, and 14 us with the factors copied."""

_NARROW = (1024, 8192), (1536, 2048)
"""The most terms, and then the most columns, of products of few rows in tiles of 32 columns."""
_NARROW_PARTS, _NARROW_TERMS = 4, (2048, 6144)
"""The parts of K of such products, and the fewest and the most terms for which these pay."""


@dataclasses.dataclass(frozen=True)
class Options:
    """The options of a product: a tile of the result and of K, and the compiler's options."""

    block_m: int
    block_n: int
    block_k: int
    num_warps: int
    num_stages: int
    splits: int = 1
    """The number of parts of K, each of which is a product of its own; the partial products are then added up."""
    form: int = POINTERS
    """``POINTERS``, ``HOPPER``, ``FMA`` or ``FEW_ROWS``."""


@dataclasses.dataclass(frozen=True)
class Problem(config_selection.Problem):
    """A product of (M, K) and (K, N) matrices.

    The strides are not part of it: they change no bit of a result.
    """

    OPTIONS = Options
    SIZES = ("m", "n", "k")

    m: int
    n: int
    k: int
    dtype: torch.dtype
    ieee: bool
    """Tells whether float32 products are IEEE, not TF32; false for other dtypes, so that they share one entry."""
    batched: bool = False
    """Tells whether there is a batch of products, which fills the device without splits."""
    described: bool = False
    """Tells whether the form may be ``HOPPER``, or ``FMA`` of IEEE products."""
    products: int = 1
    """The number of products of the batch. It decides how many programs there are; measurements serve any number."""

    def kind(self):
        return {name: value for name, value in super().kind().items() if name != "products"}

    def rule(self, device):
        limits = device.shared_memory, device.multiprocessors
        kind = self.dtype, self.ieee, *limits, self.described, self.batched
        return config(self.m, self.n, self.k, *kind, self.products)

    def space(self, device):
        found = []

        if self.described and self.ieee:
            found += [Options(*one, form=FMA) for one in mm_fma.known()]
        elif self.described:
            found += [Options(*one, form=HOPPER) for one in mm_hopper.known(self.dtype)]

        for block_m, block_n, *others in _space(self):
            if block_m <= max(next_power_of_2(self.m), 32):
                options = Options(block_m, block_n, *others)
                even = 1 if self.batched else _splits(self.m, self.n, self.k, options, device.multiprocessors)
                # Twice as many parts may hide more of the latency; a single part needs no adding up.
                parts = (even, 2 * even, 1) if even > 1 else (1,)
                found += [dataclasses.replace(options, splits=one) for one in parts]

        return found

    def exists(self, options):
        if options.form == HOPPER:
            tile = options.block_m, options.block_n, options.block_k, options.num_warps, options.num_stages
            return tile in mm_hopper.known(self.dtype)

        return super().exists(options)

    def allows(self, options):
        if options.form in (HOPPER, FMA) and not self.described:
            return False

        return options.splits == 1 or self._splits(options)

    def _splits(self, options):
        return not self.batched and _has_parts(options, self.m, self.n, self.k)

    def resources(self, options):
        return resources(options, self.dtype)


def _has_parts(options, m, n, k, products=1):
    """Tell whether a kernel can take these parts of K. Two have parts of their own."""
    return options.splits == 1 or options.form in (FMA, FEW_ROWS) or split_k.has_parts(k, options.splits)


_FEW = ((1, 65), (4, 65), (9, 65), (16, 65), (1, 2**14 + 1), (4, 2**14 + 1))
_ODD = (
    *((rows, columns, 101) for rows in (2, 4) for columns in (2**14, 2**14 + 1)),
    *((rows, 65, 1001) for rows in (2, 4, 8, 16)),
    (65, 65, 101),
    (9, 9, 1001),
    (33, 8192, 1024),
    (33, 16384, 1024),
)
_POINTS = (*_FEW, (16, 64), (16, 16384), (33, 33), (64, 64), (65, 65), (65, 65536), (2048, 2048))
_POINTS = (*((*point, 1024) for point in _POINTS), (16, 64, 1792), (16, 64, 8192), (16, 16384, 2048), *_ODD)
_SMALL_POINTS = ((17, 32), (333, 304), (128, 2048), (1000, 500), (65, 4000))
_SMALL_POINTS = tuple((*point, terms) for point in _SMALL_POINTS for terms in (64, 128))
_IN_PLACE = ((16, 68, 1024), (100, 100, 1024), (1500, 1500, 60), (500, 500, 500))
_POINTS = _POINTS + _SMALL_POINTS + _IN_PLACE + mm_hopper.POINTS + mm_fma.POINTS
_POINTS = (*((*point, 1) for point in _POINTS), (128, 128, 64, 64))


@heuristic(("m", "n", "k", "products"), _POINTS, _has_parts)
def config(m, n, k, dtype, ieee, shared_memory, multiprocessors, described=False, batched=False, products=1):
    """Choose the options of a product.

    :param m: The rows of the result.
    :param n: The columns of the result.
    :param k: The terms of an element of the result.
    :param dtype: The dtype of the operands.
    :param ieee: Whether float32 products are IEEE, not TF32.
    :param shared_memory: Bytes of shared memory that a program can have on the device.
    :param multiprocessors: The number of multiprocessors of the device.
    :param described: Whether the form may be ``HOPPER``, or ``FMA`` of IEEE products.
    :param batched: Whether there is a batch of products, whose K is not split.
    :param products: The number of products of the batch.
    """
    batch = products if batched else 0

    if few_rows.takes(m, n, k, dtype, ieee):
        tile = few_rows.tile(m, n, dtype)
        splits = 1 if batch else few_rows.splits(m, n, k, dtype, tile, multiprocessors)
        return Options(*tile, few_rows.STAGES, splits, FEW_ROWS)

    if described and ieee:
        return Options(*mm_fma.fastest(m, n, k, multiprocessors, batch), form=FMA)

    in_place = batch and _is_read_in_place(m, n, k, dtype)

    if in_place:
        large = math.inf
    elif batch:
        # Few terms do not pay for copies: 96 of 64 x 77 x 64 take 10 us in the other form and 15 us in this.
        large = _LARGE_OF_BATCH_UNALIGNED if k % (16 // dtype.itemsize) and k >= 256 else _LARGE_OF_BATCH
    else:
        large = _LARGE_UNALIGNED if k % 16 or n % 16 else _LARGE

    if described and dtype.itemsize == 2 and m > 16 and not in_place and _is_small(m, n, k, batch):
        return Options(*_small_tile(m, n, k, batch, multiprocessors))

    is_narrow = dtype.itemsize == 2 and not batch and m <= 16 and k % 8 == n % 8 == 0

    if is_narrow and (parts := _narrow_parts(n, k, multiprocessors)):
        return Options(16, 32, 128, 4, 5, parts)

    if described and m * n * k >= large:
        return Options(*mm_hopper.fastest(m, n, k, dtype, multiprocessors, batch), form=HOPPER)

    few = dtype is torch.float32 and not ieee and m <= 16

    if dtype is torch.float64:
        block_m, block_n, block_k, num_warps, num_stages = 64, 64, 16, 4, 3
    elif dtype is torch.float32 and ieee:
        # IEEE products run on the CUDA cores, out of registers.
        block_m, block_n, block_k, num_warps, num_stages = 64, 64, 16, 4, 3
    elif dtype is torch.float32 and m >= 2048 and n >= 2048:
        # The tiles have as many bytes as those of half types; not measured yet.
        block_m, block_n, block_k, num_warps, num_stages = 128, 256, 32, 8, 4
    elif few:
        block_m, block_n, block_k, num_warps, num_stages = 16, 64, 64, 4, 4
    elif dtype is torch.float32:
        block_m, block_n, block_k, num_warps, num_stages = 128, 128, 32, 8, 3
    elif in_place and m <= 16:
        # 128 of 1 x 1500 x 64 take 16.8 us, with 64 terms a tile 17.8.
        block_m, block_n, block_k, num_warps, num_stages = 16, 64, 128, 4, 4
    elif in_place and min(m, n) < 384:
        # 64 of 1024 x 500 x 64 take 36 us, with four stages over 48.
        block_m, block_n, block_k, num_warps, num_stages = 64, 64, 64, 4, 3
    elif in_place:
        # 20 of 1500 x 64 x 1500 take 65 us, with 8 warps 70; 16 of 500 x 500 x 500 take 26.2 and 24.6.
        block_m, block_n, block_k, num_warps, num_stages = 128, 128, 64, 4 if k < 256 else 8, 3
    elif m >= 2048 and n >= 2048:
        # 676 TFLOP/s at 4096^3 bf16 on an H200, host time included.
        block_m, block_n, block_k, num_warps, num_stages = 128, 256, 64, 8, 4
    elif m <= 16:
        # The product is bound by reading the other matrix: read it in rows of 128 bytes, many in flight, with K in
        # parts. If its rows are not aligned, longer ones: 15 x 5003 x 5003 takes 61 us on an H200 with K innermost, in
        # the tiles of aligned rows 85.
        if dtype.itemsize == 2 and k % 8:
            block_m, block_n, block_k, num_warps, num_stages = 16, 64, 256, 8, 4
        elif dtype.itemsize == 2 and n % 8:
            block_m, block_n, block_k, num_warps, num_stages = 16, 128, 64, 4, 6
        else:
            block_m, block_n, block_k, num_warps, num_stages = 16, 64, 128, 4, 4
    elif m <= 64 or n <= 64 or (batch and min(m, n) < 128):
        block_m, block_n, block_k, num_warps, num_stages = 64, 64, 64, 4, 4
    else:
        # If each tile has a multiprocessor of its own, 5 stages are best: 128 x 4096 x 4096 takes 24.6 us on an H200,
        # with 3 stages 26.3.
        alone = -(-m // 128) * -(-n // 128) * max(batch, 1) <= multiprocessors
        block_m, block_n, block_k, num_warps, num_stages = 128, 128, 64, 8, 5 if alone else 3

    stage = (block_m + block_n) * block_k * dtype.itemsize
    num_stages = max(min(num_stages, shared_memory // stage), 1)
    options = Options(block_m, block_n, block_k, num_warps, num_stages)
    is_split = not batch and (dtype.itemsize == 2 or few)
    splits = _splits(m, n, k, options, multiprocessors) if is_split else 1

    return dataclasses.replace(options, splits=splits)


def _narrow_parts(n, k, multiprocessors):
    """Return in how many parts of K a product of few rows is quickest in tiles of 32 columns; 0: in other tiles.

    On an H200 2 x 768 x 1536 takes 7.9 us so, and 9.1 in 64 columns; 3 x 3584 x 512 9.9 in parts, and 10.3 in Hopper's
    form; 3 x 896 x 151936 with N innermost 104, and 78 in Hopper's form.
    """
    if any(k <= terms and n <= columns for terms, columns in _NARROW):
        return 1

    least, most = _NARROW_TERMS
    pays = least <= k <= most and -(-n // 32) * _NARROW_PARTS <= multiprocessors
    return _NARROW_PARTS if pays and split_k.has_parts(k, _NARROW_PARTS) else 0


def _is_small(m, n, k, batch):
    """Tell whether products of half types take less time in :data:`_SMALL_TILES` than to set up Hopper's kernel.

    An H200 computes 59 sampled ones in 0.87 of the time (geometric mean, nine of them more slowly); beyond these limits
    the gain falls.
    """
    return k <= 512 and max(batch, 1) * m * n * k <= 2**25


def _small_tile(m, n, k, batch, multiprocessors):
    """Return the smallest tiles of which there are few more than multiprocessors, and their warps and stages."""
    return next(
        (rows, columns, *others)
        for rows, columns, *others in (_SMALL_TILES if k <= 64 else _SMALL_TILES_OF_MORE_TERMS)
        if rows == 64 == columns or -(-m // rows) * -(-n // columns) * max(batch, 1) <= 1.25 * multiprocessors
    )


def _is_read_in_place(m, n, k, dtype):
    """Tell whether the products of a batch of half types are quickest out of factors and results whose rows begin at
    multiples of 8 bytes and not of 16: ``POINTERS`` loads 8 bytes at a time, ``HOPPER`` copies them first, which takes
    longer the less is multiplied for each element. 16 of 500 x 500 x 500 take 24.6 us so (cuBLAS 27.5), and 33.5 with
    copies; 8 of 1500 x 1500 x 1500 take 196 us so, and 150 with copies."""
    is_unaligned = k % 4 == n % 4 == 0 and (k % 8 or n % 8)
    return dtype.itemsize == 2 and is_unaligned and m * n * k < 200 * (m * k + k * n + m * n)


def _splits(m, n, k, options, multiprocessors):
    """Return the number of parts of K: parts of 1024 terms or more, no more than multiprocessors can take, and none of
    them empty."""
    programs = -(-m // options.block_m) * -(-n // options.block_n)
    # A multiprocessor takes at least two programs of few rows, which wait for memory, and one of many rows.
    most = multiprocessors * (2 if options.block_m <= 64 else 1)
    splits = 1

    while 2 * splits * programs <= most and k // (2 * splits) >= 1024:
        splits *= 2

    return -(-k // split_k.part(k, splits)) if splits > 1 else 1


# Tiles of the result and of K, warps and stages, the smallest first.
_SMALL_TILES = ((16, 32, 64, 4, 5), (32, 32, 64, 4, 5), (64, 32, 64, 4, 5), (64, 64, 64, 4, 4))
_SMALL_TILES_OF_MORE_TERMS = ((16, 32, 128, 4, 5), (32, 32, 128, 4, 4), (64, 32, 128, 4, 4), (64, 64, 128, 4, 3))

# The same, the most promising first.
_HALF = (
    (128, 256, 64, 8, 4),
    (128, 256, 64, 8, 3),
    (256, 128, 64, 8, 4),
    (256, 128, 64, 8, 3),
    (128, 128, 64, 8, 4),
    (128, 128, 64, 4, 4),
    (128, 128, 64, 4, 3),
    (128, 128, 128, 8, 3),
    (128, 256, 128, 8, 2),
    (128, 64, 64, 4, 4),
    (64, 128, 64, 4, 4),
    (64, 128, 128, 4, 4),
    (64, 256, 64, 4, 4),
    (64, 64, 64, 4, 5),
    (64, 64, 128, 4, 4),
)
# Products of few rows are bound by reading the other matrix: small tiles, for many programs and many loads in flight.
_HALF_SKINNY = (
    (16, 32, 256, 4, 4),
    (16, 32, 128, 4, 5),
    (16, 64, 128, 4, 4),
    (16, 64, 128, 4, 6),
    (16, 64, 256, 8, 4),
    (16, 128, 64, 4, 6),
    (32, 32, 128, 4, 5),
    (32, 64, 128, 4, 4),
)
_TF32 = (
    (128, 128, 32, 8, 4),
    (128, 256, 32, 8, 3),
    (128, 256, 32, 8, 4),
    (256, 128, 32, 8, 3),
    (128, 128, 32, 4, 4),
    (128, 128, 64, 8, 3),
    (128, 64, 32, 4, 4),
    (64, 128, 32, 4, 4),
    (64, 64, 32, 4, 5),
    (64, 64, 64, 4, 3),
    (16, 64, 64, 4, 4),
    (16, 64, 128, 4, 3),
    (32, 64, 64, 4, 4),
)
_PLAIN = (
    (64, 64, 16, 4, 2),
    (64, 64, 32, 4, 2),
    (64, 128, 16, 8, 3),
    (128, 64, 16, 8, 3),
    (32, 64, 32, 4, 3),
    (32, 32, 32, 4, 3),
    (16, 64, 32, 4, 3),
)


def _space(problem):
    if problem.dtype is torch.float64 or (problem.dtype is torch.float32 and problem.ieee):
        return _PLAIN

    if problem.dtype is torch.float32:
        return _TF32

    return (*_HALF_SKINNY, *_HALF) if min(problem.m, problem.n) <= 64 else _HALF


def resources(options, dtype):
    """Estimate the resources of the options. The constants were read off kernels that Triton 3.7 compiled for sm_90."""
    if options.form == FMA:
        used = mm_fma.shared_memory(options), mm_fma.registers(options)
        return config_selection.Resources(*used, 32 * options.num_warps)

    threads = 32 * options.num_warps
    tiles = (options.block_m + options.block_n) * options.block_k * dtype.itemsize
    sums = options.block_m * options.block_n * max(dtype.itemsize, 4) // 4 // threads

    if options.form == HOPPER:
        # Beside the groups of warps that multiply, one group loads.
        return config_selection.Resources(mm_hopper.shared_memory(options, dtype), 32 + sums, threads + 128)

    # Hopper's tensor cores read tiles of 64 rows from shared memory, so the tiles of all stages are there at once;
    # smaller tiles move to registers before the last stage arrives.
    stages = options.num_stages if options.block_m >= 64 else max(options.num_stages - 1, 1)
    # For each 16 bytes that a thread loads at a time, it holds an address of two registers.
    addresses = 2 * -(-tiles // (16 * threads))

    return config_selection.Resources(tiles * stages, 32 + sums + addresses, threads)
