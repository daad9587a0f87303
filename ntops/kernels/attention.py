"""Attention over keys in any number, without the matrix of scores in memory (Dao, arXiv:2307.08691), in Triton.

``scaled_dot_product_attention.premake`` is the NineToothed version. These kernels are in Triton because NineToothed
bounds loads by the sizes of tensors, not by the length of each sequence of a KV cache. They also split keys over
programs, end at the diagonal and mask no block that needs no mask. On an H200 (Triton 3.6, 4 x 32 x 4096 x 128 bf16)
they reach 420 TFLOP/s, and 409 causal; the NineToothed version reaches 354 and 159. Large calls go to
``attention_hopper`` there (688, 651).

A program takes ``BLOCK_M`` rows. The rows of a key/value head are the queries of all the heads that read it, one head
after the other, so that the few queries of a decoding step share loads.

One file: ``combine`` reads what ``attend`` has written for each part of the keys.
"""

import triton
import triton.language as tl

# Kinds of masks.
NO_MASK = tl.constexpr(0)
BOOL_MASK = tl.constexpr(1)
FLOAT_MASK = tl.constexpr(2)


@triton.jit
def _load(pointers, rows, columns, CHECK_ROWS: tl.constexpr, CHECK_COLUMNS: tl.constexpr):
    """Load a tile, with zeros where ``rows`` or ``columns`` are false; checks that are not needed are left out."""
    if CHECK_ROWS and CHECK_COLUMNS:
        tile = tl.load(pointers, mask=rows[:, None] & columns[None, :], other=0)
    elif CHECK_ROWS:
        tile = tl.load(pointers, mask=rows[:, None], other=0)
    elif CHECK_COLUMNS:
        tile = tl.load(pointers, mask=columns[None, :], other=0)
    else:
        tile = tl.load(pointers)

    return tile


@triton.jit
def _cut(bits):
    """Return the number of TF32 that the upper 19 of 32 bits make."""
    return (bits & -0x2000).to(tl.float32, bitcast=True)


@triton.jit
def _split_tf32(x, ANY: tl.constexpr):
    """Split float32 into two numbers of TF32, ``high + low / 512``.

    Scaled, the lower part of a small number has all its bits, and products of lower parts overflow no earlier than
    those of ``x``. The second part is infinite or NaN where ``x`` is infinite, NaN or so large that its first part is.
    With ANY it is 0 there, and the first part is infinite or NaN where ``x`` is, and 0 only where ``x`` is.
    """
    bits = x.to(tl.int32, bitcast=True)
    high = _cut(bits + 0x1000)

    if ANY:
        high = tl.where(tl.abs(x) < 3.4e38, high, _cut(bits))
        # Of a 0, infinity makes NaN.
        high = tl.where((tl.abs(x) < 1.1754943508222875e-38) & (x != 0), _cut(bits | 0x2000), high)
        # A NaN of lower bits alone is infinite without them.
        high = tl.where(x == x, high, float("nan"))

        return high, tl.where(tl.abs(high) < float("inf"), (x - high) * 512, 0.0)

    return high, (x - high) * 512


@triton.jit
def _dot(left, right, accumulator, PRECISION: tl.constexpr, TF32X3: tl.constexpr, ANY: tl.constexpr):
    """Add a product to ``accumulator``. With TF32X3, a float32 product is the sum of three in TF32: what is left out of
    a term is less than 2^-20 of it. Triton's own "tf32x3" makes infinities of the largest numbers and of some NaN.

    :param ANY: Whether numbers may be infinite, NaN, of more than 3.4e38, or tiny beside infinite ones. Otherwise such
        a number makes every result of three products that it takes part in infinite or NaN.
    """
    if TF32X3:
        high, low = _split_tf32(left, ANY)
        other_high, other_low = _split_tf32(right, ANY)
        small = tl.dot(low, other_high, input_precision="tf32")
        small = tl.dot(high, other_low, acc=small, input_precision="tf32")

        if ANY:
            # Infinity times a lower part of 0 or of another sign is no part of the product.
            small = tl.where(tl.abs(small) < float("inf"), small, 0.0)

        accumulator += small * 0.001953125
        accumulator = tl.dot(high, other_high, acc=accumulator, input_precision="tf32")
    else:
        accumulator = tl.dot(left, right, acc=accumulator, input_precision=PRECISION, out_dtype=accumulator.dtype)

    return accumulator


