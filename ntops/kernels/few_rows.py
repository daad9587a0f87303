"""``a @ b`` of a few rows in IEEE arithmetic: read ``b`` once, and multiply each element by those of all rows.

``mm.premake``, the NineToothed version, computes tiles of 16 rows or more by way of shared memory. Reading ``b`` bounds
few rows: 8 x 4096 x 14336 in float32 takes 69 us on an H200 with K innermost, and took 525 us.

A term k is added up in lane k % BLOCK_K, and the lanes are then added up in pairs: l and l + BLOCK_K / 2, down to 0 and
1. The bits depend on BLOCK_K alone: lanes that are turned by any number are paired alike, and where programs take every
CLASSES-th lane, their sums are what is paired last.
"""

import triton
import triton.language as tl


@triton.jit
def added_up(values, ROWS: tl.constexpr, COLUMNS: tl.constexpr, COUNT: tl.constexpr):
    """Add up (ROWS, COLUMNS, COUNT) values along the last dim in pairs, in an order that does not depend on which
    thread has which value."""
    if COUNT == 1:
        return values.reshape(ROWS, COLUMNS)
    else:
        first, second = tl.split(values.reshape(ROWS, COLUMNS, 2, COUNT // 2).permute(0, 1, 3, 2))
        return added_up(first + second, ROWS, COLUMNS, COUNT // 2)


@triton.jit
def _multiplied(sums, left, right, is_read, is_multiplied):
    """Add products of terms to the sums of their lanes."""
    values = tl.load(right, mask=is_multiplied, other=0)
    factors = tl.load(left, mask=is_read, other=0)
    return tl.fma(factors.to(sums.dtype), values.to(sums.dtype), sums)


@triton.jit
def _tiles(
    sums,
    left,
    right,
    is_read,
    is_multiplied,
    first,
    last,
    stride_ak,
    stride_bk,
    BLOCK_K: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Add the products of whole tiles of terms."""
    for tile in tl.range(first, last, num_stages=STAGES):
        term = tile.to(tl.int64) * BLOCK_K
        sums = _multiplied(sums, left + term * stride_ak, right + term * stride_bk, is_read, is_multiplied)

    return sums


@triton.jit(do_not_specialize=["M", "tiles", "tiles_m", "steps"])
def multiply(
    output,
    a,
    b,
    M,
    N,
    K,
    tiles,
    tiles_m,
    steps,
    batch_o,
    stride_om,
    stride_on,
    batch_a,
    stride_am,
    stride_ak,
    batch_b,
    stride_bk,
    stride_bn,
    SPLIT: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    CLASSES: tl.constexpr,
    OF_TERMS: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Compute ROWS rows and BLOCK_N columns of a product, of all terms or of a part of them.

    Rows of ``b`` that begin at any address are read in vectors from multiples of 16 bytes on: every CLASSES-th row
    begins as far behind one. A program takes rows of one such class, and begins so far in front.

    :param output: (batch, M, N) or, with SPLIT, (parts, M, N); with OF_TERMS, (parts, CLASSES, M, N).
    :param a: (batch, M, K).
    :param b: (batch, K, N): with OF_TERMS, columns are innermost, and the classes are of terms, each of which a program
        adds up for itself. Otherwise they are of columns, and K is innermost if there are several.
    :param tiles: The programs for each product of the batch or part of K; ``tiles_m`` of them share columns.
    :param steps: The tiles of BLOCK_K terms in a part of K.
    """
    place = tl.program_id(0) // tiles
    tile = tl.program_id(0) % tiles
    first_m, tile = tile % tiles_m * ROWS, tile // tiles_m
    number, first_n = tile % CLASSES, tile // CLASSES * BLOCK_N
    unit: tl.constexpr = 16 // (b.dtype.element_ty.primitive_bitwidth // 8)
    lanes: tl.constexpr = BLOCK_K // CLASSES if OF_TERMS else BLOCK_K
    dtype: tl.constexpr = tl.float64 if output.dtype.element_ty == tl.float64 else tl.float32
    begin = tl.cast(0, tl.int64)

    if SPLIT:
        begin = place.to(tl.int64) * steps * BLOCK_K
        output += place.to(tl.int64) * (batch_o * CLASSES if OF_TERMS else batch_o)
    else:
        a += place.to(tl.int64) * batch_a
        b += place.to(tl.int64) * batch_b
        output += place.to(tl.int64) * batch_o

    # The last parts may have no terms.
    count = tl.maximum(tl.minimum(steps * BLOCK_K, K - begin), 0).to(tl.int32)
    rows = (first_m + tl.arange(0, ROWS))[:, None, None]
    within = (first_n + tl.arange(0, BLOCK_N))[None, :, None]
    lane = tl.arange(0, lanes)[None, None, :].to(tl.int64)
    sums = tl.zeros((ROWS, BLOCK_N, lanes), dtype)
    # A row of the class, and the elements from a multiple of 16 bytes to it.
    start = number.to(tl.int64) * (stride_bk if OF_TERMS else stride_bn)
    aligned = start // unit * unit if CLASSES > 1 else start
    shift = (start - aligned).to(tl.int32)
    b += begin * stride_bk + aligned
    a += begin * stride_ak + rows.to(tl.int64) * stride_am
    is_read = rows < M

    if OF_TERMS:
        columns = within - shift
        right = b + lane * stride_bk * CLASSES + within.to(tl.int64) * stride_bn
        left = a + (number + lane * CLASSES) * stride_ak
        whole = count // BLOCK_K
        is_column = (columns >= 0) & (columns < N)

        if (first_n >= shift) & (first_n + BLOCK_N - shift <= N):
            # No vector is read in part.
            every = tl.full((1, 1, 1), True, tl.int1)
            sums = _tiles(sums, left, right, is_read, every, 0, whole, stride_ak, stride_bk, BLOCK_K, STAGES)
        else:
            sums = _tiles(sums, left, right, is_read, is_column, 0, whole, stride_ak, stride_bk, BLOCK_K, STAGES)

        if whole * BLOCK_K < count:
            is_term = number + (whole * lanes + lane) * CLASSES < count
            term = whole.to(tl.int64) * BLOCK_K
            left, right = left + term * stride_ak, right + term * stride_bk
            sums = _multiplied(sums, left, right, is_read & is_term, is_column & is_term)

        output += number.to(tl.int64) * batch_o
    else:
        columns = number + within * CLASSES
        right = b + within.to(tl.int64) * stride_bn * CLASSES + lane * stride_bk
        left = a + (lane - shift) * stride_ak
        whole = (count + shift) // BLOCK_K
        is_column = columns < N
        first = 0

        if CLASSES > 1:
            is_term = (lane >= shift) & (lane < count + shift)
            sums = _multiplied(sums, left, right, is_read & is_term, is_column & is_term)
            first = 1

        sums = _tiles(sums, left, right, is_read, is_column, first, whole, stride_ak, stride_bk, BLOCK_K, STAGES)

        if (whole * BLOCK_K < count + shift) & (whole >= first):
            is_term = whole * BLOCK_K + lane < count + shift
            term = whole.to(tl.int64) * BLOCK_K
            left, right = left + term * stride_ak, right + term * stride_bk
            sums = _multiplied(sums, left, right, is_read & is_term, is_column & is_term)

    m = (first_m + tl.arange(0, ROWS))[:, None]
    n = columns.reshape(1, BLOCK_N)
    values = added_up(sums, ROWS, BLOCK_N, lanes).to(output.dtype.element_ty)
    stored = (m < M) & (n >= 0) & (n < N)
    tl.store(output + m.to(tl.int64) * stride_om + n.to(tl.int64) * stride_on, values, mask=stored)
