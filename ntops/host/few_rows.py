"""Products of a few rows, or columns: tell which calls the kernel takes that reads the other factor once, and launch
it. Figures are of M x N x K."""

import itertools

import torch

from ntops.kernels import few_rows as kernels
from ntops.launch import recorder
from ntops.launch.settings import get_default_num_stages, get_default_num_warps

MOST = 16
"""The most rows. 16 x 4096 x 4096 in float32 takes 58 us on an H200 (cuBLAS 58), and 8 x 4096 x 14336 takes 69
(159)."""
_NARROW, _WIDE, _LONG = (16, 128, 4), (128, 32, 8), (32, 64, 4)
"""Tiles of the other factor, and warps. Of many columns and up to 4 rows the second one is faster if columns are
innermost: 3 x 49408 x 1280 takes 76 us on an H200 (285 with the first, cuBLAS 80). If K is, they take as long. If rows
of many columns begin anywhere, the third is the fastest: 2 x 30522 x 768 in TF32 takes 42 us (79 with the second,
cuBLAS 53), 2 x 51866 x 1280 with K innermost 78 us (87, cuBLAS 119)."""
_MANY = 2**14
STAGES = 4
"""The number of tiles that shared memory holds, if that pays: 8 x 22016 x 4096 takes 114 us with K innermost, and more
than 133 with one; but 450 us with columns innermost, and 224 with one. Elements that are copied one by one never pay:
3 x 50257 x 768 takes 391 us, and 105 with one."""
_TOGETHER = 8
"""The most rows whose sums the registers hold."""
_SMALL = 8
"""The most rows of half types whose K does not fit. 8 x 896 x 5003 takes 18 us (20 to 24 us with the factors copied for
tensor cores), 16 x 4096 x 500 takes 15 us (11.4 to 15)."""
_COPIED = 2**23
"""From this many elements on, the other factor of half types is copied: 1 x 4096 x 5003 takes 43 us so, 75 us here."""
_PROGRAMS = 2
"""The programs for each multiprocessor that keep enough loads in flight."""
_LEAST, _PAYS = 4, 32
"""The tiles of terms of a part, and the fewest of K that is computed in parts."""


def takes(m, n, k, dtype, ieee):
    """Tell whether the kernel computes products of these sizes: those that tensor cores do not compute, or whose rows
    do not begin at multiples of 16 bytes.

    Of half types, only small ones whose K does not fit, and single rows: 16 x 51866 x 1280 takes 338 us in this kernel,
    75 us in cuBLAS, and 78 to 110 us in tiles of tensor cores.
    """
    few, many = min(m, n), max(m, n)
    unit = 16 // dtype.itemsize

    if dtype is torch.float64 or (dtype is torch.float32 and ieee):
        return few <= MOST

    if dtype.itemsize > 2:
        return few <= MOST and (k % unit > 0 or n % unit > 0)

    if k % unit:
        return few <= _SMALL and many * k < _COPIED

    return few == 1 and n % unit > 0


def tile(m, n, dtype):
    """Return how many rows, columns and terms a program computes at a time, and its warps."""
    most = _TOGETHER if dtype.itemsize <= 4 else _TOGETHER // 2
    rows = min(max(1 << (min(m, n) - 1).bit_length(), 2), most)

    many = max(m, n)

    if many < _MANY or rows > 4:
        return rows, *_NARROW

    return rows, *(_LONG if many * dtype.itemsize % 16 else _WIDE)


def splits(m, n, k, tile, multiprocessors):
    """Return the number of parts of K: enough for programs on all multiprocessors, each of at least ``_LEAST`` tiles of
    terms; one below ``_PAYS`` tiles in all. Where programs are few, each tile takes a load's latency: 1 x 500 x 5003 of
    bfloat16 takes 24 us on an H200 in two parts of 20 tiles (cuBLAS 10), 6 us of them to add up."""
    rows, columns, terms, _ = tile

    if k < _PAYS * terms:
        return 1

    programs = -(-max(m, n) // columns) * -(-min(m, n) // rows)
    return max(min(_PROGRAMS * multiprocessors // programs, k // (_LEAST * terms), 8), 1)


def launch(chosen, output, input, mat2):
    """Launch ``kernels.multiply`` for matrices or a batch of any dims; with splits, ``output`` is (splits, M, N)."""
    if chosen.splits == 1 and output.ndim > 3:
        for place in itertools.product(*map(range, output.shape[:-3])):
            launch(chosen, output[place], input[place], mat2[place])

        return

    if output.shape[-1] < output.shape[-2]:
        output, input, mat2 = output.mT, mat2.mT, input.mT

    m, n, k = *output.shape[-2:], input.shape[-1]
    batch = output.shape[0] if output.ndim == 3 else 1
    strides = [(*(one.stride()[:-2] if one.ndim == 3 else (0,)), *one.stride()[-2:]) for one in (output, input, mat2)]
    tiles_m = -(-m // chosen.block_m)
    tiles = tiles_m * -(-n // chosen.block_n)
    steps = -(-k // chosen.block_k)
    is_aligned = all(stride * mat2.element_size() % 16 == 0 for stride in mat2.stride() if stride != 1)
    is_staged = is_aligned and (mat2.stride(-2) == 1 or chosen.block_n == _WIDE[0])

    recorder.launch(
        kernels.multiply,
        (tiles * batch,),
        {"num_warps": get_default_num_warps() or chosen.num_warps},
        output,
        input,
        mat2,
        *(m, n, k),
        *(tiles, tiles_m),
        -(-steps // chosen.splits) * chosen.block_k,
        *itertools.chain(*strides),
        chosen.splits > 1,
        *(chosen.block_m, chosen.block_n, chosen.block_k),
        get_default_num_stages() or (chosen.num_stages if is_staged else 1),
    )