@triton.jit
def _walk(
    accumulator,
    normalizer,
    maximum,
    query,
    key,
    value,
    mask,
    start,
    stop,
    length,
    last_key,
    rows,
    stride_qe,
    stride_ks,
    stride_ke,
    stride_vs,
    stride_ve,
    stride_ms,
    scale,
    sign,
    E,
    EV,
    EDGE: tl.constexpr,
    MASK: tl.constexpr,
    CAUSAL: tl.constexpr,
    PRECISION: tl.constexpr,
    TF32X3: tl.constexpr,
    ANY: tl.constexpr,
    POSITIVE: tl.constexpr,
    PIECES: tl.constexpr,
    WIDE: tl.constexpr,
    FULL_E: tl.constexpr,
    FULL_EV: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_E: tl.constexpr,
    BLOCK_EV: tl.constexpr,
):
    """Process the keys [start, stop); in the blocks of an ``EDGE``, only those up to ``length`` and ``last_key``.

    Scores and their maximum are those before ``scale``, or with a float mask in natural units. The maximum is
    subtracted before they are brought to units of log2, so that the largest weight is 1 however large the scores are,
    and the least finite number, of which many masks consist, does not overflow.

    :param WIDE: Whether offsets within a block of keys, values or mask need 64 bits.
    :param query: The queries, (BLOCK_M, BLOCK_E), or where PIECES, pointers to the first ones of the head dim.
    :param mask: Pointers to the mask of the first key, one for each row, (BLOCK_M, 1).
    """
    dtype = accumulator.dtype

    if MASK == FLOAT_MASK:
        # A Python number would be rounded to float32.
        unit = tl.full((), 1.4426950408889634, dtype)
    else:
        unit = scale

    index = tl.int64 if WIDE else tl.int32
    columns = tl.arange(0, BLOCK_N)
    offset = columns.to(index)
    dims = tl.arange(0, BLOCK_E)
    value_dims = tl.arange(0, BLOCK_EV)
    key_offsets = offset[:, None] * stride_ks + dims.to(index)[None, :] * stride_ke
    value_offsets = offset[:, None] * stride_vs + value_dims.to(index)[None, :] * stride_ve

    for first in range(start, stop, BLOCK_N):
        first_key = tl.multiple_of(first.to(tl.int64), BLOCK_N)
        taken = first + columns < length
        block = key + first_key * stride_ks

        scores = tl.zeros((rows.shape[0], BLOCK_N), dtype)

        if PIECES:
            for dim in range(0, E, BLOCK_E):
                inside = dim + dims < E
                piece = dim.to(tl.int64)
                queries = _load(query + piece * stride_qe, rows, inside, True, not FULL_E)
                keys = _load(block + piece * stride_ke + key_offsets, taken, inside, EDGE, not FULL_E)
                scores = _dot(queries, tl.trans(keys), scores, PRECISION, TF32X3, ANY)
        else:
            keys = _load(block + key_offsets, taken, dims < E, EDGE, not FULL_E)
            scores = _dot(query, tl.trans(keys), scores, PRECISION, TF32X3, ANY)

        if not POSITIVE:
            scores = scores * sign

        if MASK == NO_MASK:
            if EDGE:
                kept = taken[None, :]

                if CAUSAL:
                    kept = kept & ((first + columns)[None, :] <= last_key[:, None])

                scores = tl.where(kept, scores, float("-inf"))
        else:
            bias = _load(mask + (first_key * stride_ms + (offset * stride_ms)[None, :]), rows, taken, True, EDGE)

            if MASK == FLOAT_MASK:
                scores = scores * scale + bias.to(dtype)
                kept = taken[None, :]
            else:
                # Outside of the tile the mask is 0.
                kept = bias != 0

            if EDGE or MASK == BOOL_MASK:
                scores = tl.where(kept, scores, float("-inf"))

        largest = tl.maximum(maximum, tl.max(scores, 1))
        # Before any key took part, the difference of two infinities must be avoided.
        safe = tl.where(largest == float("-inf"), 0.0, largest)
        weights = tl.exp2((scores - safe[:, None]) * unit)
        shrunk = tl.exp2((maximum - safe) * unit)
        normalizer = normalizer * shrunk + tl.sum(weights, 1)
        values = _load(value + first_key * stride_vs + value_offsets, taken, value_dims < EV, EDGE, not FULL_EV)
        accumulator = accumulator * shrunk[:, None]
        accumulator = _dot(weights.to(values.dtype), values, accumulator, PRECISION, TF32X3, ANY)
        maximum = largest

    return accumulator, normalizer, maximum


