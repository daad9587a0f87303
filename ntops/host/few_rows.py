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
_TILE, _WIDE, _WIDE_HALF = (16, 128, 4), (64, 32, 4), (32, 64, 4)
"""Columns, terms and warps where K is innermost: the first of fewer columns than ``_MANY``, or of more than 4 rows. In
the others 3 x 51866 x 384 takes 26 and 18 us on an H200, in the first one 32 and 26 (float32 and bfloat16; cuBLAS 41
and 22)."""
_MANY = 2**14
STAGES = 4
"""The number of tiles that shared memory holds, if that pays: 8 x 22016 x 4096 takes 114 us with K innermost, and more
than 133 with one. Elements that are copied one by one never pay: 3 x 50257 x 768 takes 391 us, and 105 with one."""
CLASSES = 8
"""The classes of terms that programs leave apart if columns are innermost: so many rows further, a row of any dtype
begins as far behind a multiple of 16 bytes."""
_LARGE, _DEEP, _BROAD = 2**22, 64, 128
"""The fewest elements of the other factor for each part of K for which that pays, the fewest terms for each row, since
each class has sums of its own, and the fewest columns. In float32 1 x 4096 x 4096 takes 20 us (34 without, cuBLAS 18),
8 x 5003 x 896 13.8 (15.4), and 4 x 3000 x 1001 8.1 (6.7)."""
_LONG = 8
"""The tiles of a part for which reading rows in vectors pays, as the first tile is read in elements: of bfloat16 1 x
500 x 5003 in parts of 5 tiles takes 5.8 us in elements, and 6.5 in vectors."""
_KNOWN = 16
"""The divisor of numbers of which Triton tells the compiler."""
_TOGETHER = 8
"""The most rows whose sums the registers hold."""
_FEW = 4
"""The most rows of half types where those of the other factor do not begin at multiples of 16 bytes. In bfloat16 4 x
5003 x 4096 takes 26 us with columns innermost and 19 with K (cuBLAS 66 and 31); 1 x 4096 x 5003 takes 18 and 21 us, and
15 and 36 with the factors copied for tensor cores."""
_SMALL, _COPIED = 8, 2**23
"""The most such rows if the other factor has fewer than so many elements: 8 x 5003 x 896 takes 12 us with either dim
innermost (cuBLAS 12); with the factors copied for tensor cores 28 us, and 5 with K innermost. Of 8 x 4096 x 14336 the
sums take longer than the loads: 74 us."""
_PROGRAMS = 2
"""The programs for each multiprocessor that keep enough loads in flight."""
_LEAST, _PAYS = 4, 32
"""The tiles of terms of a part, and the fewest of K that is computed in parts."""


def takes(m, n, k, dtype, ieee):
    """Tell whether the kernel computes products of these sizes: those that tensor cores do not compute, or where rows
    of the larger factor do not begin at multiples of 16 bytes, with K or the other dim innermost.

    Of half types, those of very few rows: 16 x 51866 x 1280 takes 338 us in this kernel, 75 us in cuBLAS, and 78 to 110
    us in tiles of tensor cores.
    """
    few, many = min(m, n), max(m, n)
    unit = 16 // dtype.itemsize

    if dtype is torch.float64 or (dtype is torch.float32 and ieee):
        return few <= MOST

    if dtype.itemsize > 2:
        return few <= MOST and (k % unit > 0 or n % unit > 0)

    # Tensor cores would compute 16 columns of a single one.
    fits = k % unit == 0 and (n if few == 1 else many) % unit == 0
    return not fits and (few <= _FEW or (few <= _SMALL and many * k < _COPIED))


def tile(m, n, dtype):
    """Return how many rows, columns and terms a program computes at a time, and its warps, where K is innermost."""
    most = _TOGETHER if dtype.itemsize <= 4 else _TOGETHER // 2
    rows = min(max(1 << (min(m, n) - 1).bit_length(), 2), most)

    if max(m, n) < _MANY or rows > 4:
        return rows, *_TILE

    return rows, *(_WIDE_HALF if dtype.itemsize == 2 else _WIDE)


