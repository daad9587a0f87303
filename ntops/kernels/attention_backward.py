"""The gradients of attention, without the matrix of scores in memory (Dao, arXiv:2307.08691), in Triton.

With ``P`` the weights, ``P_ij = exp(s_ij - max_i) / sum_i``, and ``O`` the output: ``dV = P' dO``, ``dS = P (dO V' -
rowsum(dO O))``, ``dK = dS' Q scale`` and ``dQ = dS K scale``. The forward pass has saved ``max_i`` and ``sum_i``. One
kernel computes ``rowsum(dO O)``; one takes a block of keys and walks over the queries of all the heads that read them;
one takes a block of queries and walks over keys. Each element is written by one program, which adds up in the same
order each time.

``max_i`` and ``sum_i`` are kept apart, not as one logarithm: if every key that a query may see has the least finite
number for its mask, rounding would lose the sum.

The last dim of all tensors has the stride 1.

One file: three kernels of one pass, which load tiles and compute weights by the same functions.
"""

import triton
import triton.language as tl

from ntops.kernels.attention import BOOL_MASK, FLOAT_MASK, NO_MASK


@triton.jit
def _tile(base, rows, stride, dims, taken, inside, CHECK_ROWS: tl.constexpr, CHECK_DIMS: tl.constexpr):
    """Load rows of a matrix, with zeros for rows that are not ``taken`` and for dims that are not ``inside``."""
    pointers = base + rows.to(tl.int64)[:, None] * stride + dims[None, :]

    if CHECK_ROWS and CHECK_DIMS:
        tile = tl.load(pointers, mask=taken[:, None] & inside[None, :], other=0)
    elif CHECK_ROWS:
        tile = tl.load(pointers, mask=taken[:, None], other=0)
    elif CHECK_DIMS:
        tile = tl.load(pointers, mask=inside[None, :], other=0)
    else:
        tile = tl.load(pointers)

    return tile