def _attend(
    output,
    partial,
    maxima,
    normalizers,
    query,
    key,
    value,
    mask,
    slots,
    stride_qb,
    stride_qh,
    stride_ql,
    stride_qe,
    stride_kb,
    stride_kh,
    stride_ks,
    stride_ke,
    stride_vb,
    stride_vh,
    stride_vs,
    stride_ve,
    stride_ob,
    stride_oh,
    stride_ol,
    stride_oe,
    stride_mb,
    stride_mh,
    stride_ml,
    stride_ms,
    heads,
    group,
    L,
    S,
    E,
    EV,
    new_rows,
    row_tiles,
    scale: tl.float64,
    sign: tl.float64,
    DTYPE: tl.constexpr,
    PRECISION: tl.constexpr,
    TF32X3: tl.constexpr,
    MASK: tl.constexpr,
    CAUSAL: tl.constexpr,
    LOWER_RIGHT: tl.constexpr,
    SLOTS: tl.constexpr,
    SPLIT: tl.constexpr,
    SAVE: tl.constexpr,
    POSITIVE: tl.constexpr,
    PIECES: tl.constexpr,
    WIDE: tl.constexpr,
    UNIT_STRIDES: tl.constexpr,
    UNIT_MASK: tl.constexpr,
    UNIT: tl.constexpr,
    MASK_UNIT: tl.constexpr,
    DIM_UNIT: tl.constexpr,
    FULL_E: tl.constexpr,
    FULL_EV: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_E: tl.constexpr,
    BLOCK_EV: tl.constexpr,
):
    """Compute attention of ``BLOCK_M`` rows of a key/value head over the keys, or over one part of them.

    :param output: (batch, heads * group, L, EV); not written where keys are split.
    :param partial: (splits, rows, EV) in the compute dtype: the weighted sums of values, not divided.
    :param maxima: (splits, rows): the largest scores; ``normalizers`` are the sums of weights, likewise. Where keys are
        not split, they are written with SAVE.
    :param slots: With SLOTS, the first position of the new rows of each sequence, contiguous.
    :param heads: The number of key/value heads; ``group`` query heads read each.
    :param S: The number of keys; with SLOTS, the capacity of the cache.
    :param new_rows: With SLOTS, the number of rows written to the cache.
    :param scale: The positive factor that brings scores to units of log2, or with a float mask to natural units.
    :param sign: A further factor of scores, -1 or 0, unless POSITIVE.
    :param PIECES: Whether the head dim is walked in pieces of ``BLOCK_E``, because registers hold no more. This is for
        products out of registers, and for loads of single elements.
    :param UNIT: A divisor of all strides except those of the head dim; strides are passed divided by it. MASK_UNIT is
        the same for the mask's strides, and DIM_UNIT for ``E`` and ``EV``, beyond which whole vectors are masked.
    """
    stride_qb *= UNIT
    stride_qh *= UNIT
    stride_ql *= UNIT
    stride_kb *= UNIT
    stride_kh *= UNIT
    stride_ks *= UNIT
    stride_vb *= UNIT
    stride_vh *= UNIT
    stride_vs *= UNIT
    stride_ob *= UNIT
    stride_oh *= UNIT
    stride_ol *= UNIT
    E *= DIM_UNIT
    EV *= DIM_UNIT
    stride_mb *= MASK_UNIT
    stride_mh *= MASK_UNIT
    stride_ml *= MASK_UNIT

    if UNIT_MASK:
        stride_ms = 1

    if UNIT_STRIDES:
        stride_qe = 1
        stride_ke = 1
        stride_ve = 1
        stride_oe = 1

    tile = tl.program_id(0)
    head_of_all = tile // row_tiles
    tile = tile % row_tiles
    batch = (head_of_all // heads).to(tl.int64)
    head = (head_of_all % heads).to(tl.int64)

    if CAUSAL:
        # The rows with the most keys come first, so that no long program is left alone at the end.
        tile = row_tiles - 1 - tile

    row_count = group * L
    first_row = tile * BLOCK_M
    numbers = first_row + tl.arange(0, BLOCK_M)
    rows = numbers < row_count
    query_head = (head * group + numbers // L).to(tl.int64)
    position = (numbers % L).to(tl.int64)

    length = S

    if SLOTS:
        length = tl.load(slots + batch).to(tl.int64) + new_rows
        length = tl.minimum(tl.maximum(length, 0), S).to(tl.int32)

    # Row l sees the keys up to l + shift; there is no empty tile of rows.
    stop = length
    inner = length
    shift = 0

    if CAUSAL:
        if LOWER_RIGHT:
            shift = length - L

        last_row = tl.minimum(first_row + BLOCK_M, row_count) - 1
        is_one_head = first_row // L == last_row // L
        lowest = tl.where(is_one_head, first_row % L, 0)
        highest = tl.where(is_one_head, last_row % L, L - 1)
        stop = tl.maximum(tl.minimum(length, highest + shift + 1), 0)
        inner = tl.maximum(tl.minimum(length, lowest + shift + 1), 0)

    last_key = position.to(tl.int32) + shift
    start = 0

    if SPLIT:
        blocks = tl.cdiv(tl.cdiv(length, BLOCK_N), tl.num_programs(1))
        start = tl.program_id(1) * blocks * BLOCK_N
        stop = tl.minimum(stop, start + blocks * BLOCK_N)
        inner = tl.minimum(inner, stop)

    start = tl.minimum(start, stop)
    inner = tl.maximum(inner // BLOCK_N * BLOCK_N, start)
    dims = tl.arange(0, BLOCK_E)
    query += batch * stride_qb
    places = (query_head * stride_qh + position * stride_ql)[:, None] + dims.to(tl.int64)[None, :] * stride_qe
    queries = query + places

    if not PIECES:
        queries = _load(queries, rows, dims < E, True, not FULL_E)

    key += batch * stride_kb + head * stride_kh
    value += batch * stride_vb + head * stride_vh

    if MASK != NO_MASK:
        mask += batch * stride_mb + (query_head * stride_mh + position * stride_ml)[:, None]

    factor = scale.to(DTYPE)
    accumulator = tl.zeros((BLOCK_M, BLOCK_EV), DTYPE)
    normalizer = tl.zeros((BLOCK_M,), DTYPE)
    maximum = tl.full((BLOCK_M,), float("-inf"), DTYPE)

    # Only the code for edges is used if compilation is slow and the code without masks is no faster.
    for EDGE in tl.static_range(1 if PIECES else 0, 2):
        accumulator, normalizer, maximum = _walk(
            accumulator,
            normalizer,
            maximum,
            queries,
            key,
            value,
            mask,
            inner if EDGE and not PIECES else start,
            stop if EDGE else inner,
            length,
            last_key,
            rows,
            stride_qe,
            stride_ks,
            stride_ke,
            stride_vs,
            stride_ve,
            stride_ms,
            factor,
            sign.to(DTYPE),
            E,
            EV,
            EDGE,
            MASK,
            CAUSAL,
            PRECISION,
            TF32X3,
            False,
            POSITIVE,
            PIECES,
            WIDE,
            FULL_E,
            FULL_EV,
            BLOCK_N,
            BLOCK_E,
            BLOCK_EV,
        )

    if TF32X3:
        finite = tl.abs(accumulator) < float("inf")

        # Of numbers that need more care than most, as infinite ones, nothing finite was made.
        if tl.min(tl.min(finite.to(tl.int32), 1), 0) == 0:
            if not PIECES:
                # Kept until here, they would take registers of the loops.
                queries = _load(query + places, rows, dims < E, True, not FULL_E)

            accumulator, normalizer, maximum = _walk(
                tl.zeros((BLOCK_M, BLOCK_EV), DTYPE),
                tl.zeros((BLOCK_M,), DTYPE),
                tl.full((BLOCK_M,), float("-inf"), DTYPE),
                queries,
                key,
                value,
                mask,
                start,
                stop,
                length,
                last_key,
                rows,
                stride_qe,
                stride_ks,
                stride_ke,
                stride_vs,
                stride_ve,
                stride_ms,
                factor,
                sign.to(DTYPE),
                E,
                EV,
                True,
                MASK,
                CAUSAL,
                PRECISION,
                TF32X3,
                True,
                POSITIVE,
                PIECES,
                WIDE,
                FULL_E,
                FULL_EV,
                BLOCK_N,
                BLOCK_E,
                BLOCK_EV,
            )

    if MASK != FLOAT_MASK:
        maximum *= factor

    value_dims = tl.arange(0, BLOCK_EV)
    stored = rows[:, None] & (value_dims < EV)[None, :]

    if SPLIT:
        every_row = head_of_all.to(tl.int64) * row_count + numbers
        every_row += tl.program_id(1) * (tl.num_programs(0) // row_tiles).to(tl.int64) * row_count
        tl.store(partial + every_row[:, None] * EV + value_dims[None, :], accumulator, mask=stored)
        tl.store(maxima + every_row, maximum, mask=rows)
        tl.store(normalizers + every_row, normalizer, mask=rows)
    else:
        # A row to which no key took part is 0.
        accumulator = accumulator / tl.where(normalizer == 0, 1.0, normalizer)[:, None]
        output += batch * stride_ob
        pointers = (query_head * stride_oh + position * stride_ol)[:, None] + value_dims[None, :] * stride_oe
        tl.store(output + pointers, accumulator.to(output.dtype.element_ty), mask=stored)

        if SAVE:
            every_row = head_of_all.to(tl.int64) * row_count + numbers
            tl.store(maxima + every_row, maximum, mask=rows)
            tl.store(normalizers + every_row, normalizer, mask=rows)


_SIZES = ("heads", "group", "L", "S", "E", "EV", "new_rows", "row_tiles")
_MASK_STRIDES = ("stride_mb", "stride_mh", "stride_ml", "stride_ms")
_STRIDES = tuple(
    f"stride_{tensor}{dim}"
    for tensor, dims in {"q": "bhle", "k": "bhse", "v": "bhse", "o": "bhle"}.items()
    for dim in dims
)
# Only the constants compile geometry into the kernel.
attend = triton.jit(do_not_specialize=[*_SIZES, *_MASK_STRIDES, *_STRIDES])(_attend)


@triton.jit(do_not_specialize=["row_count", "heads", "L", "EV", "splits"])
def combine(
    output,
    partial,
    maxima,
    normalizers,
    statistics,
    stride_ob,
    stride_oh,
    stride_ol,
    stride_oe,
    row_count,
    heads,
    L,
    EV,
    splits,
    unit: tl.float64,
    DTYPE: tl.constexpr,
    SAVE: tl.constexpr,
    BLOCK_S: tl.constexpr,
    BLOCK_EV: tl.constexpr,
):
    """Combine the results of ``attend`` for the parts of the keys; a program takes a row.

    :param output: (batch, heads, L, EV); ``row_count`` is the product of all but the last.
    :param partial: (splits, row_count, EV); ``maxima`` and ``normalizers`` lack the last dim.
    :param statistics: With SAVE, (2, row_count): the largest score of a row, and its sum of weights.
    :param unit: The factor from the scores' units to units of log2.
    """
    row = tl.program_id(0).to(tl.int64)
    dims = tl.arange(0, BLOCK_EV)
    factor = unit.to(DTYPE)
    accumulator = tl.zeros((BLOCK_EV,), DTYPE)
    normalizer = tl.full((), 0, DTYPE)
    maximum = tl.full((), float("-inf"), DTYPE)

    for first in range(0, splits, BLOCK_S):
        split = first + tl.arange(0, BLOCK_S)
        taken = split < splits
        part = split.to(tl.int64) * row_count + row
        own = tl.load(maxima + part, mask=taken, other=float("-inf"))
        largest = tl.maximum(maximum, tl.max(own, 0))
        safe = tl.where(largest == float("-inf"), 0.0, largest)
        shrunk = tl.exp2((maximum - safe) * factor)
        weights = tl.exp2((own - safe) * factor)
        sums = tl.load(normalizers + part, mask=taken, other=0)
        normalizer = normalizer * shrunk + tl.sum(sums * weights, 0)
        stored = taken[:, None] & (dims < EV)[None, :]
        values = tl.load(partial + part[:, None] * EV + dims[None, :], mask=stored, other=0)
        accumulator = accumulator * shrunk + tl.sum(values * weights[:, None], 0)
        maximum = largest

    accumulator = accumulator / tl.where(normalizer == 0, 1.0, normalizer)
    batch = row // (heads * L)
    place = batch * stride_ob + row // L % heads * stride_oh + row % L * stride_ol
    tl.store(output + place + dims * stride_oe, accumulator.to(output.dtype.element_ty), mask=dims < EV)

    if SAVE:
        tl.store(statistics + row, maximum)
        tl.store(statistics + row_count + row, normalizer)
