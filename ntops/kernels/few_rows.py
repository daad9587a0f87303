"""``a @ b`` of a few rows: read ``b`` once, and multiply each element by those of all rows, without tensor cores.

``mm.premake``, the NineToothed version, computes tiles of 16 rows or more by way of shared memory. Reading ``b`` bounds
few rows: 8 x 4096 x 14336 in float32 takes 69 us on an H200 with K innermost, and took 525 us.

A term k is added to the sum of lane k % BLOCK_K, and ``pairwise_sum`` adds up the lanes: l and l + BLOCK_K / 2 first, 0
and 1 last. So the bits depend on BLOCK_K alone. Lanes that are turned by any number are paired alike, and where each
program takes every CLASSES-th lane, the sums of the programs are what is paired last.
"""

import triton
import triton.language as tl

from ntops.kernels.pairwise_sum import pairwise_sum


@triton.jit
def _multiplied(sums, left, right, is_row, is_column):
    """Add products of terms to the sums of their lanes."""
    values = tl.load(right, mask=is_column, other=0)
    factors = tl.load(left, mask=is_row, other=0)
    return tl.fma(factors.to(sums.dtype), values.to(sums.dtype), sums)


@triton.jit
def _multiplied_in_part(sums, left, right, is_row, is_column, is_term):
    """Add products of some terms. The other sums keep their bits, as -0.0 would not if 0 were added to it."""
    found = _multiplied(sums, left, right, is_row & is_term, is_column & is_term)
    return tl.where(is_term, found, sums)


@triton.jit
def _tiles(
    sums,
    left,
    right,
    is_row,
    is_column,
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
        sums = _multiplied(sums, left + term * stride_ak, right + term * stride_bk, is_row, is_column)

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

    The runs of ``b``, its rows with columns innermost and its columns with K innermost, may begin at any address. Run r
    begins ``r * stride % unit`` elements behind a multiple of 16 bytes, and r + CLASSES as many. A program takes the
    runs of one class, and starts to read at that multiple, with the elements in front of a run masked.

    :param output: (batch, M, N) or, with SPLIT, (parts, M, N); with OF_TERMS, (parts, CLASSES, M, N).
    :param a: (batch, M, K).
    :param b: (batch, K, N). With OF_TERMS, columns are innermost; otherwise K is, if there are several classes.
    :param tiles: The programs for each product of the batch or part of K; ``tiles_m`` of them share columns.
    :param steps: The tiles of BLOCK_K terms in a part of K.
    """
    place = (tl.program_id(0) // tiles).to(tl.int64)
    tile = tl.program_id(0) % tiles
    first_m, tile = tile % tiles_m * ROWS, tile // tiles_m
    run, first_n = (tile % CLASSES).to(tl.int64), (tile // CLASSES).to(tl.int64) * BLOCK_N
    unit: tl.constexpr = 16 // (b.dtype.element_ty.primitive_bitwidth // 8)
    lanes: tl.constexpr = BLOCK_K // CLASSES if OF_TERMS else BLOCK_K
    dtype: tl.constexpr = tl.float64 if output.dtype.element_ty == tl.float64 else tl.float32
    begin = tl.cast(0, tl.int64)

    if SPLIT:
        begin = place * steps * BLOCK_K
        output += place * (CLASSES if OF_TERMS else 1) * batch_o
    else:
        a += place * batch_a
        b += place * batch_b
        output += place * batch_o

    # A part that is forced may have no terms.
    terms = tl.maximum(tl.minimum(steps.to(tl.int64) * BLOCK_K, K - begin), 0)
    rows = (first_m + tl.arange(0, ROWS))[:, None, None]
    within = (first_n + tl.arange(0, BLOCK_N))[None, :, None]
    lane = tl.arange(0, lanes)[None, None, :].to(tl.int64)
    sums = tl.zeros((ROWS, BLOCK_N, lanes), dtype)
    start = run * (stride_bk if OF_TERMS else stride_bn)
    aligned = start // unit * unit if CLASSES > 1 else start
    shift = start - aligned
    a += begin * stride_ak + rows.to(tl.int64) * stride_am
    b += begin * stride_bk + aligned
    is_row = rows < M

    # A factor of CLASSES behind the others tells the compiler that vectors fit.
    if OF_TERMS:
        columns = within - shift
        left = a + (run + lane * CLASSES) * stride_ak
        right = b + lane * stride_bk * CLASSES + within * stride_bn
        is_column = (columns >= 0) & (columns < N)
        whole = terms // BLOCK_K

        if (first_n >= shift) & (first_n + BLOCK_N - shift <= N):
            # A mask that does not vary leaves vectors whole.
            every_column = tl.full((1, 1, 1), True, tl.int1)
            sums = _tiles(sums, left, right, is_row, every_column, 0, whole, stride_ak, stride_bk, BLOCK_K, STAGES)
        else:
            sums = _tiles(sums, left, right, is_row, is_column, 0, whole, stride_ak, stride_bk, BLOCK_K, STAGES)

        is_rest = whole * BLOCK_K < terms
        is_term = run + whole * BLOCK_K + lane * CLASSES < terms
        output += run * batch_o
    else:
        columns = run + within * CLASSES
        left = a + (lane - shift) * stride_ak
        right = b + within * stride_bn * CLASSES + lane * stride_bk
        is_column = columns < N
        end = terms + shift
        whole = end // BLOCK_K
        first = 0

        if CLASSES > 1:
            is_term = (lane >= shift) & (lane < end)
            sums = _multiplied_in_part(sums, left, right, is_row, is_column, is_term)
            first = 1

        sums = _tiles(sums, left, right, is_row, is_column, first, whole, stride_ak, stride_bk, BLOCK_K, STAGES)
        is_rest = (whole * BLOCK_K < end) & (whole >= first)
        is_term = whole * BLOCK_K + lane < end

    if is_rest:
        term = whole * BLOCK_K
        left, right = left + term * stride_ak, right + term * stride_bk
        sums = _multiplied_in_part(sums, left, right, is_row, is_column, is_term)

    m = (first_m + tl.arange(0, ROWS))[:, None]
    n = columns.reshape(1, BLOCK_N)
    values = pairwise_sum(sums, ROWS, BLOCK_N, lanes).to(output.dtype.element_ty)
    is_stored = (m < M) & (n >= 0) & (n < N)
    tl.store(output + m.to(tl.int64) * stride_om + n * stride_on, values, mask=is_stored)