@triton.jit
def _in_pieces(
    left,
    left_rows,
    left_stride,
    left_taken,
    right,
    right_rows,
    right_stride,
    right_taken,
    size,
    DTYPE: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Compute the products of rows of two matrices with ``size`` columns, ``BLOCK`` of which registers hold at a
    time."""
    total = tl.zeros((left_rows.shape[0], right_rows.shape[0]), DTYPE)

    for start in range(0, size, BLOCK):
        dims = start + tl.arange(0, BLOCK)
        inside = dims < size
        one = _tile(left, left_rows, left_stride, dims, left_taken, inside, True, True)
        other = _tile(right, right_rows, right_stride, dims, right_taken, inside, True, True)
        total = tl.dot(one, tl.trans(other), acc=total, input_precision=PRECISION, out_dtype=DTYPE)

    return total


@triton.jit
def _bias(mask, query_places, key_places, stride_ml, stride_ms, kept, EDGE: tl.constexpr):
    """Load a tile of the mask, (keys, queries); with EDGE what is ``kept``, of that shape.

    All kernels load it with the keys first: where the queries are, ``to_queries`` takes three times as long (735 us and
    247, 2 x 16 x 2048 x 64 with bools on an H100), since bytes change their places among threads one by one.

    :param query_places: The indices of the queries, int64; ``key_places`` those of the keys.
    """
    pointers = mask + query_places[None, :] * stride_ml + key_places[:, None] * stride_ms

    if EDGE:
        bias = tl.load(pointers, mask=kept, other=0)
    else:
        bias = tl.load(pointers)

    return bias


@triton.jit
def _weights(
    products,
    maximum,
    inverse,
    bias,
    kept,
    factor,
    DTYPE: tl.constexpr,
    MASK: tl.constexpr,
    EDGE: tl.constexpr,
):
    """Compute the weights from products of queries and keys, all of one shape or broadcast to it.

    :param bias: The tile of the mask, if there is one.
    :param kept: With EDGE, whether each key takes part.
    :param factor: The factor from products to units of log2, or with a float mask to natural units.
    """
    scores = products * factor

    if MASK == FLOAT_MASK:
        unit = tl.full((), 1.4426950408889634, DTYPE)
        weights = tl.exp2((scores + bias.to(DTYPE) - maximum) * unit) * inverse
    else:
        weights = tl.exp2(scores - maximum) * inverse

    if MASK == BOOL_MASK:
        weights = tl.where(bias != 0, weights, 0)

    if EDGE:
        weights = tl.where(kept, weights, 0)

    return weights


_SIZES = ["heads", "group", "L", "S", "tiles"]


@triton.jit(do_not_specialize=["row_count", "heads", "L", "EV"])
def prepare(
    maxima,
    inverses,
    deltas,
    gradient,
    output,
    saved_maxima,
    saved_normalizers,
    stride_gb,
    stride_gh,
    stride_gl,
    stride_ob,
    stride_oh,
    stride_ol,
    row_count,
    heads,
    L,
    EV,
    DTYPE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_EV: tl.constexpr,
):
    """Compute what both kernels need of ``BLOCK_M`` queries: the largest score, the inverse of the sum of weights, and
    ``rowsum(dO O)``.

    :param maxima: (batch, query heads, L), contiguous, in the compute dtype, as ``inverses`` and ``deltas`` are. The
        first two are 0 for a query to which no key takes part.
    :param gradient: (batch, query heads, L, EV), that of ``output``; ``row_count`` is the product of all but the last.
    :param saved_maxima: The largest scores as the forward pass has saved them, contiguous; ``saved_normalizers`` are
        the sums of weights.
    """
    numbers = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    taken = numbers < row_count
    batch = numbers // (L.to(tl.int64) * heads)
    head = numbers // L % heads
    rows = numbers % L
    slopes_of = gradient + batch * stride_gb + head * stride_gh + rows * stride_gl
    values_of = output + batch * stride_ob + head * stride_oh + rows * stride_ol
    delta = tl.zeros((BLOCK_M,), DTYPE)

    for start in range(0, EV, BLOCK_EV):
        dims = start + tl.arange(0, BLOCK_EV)
        inside = taken[:, None] & (dims < EV)[None, :]
        slopes = tl.load(slopes_of[:, None] + dims[None, :], mask=inside, other=0).to(DTYPE)
        values = tl.load(values_of[:, None] + dims[None, :], mask=inside, other=0).to(DTYPE)
        delta += tl.sum(slopes * values, 1)

    maximum = tl.load(saved_maxima + numbers, mask=taken, other=0)
    total = tl.load(saved_normalizers + numbers, mask=taken, other=0)
    tl.store(maxima + numbers, tl.where(maximum == float("-inf"), 0.0, maximum), mask=taken)
    tl.store(inverses + numbers, tl.where(total == 0, 0.0, 1 / tl.where(total == 0, 1.0, total)), mask=taken)
    tl.store(deltas + numbers, delta, mask=taken)


@triton.jit(do_not_specialize=_SIZES)
def to_keys(
    key_gradient,
    value_gradient,
    maxima,
    inverses,
    deltas,
    gradient,
    query,
    key,
    value,
    mask,
    stride_gb,
    stride_gh,
    stride_gl,
    stride_qb,
    stride_qh,
    stride_ql,
    stride_kb,
    stride_kh,
    stride_ks,
    stride_vb,
    stride_vh,
    stride_vs,
    stride_mb: tl.int64,
    stride_mh: tl.int64,
    stride_ml: tl.int64,
    stride_ms: tl.int64,
    heads,
    group,
    L,
    S,
    E,
    EV,
    tiles,
    factor: tl.float64,
    scale: tl.float64,
    DTYPE: tl.constexpr,
    PRECISION: tl.constexpr,
    MASK: tl.constexpr,
    CAUSAL: tl.constexpr,
    LOWER_RIGHT: tl.constexpr,
    PIECES: tl.constexpr,
    FULL_E: tl.constexpr,
    FULL_EV: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_E: tl.constexpr,
    BLOCK_EV: tl.constexpr,
):
    """Compute the gradients of ``BLOCK_N`` keys and values of a head; with PIECES, of as many of their dims as a block
    has.

    :param key_gradient: (batch, heads, S, E), contiguous; ``value_gradient`` (batch, heads, S, EV).
    :param scale: The factor of the scores; ``factor`` as for ``_weights``.
    """
    tile = tl.program_id(0) % tiles
    head = (tl.program_id(0) // tiles).to(tl.int64)
    batch = head // heads
    key_head = head % heads
    first_key = tile * BLOCK_N
    places = first_key + tl.arange(0, BLOCK_N)
    there = places < S
    piece = tl.program_id(1)
    dims = piece * BLOCK_E + tl.arange(0, BLOCK_E)
    value_dims = piece * BLOCK_EV + tl.arange(0, BLOCK_EV)
    key += batch * stride_kb + key_head * stride_kh
    value += batch * stride_vb + key_head * stride_vh
    shift = S - L if LOWER_RIGHT else 0
    unit = factor.to(DTYPE)

    if not PIECES:
        keys = _tile(key, places, stride_ks, dims, there, dims < E, True, not FULL_E)
        values = _tile(value, places, stride_vs, value_dims, there, value_dims < EV, True, not FULL_EV)

    # Queries from ``start`` on see some of these keys; those up to ``inner`` do not see all. The last block may not be
    # full.
    start = 0
    inner = 0
    full = L // BLOCK_M * BLOCK_M

    if CAUSAL:
        start = tl.minimum(tl.maximum(first_key - shift, 0), L) // BLOCK_M * BLOCK_M
        inner = tl.maximum(first_key + BLOCK_N - 1 - shift, 0)
        inner = tl.minimum(tl.cdiv(inner, BLOCK_M) * BLOCK_M, full)
        inner = tl.maximum(inner, start)

    if MASK != NO_MASK:
        # The mask has no columns for keys beyond the end.
        inner = tl.where(first_key + BLOCK_N <= S, inner, full)

    key_sums = tl.zeros((BLOCK_N, BLOCK_E), DTYPE)
    value_sums = tl.zeros((BLOCK_N, BLOCK_EV), DTYPE)

    for EDGE in tl.static_range(2):
        # The edges: the blocks up to ``inner``, then the last one if it is not full.
        if EDGE:
            ahead = tl.maximum(inner - start, 0) // BLOCK_M
            blocks = ahead + (L - full + BLOCK_M - 1) // BLOCK_M
        else:
            ahead = 0
            blocks = tl.maximum(full - inner, 0) // BLOCK_M

        for member in range(group):
            query_head = key_head * group + member
            row_base = (batch * (heads * group) + query_head) * L
            queries_of = query + batch * stride_qb + query_head * stride_qh
            slopes_of = gradient + batch * stride_gb + query_head * stride_gh
            mask_of = mask + batch * stride_mb + query_head * stride_mh

            for block in range(blocks):
                if EDGE:
                    first = tl.where(block < ahead, start + block * BLOCK_M, full)
                else:
                    first = inner + block * BLOCK_M

                rows = first + tl.arange(0, BLOCK_M)
                taken = rows < L
                queries = _tile(queries_of, rows, stride_ql, dims, taken, dims < E, EDGE, not FULL_E or PIECES)
                inside = value_dims < EV
                slopes = _tile(slopes_of, rows, stride_gl, value_dims, taken, inside, EDGE, not FULL_EV or PIECES)

                if EDGE:
                    # Queries beyond the end have weights of 0.
                    maximum = tl.load(maxima + row_base + rows, mask=taken, other=0)
                    inverse = tl.load(inverses + row_base + rows, mask=taken, other=0)
                    delta = tl.load(deltas + row_base + rows, mask=taken, other=0)
                else:
                    maximum = tl.load(maxima + row_base + rows)
                    inverse = tl.load(inverses + row_base + rows)
                    delta = tl.load(deltas + row_base + rows)

                if PIECES:
                    products = _in_pieces(
                        key, places, stride_ks, there, queries_of, rows, stride_ql, taken, E, DTYPE, PRECISION, BLOCK_E
                    )
                    along = _in_pieces(
                        value, places, stride_vs, there, slopes_of, rows, stride_gl, taken, EV, DTYPE, PRECISION,
                        BLOCK_EV,
                    )  # fmt: skip
                else:
                    products = tl.dot(keys, tl.trans(queries), input_precision=PRECISION, out_dtype=DTYPE)
                    along = tl.dot(values, tl.trans(slopes), input_precision=PRECISION, out_dtype=DTYPE)

                kept = there[:, None] & taken[None, :]

                if CAUSAL and EDGE:
                    kept = kept & (places[:, None] <= (rows + shift)[None, :])

                bias = kept

                if MASK != NO_MASK:
                    bias = _bias(mask_of, rows.to(tl.int64), places.to(tl.int64), stride_ml, stride_ms, kept, EDGE)

                weights = _weights(products, maximum[None, :], inverse[None, :], bias, kept, unit, DTYPE, MASK, EDGE)
                value_sums = tl.dot(
                    weights.to(slopes.dtype), slopes, acc=value_sums, input_precision=PRECISION, out_dtype=DTYPE
                )
                changes = (weights * (along - delta[None, :])).to(queries.dtype)
                key_sums = tl.dot(changes, queries, acc=key_sums, input_precision=PRECISION, out_dtype=DTYPE)

    keys_of = head * S + places
    stored = there[:, None] & (dims < E)[None, :]
    key_sums = key_sums * scale.to(DTYPE)
    tl.store(key_gradient + keys_of[:, None] * E + dims[None, :], key_sums.to(key.dtype.element_ty), mask=stored)
    stored = there[:, None] & (value_dims < EV)[None, :]
    pointers = value_gradient + keys_of[:, None] * EV + value_dims[None, :]
    tl.store(pointers, value_sums.to(value.dtype.element_ty), mask=stored)


@triton.jit(do_not_specialize=_SIZES)
def to_queries(
    query_gradient,
    score_gradient,
    maxima,
    inverses,
    deltas,
    gradient,
    query,
    key,
    value,
    mask,
    stride_gb,
    stride_gh,
    stride_gl,
    stride_qb,
    stride_qh,
    stride_ql,
    stride_kb,
    stride_kh,
    stride_ks,
    stride_vb,
    stride_vh,
    stride_vs,
    stride_mb: tl.int64,
    stride_mh: tl.int64,
    stride_ml: tl.int64,
    stride_ms: tl.int64,
    heads,
    group,
    L,
    S,
    E,
    EV,
    tiles,
    factor: tl.float64,
    scale: tl.float64,
    DTYPE: tl.constexpr,
    PRECISION: tl.constexpr,
    MASK: tl.constexpr,
    CAUSAL: tl.constexpr,
    LOWER_RIGHT: tl.constexpr,
    PIECES: tl.constexpr,
    FULL_E: tl.constexpr,
    FULL_EV: tl.constexpr,
    TO_SCORES: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_E: tl.constexpr,
    BLOCK_EV: tl.constexpr,
):
    """Compute the gradient of ``BLOCK_M`` queries of a head; with PIECES, of as many of their dims as a block has.

    :param query_gradient: (batch, query heads, L, E), contiguous.
    :param score_gradient: With TO_SCORES, (batch, query heads, L, S), contiguous and zeros, in the compute dtype: the
        gradient of the float mask.
    """
    tile = tl.program_id(0) % tiles
    head = (tl.program_id(0) // tiles).to(tl.int64)
    batch = head // (heads * group)
    query_head = head % (heads * group)
    key_head = query_head // group

    if CAUSAL:
        # The rows with the most keys come first, so that no long program is left alone at the end.
        tile = tiles - 1 - tile

    rows = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    taken = rows < L
    piece = tl.program_id(1)
    dims = piece * BLOCK_E + tl.arange(0, BLOCK_E)
    value_dims = tl.arange(0, BLOCK_EV)
    query += batch * stride_qb + query_head * stride_qh
    gradient += batch * stride_gb + query_head * stride_gh
    key += batch * stride_kb + key_head * stride_kh
    value += batch * stride_vb + key_head * stride_vh
    mask += batch * stride_mb + query_head * stride_mh
    shift = S - L if LOWER_RIGHT else 0
    unit = factor.to(DTYPE)

    if not PIECES:
        queries = _tile(query, rows, stride_ql, dims, taken, dims < E, True, not FULL_E)
        slopes = _tile(gradient, rows, stride_gl, value_dims, taken, value_dims < EV, True, not FULL_EV)

    place = head * L + rows
    maximum = tl.load(maxima + place, mask=taken, other=0)
    inverse = tl.load(inverses + place, mask=taken, other=0)
    delta = tl.load(deltas + place, mask=taken, other=0)
    stop = S
    inner = S // BLOCK_N * BLOCK_N

    if CAUSAL:
        last = tl.minimum(tile * BLOCK_M + BLOCK_M, L) - 1
        stop = tl.maximum(tl.minimum(S, last + shift + 1), 0)
        inner = tl.maximum(tl.minimum(S, tile * BLOCK_M + shift + 1), 0) // BLOCK_N * BLOCK_N

    # Rows beyond the end have the mask of the last one; nothing of them is stored.
    mask_rows = tl.minimum(rows, L - 1).to(tl.int64)
    sums = tl.zeros((BLOCK_M, BLOCK_E), DTYPE)

    for EDGE in tl.static_range(2):
        for first in range(inner if EDGE else 0, stop if EDGE else inner, BLOCK_N):
            places = first + tl.arange(0, BLOCK_N)
            there = places < stop
            keys = _tile(key, places, stride_ks, dims, there, dims < E, EDGE, not FULL_E or PIECES)

            if PIECES:
                products = _in_pieces(
                    query, rows, stride_ql, taken, key, places, stride_ks, there, E, DTYPE, PRECISION, BLOCK_E
                )
                along = _in_pieces(
                    gradient, rows, stride_gl, taken, value, places, stride_vs, there, EV, DTYPE, PRECISION, BLOCK_EV
                )
            else:
                values = _tile(value, places, stride_vs, value_dims, there, value_dims < EV, EDGE, not FULL_EV)
                products = tl.dot(queries, tl.trans(keys), input_precision=PRECISION, out_dtype=DTYPE)
                along = tl.dot(slopes, tl.trans(values), input_precision=PRECISION, out_dtype=DTYPE)

            kept = taken[:, None] & there[None, :]

            if CAUSAL and EDGE:
                kept = kept & (places[None, :] <= (rows + shift)[:, None])

            bias = kept

            if MASK != NO_MASK:
                bias = _bias(mask, mask_rows, places.to(tl.int64), stride_ml, stride_ms, tl.trans(kept), EDGE)
                bias = tl.trans(bias)

            weights = _weights(products, maximum[:, None], inverse[:, None], bias, kept, unit, DTYPE, MASK, EDGE)
            changes = weights * (along - delta[:, None])

            if TO_SCORES:
                pointers = score_gradient + place[:, None] * S + places[None, :]
                tl.store(pointers, changes, mask=kept & (piece == 0))

            sums = tl.dot(changes.to(keys.dtype), keys, acc=sums, input_precision=PRECISION, out_dtype=DTYPE)

    stored = taken[:, None] & (dims < E)[None, :]
    sums = sums * scale.to(DTYPE)
    tl.store(query_gradient + place[:, None] * E + dims[None, :], sums.to(query.dtype.element_ty), mask=stored)