def splits(m, n, k, dtype, tile, multiprocessors):
    """Return the number of parts of K: enough for programs on all multiprocessors, each of at least ``_LEAST`` tiles of
    terms, none of them empty; one below ``_PAYS`` tiles in all. Where programs are few, each tile takes a load's
    latency.

    Of half types whose K does not fit there may be twice as many, if they are long: with K innermost 1 x 4096 x 5003
    takes 21 us on an H200 in two parts, and 28 in one; 8 x 896 x 5003 takes 9.3 us in four, and 11.3 in eight.
    """
    rows, columns, terms, _ = tile

    if k < _PAYS * terms:
        return 1

    programs = -(-max(m, n) // columns) * -(-min(m, n) // rows)
    found = min(_PROGRAMS * multiprocessors // programs, k // (_LEAST * terms), 8)

    if dtype.itemsize == 2 and k % 8:
        found = max(found, min(2 * _PROGRAMS * multiprocessors // programs, k // (_LONG * terms), 8))

    steps = -(-k // terms)
    return -(-steps // -(-steps // max(found, 1)))


def classes_of_terms(chosen, output, input, mat2):
    """Return the classes of terms whose sums programs leave apart: ``CLASSES`` of a large product where the factor that
    is read once has columns innermost, else one. They change no bit of a result."""
    output, _, factor = _turned(output, input, mat2)
    k, n = factor.shape[-2:]
    is_turned = factor.stride(-1) == 1 and factor.stride(-2) > 1
    pays = factor.numel() >= _LARGE * chosen.splits and k >= _DEEP * output.shape[-2] and n >= _BROAD

    return CLASSES if output.ndim == 2 and is_turned and pays else 1


def launch(chosen, output, input, mat2, classes=1):
    """Launch ``kernels.multiply`` for matrices or a batch of any dims.

    :param output: The result; with splits, or several classes of terms, (splits * classes, M, N).
    :param classes: The number that ``classes_of_terms`` returns.
    """
    is_in_parts = chosen.splits * classes > 1

    if not is_in_parts and output.ndim > 3:
        for place in itertools.product(*map(range, output.shape[:-3])):
            launch(chosen, output[place], input[place], mat2[place])

        return

    output, input, mat2 = _turned(output, input, mat2)
    m, n, k = *output.shape[-2:], input.shape[-1]
    products = output.shape[0] // classes if output.ndim == 3 else 1
    strides = [(*(one.stride()[:-2] if one.ndim == 3 else (0,)), *one.stride()[-2:]) for one in (output, input, mat2)]
    steps = -(-k // chosen.block_k)
    of_terms = classes > 1

    if of_terms:
        # A row begins up to so many elements behind where it is read from.
        unit = 16 // mat2.element_size()
        all_classes, columns = classes, n + (unit - 1 if mat2.stride(-2) % unit else 0)
        block_n, num_warps, stages = _options_of_terms(chosen, mat2.element_size())
    else:
        all_classes, stages = _classes_of_columns(chosen, mat2, steps)
        block_n, num_warps, columns = chosen.block_n, chosen.num_warps, -(-n // all_classes)

    tiles_m = -(-m // chosen.block_m)
    tiles = tiles_m * -(-columns // block_n) * all_classes

    recorder.launch(
        kernels.multiply,
        (tiles * products,),
        {"num_warps": get_default_num_warps() or num_warps},
        output,
        input,
        mat2,
        *(m, n, k),
        *(tiles, tiles_m),
        -(-steps // chosen.splits),
        *itertools.chain(*strides),
        is_in_parts,
        *(chosen.block_m, block_n, chosen.block_k),
        *(all_classes, of_terms),
        get_default_num_stages() or stages,
    )


def _options_of_terms(chosen, itemsize):
    """Return the columns, warps and stages of a program that takes one of ``CLASSES`` classes of terms."""
    if itemsize == 2:
        # 4 x 4096 x 5003 takes 19.5 us, with four stages 20.1; 3 x 51866 x 384 25.6 us, in half as many columns 27.
        return 128 if chosen.block_k == 128 else max(1024 // chosen.block_m, 128), 8, 1

    # 1 x 4096 x 5003 in float32 takes 24.5 us, with one stage 29.
    return max(4096 * CLASSES // (itemsize * chosen.block_k), 16), 4, STAGES


def _classes_of_columns(chosen, mat2, steps):
    """Return the classes of columns and the stages of programs that take all terms: several classes where K is
    innermost and columns do not begin where the compiler knows of vectors, at multiples of ``_KNOWN`` elements."""
    if mat2.stride(-2) != 1 or (mat2.ndim == 3 and mat2.stride(0) % _KNOWN):
        return 1, 1

    if mat2.stride(-1) % _KNOWN == 0:
        return 1, chosen.num_stages

    unit = 16 // mat2.element_size()
    pays = (chosen.splits == 1 or steps >= _LONG * chosen.splits) and mat2.shape[-1] >= chosen.block_n * unit

    return (unit, chosen.num_stages) if pays else (1, 1)


def _turned(output, input, mat2):
    """Return the product, or its transpose, that has few rows."""
    if output.shape[-1] < output.shape[-2]:
        return output.mT, mat2.mT, input.mT

    return output, input, mat2
