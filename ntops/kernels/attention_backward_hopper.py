"""The gradients of attention on Hopper, in Gluon: the functions of ``ntops.kernels.attention_backward``, with explicit
work for every warp.

``to_queries`` walks over keys; it also stores ``rowsum(dO O)`` and the logarithm of each query's sum, which ``to_keys``
reads, as it walks over queries. A program has two groups of four warps, which take 64 rows of its tile each, and
one warp that loads. A group computes the operands of its next products while the last ones run. Each element is written
by one program, which adds up in the same order each time.

Both compute the scores and the gradient of the weights, so that seven products are computed where five would do if
programs added to the gradient of the queries in turn. On an H200 the power limit holds this back for large calls.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from ntops.kernels.attention_hopper import ROWS, _exp2
from ntops.kernels.hopper import make_barriers

GROUPS = gl.constexpr(2)
"""The number of groups of warps."""
TILE = gl.constexpr(128)
"""The rows of a program's tile: ``ROWS`` for each group."""
STATISTICS_LAYOUT = gl.NVMMASharedLayout(0, 32, rank=2)
"""The layout of a block of statistics in shared memory."""


@gluon.jit
def _transposed(memory):
    """Return a block in shared memory as a matrix with its rows along dim 1."""
    return memory.reshape([memory.shape[2], memory.shape[3]]).permute((1, 0))


@gluon.jit
def _matrix(memory):
    """Return a block in shared memory as a matrix."""
    return memory.reshape([memory.shape[2], memory.shape[3]])


@gluon.jit
def _held(matrix, layout: gl.constexpr, HELD: gl.constexpr):
    """Return the first operand of products whose result has this layout: in registers if HELD, so that it is read from
    shared memory once."""
    if HELD:
        return matrix.load(gl.DotOperandLayout(0, layout, 2))
    else:
        return matrix


# --- the gradient of queries -----------------------------------------------------------------------------------------


@gluon.jit
def _key_blocks(first_row, L, S, shift, CAUSAL: gl.constexpr):
    """Return how many blocks of keys a tile of queries walks, at least one, and how many of these it sees whole."""
    stop = S
    seen = S

    if CAUSAL:
        stop = gl.minimum(S, gl.minimum(first_row + TILE, L) + shift)
        seen = gl.minimum(S, first_row + shift + 1)

    return gl.maximum(gl.cdiv(stop, ROWS), 1), gl.maximum(seen, 0) // ROWS


@gluon.jit
def _place(heads, tiles, together, LAST_FIRST: gl.constexpr):
    """Return the head and the tile of this program. Of every ``together`` heads, the first tiles come first, or the
    last: those with the most work, so that none of them is left for the end."""
    number = gl.program_id(0)
    first = number // (together * tiles) * together
    rest = number % (together * tiles)
    count = gl.minimum(together, heads - first)
    tile = rest // count

    if LAST_FIRST:
        tile = tiles - 1 - tile

    return first + rest % count, tile


@gluon.jit
def _load_for_queries(given, CAUSAL: gl.constexpr, STAGES: gl.constexpr):
    """Run the loading warp of ``to_queries``: of each tile the queries and gradients, the outputs in the place of a
    block of keys and values, then the keys and values, the last block first."""
    tensors, memory, barriers, sizes, place = given
    head_of_all, tile = place
    gradient, output, query, key, value, _query_gradient = tensors
    queries, slopes, keys, values = memory
    own_full, full, empty = barriers
    heads, group, L, S, shift = sizes
    taken = 0
    batch = head_of_all // (heads * group)
    query_head = head_of_all % (heads * group)
    head = query_head // group
    first_row = tile * TILE
    count, _ = _key_blocks(first_row, L, S, shift, CAUSAL)

    for i in gl.static_range(GROUPS):
        place = [batch, query_head, first_row + i * ROWS, 0]
        mbarrier.expect(own_full.index(i), query.block_type.nbytes + gradient.block_type.nbytes)
        tma.async_copy_global_to_shared(gradient, place, own_full.index(i), slopes.index(i))
        tma.async_copy_global_to_shared(query, place, own_full.index(i), queries.index(i))

    stage = taken % STAGES
    mbarrier.wait(empty.index(stage), (taken // STAGES + 1) % 2)
    mbarrier.expect(full.index(stage), output.block_type.nbytes * GROUPS)
    place = [batch, query_head, first_row, 0]
    tma.async_copy_global_to_shared(output, place, full.index(stage), keys.index(stage))
    place = [batch, query_head, first_row + ROWS, 0]
    tma.async_copy_global_to_shared(output, place, full.index(stage), values.index(stage))
    taken += 1

    for back in range(count):
        stage = taken % STAGES
        place = [batch, head, (count - 1 - back) * ROWS, 0]
        mbarrier.wait(empty.index(stage), (taken // STAGES + 1) % 2)
        mbarrier.expect(full.index(stage), key.block_type.nbytes + value.block_type.nbytes)
        tma.async_copy_global_to_shared(key, place, full.index(stage), keys.index(stage))
        tma.async_copy_global_to_shared(value, place, full.index(stage), values.index(stage))
        taken += 1


@gluon.jit
def _taken(given_mask, batch, keys, S, MASKED: gl.constexpr):
    """Return the mask of some keys, which is not 0 where they take part; 1 without a mask."""
    if MASKED:
        mask, stride_b, stride_s = given_mask
        places = batch.to(gl.int64) * stride_b + keys.to(gl.int64) * stride_s
        return gl.load(mask + places, mask=keys < S, other=0)
    else:
        return 1


@gluon.jit
def _weights(scores, logarithm, factor, last_key, taken, EDGE: gl.constexpr, MASKED: gl.constexpr):
    """Compute the weights of a block of keys again. In the blocks of an ``EDGE``, only the keys up to ``last_key``,
    counted from the first one of the block, take part. ``taken`` is the return value of ``_taken``."""
    weights = _exp2(scores * factor - logarithm[:, None])

    if MASKED:
        weights = gl.where(taken[None, :] != 0, weights, 0.0)

    if EDGE:
        keys = gl.arange(0, scores.shape[1], gl.SliceLayout(0, scores.type.layout))
        weights = gl.where(keys[None, :] <= last_key[:, None], weights, 0.0)

    return weights


@gluon.jit
def _queries_of_group(
    given, scalars, given_mask, MASKED: gl.constexpr, CAUSAL: gl.constexpr, STAGES: gl.constexpr, GROUP: gl.constexpr
):
    """Run a group of warps of ``to_queries``."""
    tensors, memory, barriers, sizes, place = given
    head_of_all, tile = place
    factor, scale, saved, statistics, row_stride = scalars
    _gradient, _output, query, _key, _value, query_gradient = tensors
    all_queries, all_slopes, keys, values = memory
    own_full, full, empty = barriers
    heads, group, L, S, shift = sizes
    dtype: gl.constexpr = query.dtype
    DIMS: gl.constexpr = query.block_type.shape[3]
    # Layouts: scores and sums, 16 rows to a warp; and an operand that products take from registers.
    scores_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, ROWS, 16])
    sums_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, DIMS, 16])
    operand_layout: gl.constexpr = gl.DotOperandLayout(0, sums_layout, 2)
    row_layout: gl.constexpr = gl.SliceLayout(1, scores_layout)
    nothing = gl.zeros([ROWS, ROWS], gl.float32, scores_layout)
    taken = 0
    first_of_tile = tile * TILE
    count, seen = _key_blocks(first_of_tile, L, S, shift, CAUSAL)
    first_row = first_of_tile + GROUP * ROWS
    rows = first_row + gl.arange(0, ROWS, row_layout)
    last_key = gl.full([ROWS], S - 1, gl.int32, row_layout)

    if CAUSAL:
        last_key = gl.minimum(last_key, rows + shift)

    own_queries = _matrix(all_queries.index(GROUP))
    own_slopes = _matrix(all_slopes.index(GROUP))
    stage = taken % STAGES
    mbarrier.wait(own_full.index(GROUP), 0)
    mbarrier.wait(full.index(stage), taken // STAGES % 2)
    outputs = _matrix(keys.index(stage)) if GROUP == 0 else _matrix(values.index(stage))
    products = outputs.load(sums_layout).to(gl.float32) * own_slopes.load(sums_layout).to(gl.float32)
    delta = gl.convert_layout(gl.sum(products, 1), row_layout)
    fence_async_shared()
    mbarrier.arrive(empty.index(stage), count=1)
    taken += 1

    maxima, normalizers = saved
    every_row = head_of_all.to(gl.int64) * L + rows
    maximum = gl.load(maxima + every_row, mask=rows < L, other=0)
    total = gl.load(normalizers + every_row, mask=rows < L, other=1)
    # A query to which no key takes part has weights of 0: 2 to the power of what minus infinity leaves.
    logarithm = gl.where(total == 0, float("inf"), maximum + gl.log2(total))
    place = head_of_all.to(gl.int64) * 2 * row_stride + rows
    gl.store(statistics + place, logarithm, mask=rows < L)
    gl.store(statistics + row_stride + place, delta, mask=rows < L)
    queries = _held(own_queries, scores_layout, True)
    slopes = _held(own_slopes, scores_layout, DIMS == 64)
    sums = gl.zeros([ROWS, DIMS], gl.float32, sums_layout)
    block = count - 1
    columns = gl.arange(0, ROWS, gl.SliceLayout(0, scores_layout))
    batch = head_of_all // (heads * group)
    stage = taken % STAGES
    mbarrier.wait(full.index(stage), taken // STAGES % 2)
    scores = warpgroup_mma(queries, _transposed(keys.index(stage)), nothing, use_acc=False, is_async=True)
    along = warpgroup_mma(slopes, _transposed(values.index(stage)), nothing, use_acc=False, is_async=True)
    masked = _taken(given_mask, batch, block * ROWS + columns, S, MASKED)
    scores = warpgroup_mma_wait(1, deps=[scores])
    weights = _weights(scores, logarithm, factor, last_key - block * ROWS, masked, True, MASKED)
    along = warpgroup_mma_wait(0, deps=[along])
    changes = weights * (along - delta[:, None])

    for EDGE in gl.static_range(1, -1, -1):
        end = seen if EDGE else 0

        while block > end:
            stage = taken % STAGES
            taken += 1
            block -= 1
            next_stage = taken % STAGES
            mbarrier.wait(full.index(next_stage), taken // STAGES % 2)
            next_keys = _transposed(keys.index(next_stage))
            scores = warpgroup_mma(queries, next_keys, nothing, use_acc=False, is_async=True)
            next_values = _transposed(values.index(next_stage))
            along = warpgroup_mma(slopes, next_values, nothing, use_acc=False, is_async=True)
            operand = gl.convert_layout(changes.to(dtype), operand_layout)
            product = warpgroup_mma(operand, _matrix(keys.index(stage)), sums, is_async=True)
            masked = _taken(given_mask, batch, block * ROWS + columns, S, MASKED)
            scores = warpgroup_mma_wait(2, deps=[scores])
            weights = _weights(scores, logarithm, factor, last_key - block * ROWS, masked, EDGE == 1, MASKED)
            # These waits are over at once. They are loops, over which ptxas does not move the weights: it would compute
            # them when no product runs any more.
            mbarrier.wait(full.index(next_stage), taken // STAGES % 2)
            along = warpgroup_mma_wait(1, deps=[along])
            changes = weights * (along - delta[:, None])
            mbarrier.wait(full.index(next_stage), taken // STAGES % 2)
            # Naming the operand keeps its registers untouched while the product reads them.
            sums, operand = warpgroup_mma_wait(0, deps=[product, operand])
            mbarrier.arrive(empty.index(stage), count=1)

    stage = taken % STAGES
    operand = gl.convert_layout(changes.to(dtype), operand_layout)
    product = warpgroup_mma(operand, _matrix(keys.index(stage)), sums, is_async=True)
    sums, operand = warpgroup_mma_wait(0, deps=[product, operand])
    mbarrier.arrive(empty.index(stage), count=1)
    taken += 1

    # The result goes through the shared memory of the queries.
    own_queries.store((sums * scale).to(dtype))
    fence_async_shared()
    place = [batch, head_of_all % (heads * group), first_row, 0]
    tma.async_copy_shared_to_global(query_gradient, place, all_queries.index(GROUP))
    tma.store_wait(0)


@gluon.jit(
    do_not_specialize=[
        "heads",
        "group",
        "L",
        "S",
        "shift",
        "batches",
        "tiles",
        "together",
        "row_stride",
        "stride_mb",
        "stride_ms",
    ]
)
def to_queries(
    gradient,
    output,
    query,
    key,
    value,
    query_gradient,
    maxima,
    normalizers,
    statistics,
    row_stride,
    heads,
    group,
    L,
    S,
    shift,
    batches,
    tiles,
    together,
    factor,
    scale,
    mask,
    stride_mb,
    stride_ms,
    MASKED: gl.constexpr,
    CAUSAL: gl.constexpr,
    STAGES: gl.constexpr,
):
    """Compute the gradient of a tile of queries, and the statistics of these.

    :param gradient: A tensor descriptor of (batch, heads * group, L, E) with blocks of (1, 1, ROWS, DIMS), with E at
        most DIMS; dims beyond E are read as zeros and not written. ``output``, ``query`` and ``query_gradient``
        likewise; ``key`` and ``value`` of (batch, heads, S, E).
    :param maxima: (batch, heads * group, L), float32, contiguous, as the forward pass has saved them; ``normalizers``
        likewise.
    :param statistics: (batch * heads * group, 2, row_stride), float32, to be written: the logarithm to base 2 of
        the sum of the exponentials of a query's scores, and ``rowsum(dO O)``.
    :param heads: The number of key/value heads; ``group`` query heads read each.
    :param shift: Row l sees the keys up to l + shift, if CAUSAL.
    :param batches: The batch dim; ``tiles`` is the number of tiles of a head, ``together`` as for ``_place``.
    :param factor: The factor that brings scores to units of log2; ``scale`` is that of the gradient.
    :param mask: With MASKED, bytes that are not 0 for the keys of a batch that take part, (batch, S).
    :param STAGES: The number of blocks of keys, and of values, that shared memory holds.
    """
    DIMS: gl.constexpr = query.block_type.shape[3]
    memory = (
        gl.allocate_shared_memory(query.dtype, [GROUPS, 1, 1, ROWS, DIMS], query.layout),
        gl.allocate_shared_memory(query.dtype, [GROUPS, 1, 1, ROWS, DIMS], query.layout),
        gl.allocate_shared_memory(query.dtype, [STAGES, 1, 1, ROWS, DIMS], query.layout),
        gl.allocate_shared_memory(query.dtype, [STAGES, 1, 1, ROWS, DIMS], query.layout),
    )
    barriers = (make_barriers(GROUPS, 1), make_barriers(STAGES, 1), make_barriers(STAGES, GROUPS))
    fence_async_shared()
    tensors = (gradient, output, query, key, value, query_gradient)
    place = _place(batches * heads * group, tiles, together, CAUSAL)
    given = (tensors, memory, barriers, (heads, group, L, S, shift), place)
    scalars = (factor, scale, (maxima, normalizers), statistics, row_stride)
    given_mask = (mask, stride_mb, stride_ms)

    gl.warp_specialize(
        [
            (_queries_of_group, (given, scalars, given_mask, MASKED, CAUSAL, STAGES, 0)),
            (_queries_of_group, (given, scalars, given_mask, MASKED, CAUSAL, STAGES, 1)),
            (_load_for_queries, (given, CAUSAL, STAGES)),
        ],
        [4, 1],
        [240, 24],
    )


# --- the gradients of keys and values --------------------------------------------------------------------------------


@gluon.jit
def _query_blocks(first_key, L, shift, CAUSAL: gl.constexpr):
    """Return the first block of queries that sees a key from this one on, and the number of all blocks. The last block
    is walked in any case."""
    count = gl.cdiv(L, ROWS)
    first = 0

    if CAUSAL:
        first = gl.minimum(gl.maximum(first_key - shift, 0) // ROWS, count - 1)

    return first, count


@gluon.jit
def _load_block(tensors, memory, barriers, batch, query_head, row_head, block, taken, STAGES: gl.constexpr):
    """Load a block of queries, their gradients and their statistics."""
    gradient, query, _key, _value, _key_gradient, _value_gradient, statistics = tensors
    _keys, _values, queries, slopes, rows_of = memory
    _own_full, full, empty = barriers
    stage = taken % STAGES
    place = [batch, query_head, block * ROWS, 0]
    mbarrier.wait(empty.index(stage), (taken // STAGES + 1) % 2)
    size: gl.constexpr = query.block_type.nbytes + gradient.block_type.nbytes + statistics.block_type.nbytes
    mbarrier.expect(full.index(stage), size)
    tma.async_copy_global_to_shared(query, place, full.index(stage), queries.index(stage))
    tma.async_copy_global_to_shared(statistics, [row_head * 2, block * ROWS], full.index(stage), rows_of.index(stage))
    tma.async_copy_global_to_shared(gradient, place, full.index(stage), slopes.index(stage))


@gluon.jit
def _load_for_keys(given, CAUSAL: gl.constexpr, STAGES: gl.constexpr):
    """Run the loading warp of ``to_keys``: of each tile the keys and values, then for each query head the last block of
    queries, and the others from the first on."""
    tensors, memory, barriers, sizes, place = given
    head_of_all, tile = place
    _gradient, _query, key, value, _key_gradient, _value_gradient, _statistics = tensors
    keys, values, _queries, _slopes, _rows_of = memory
    own_full, _full, _empty = barriers
    heads, group, L, _S, shift = sizes
    taken = 0
    batch = head_of_all // heads
    head = head_of_all % heads
    first_key = tile * TILE
    first, count = _query_blocks(first_key, L, shift, CAUSAL)

    for i in gl.static_range(GROUPS):
        place = [batch, head, first_key + i * ROWS, 0]
        mbarrier.expect(own_full.index(i), key.block_type.nbytes + value.block_type.nbytes)
        tma.async_copy_global_to_shared(key, place, own_full.index(i), keys.index(i))
        tma.async_copy_global_to_shared(value, place, own_full.index(i), values.index(i))

    for member in range(group):
        query_head = head * group + member
        row_head = batch * heads * group + query_head
        _load_block(tensors, memory, barriers, batch, query_head, row_head, count - 1, taken, STAGES)
        taken += 1

        for block in range(first, count - 1):
            _load_block(tensors, memory, barriers, batch, query_head, row_head, block, taken, STAGES)
            taken += 1


@gluon.jit
def _keys_of_group(
    given, scalars, given_mask, MASKED: gl.constexpr, CAUSAL: gl.constexpr, STAGES: gl.constexpr, GROUP: gl.constexpr
):
    """Run a group of warps of ``to_keys``."""
    tensors, memory, barriers, sizes, place = given
    head_of_all, tile = place
    factor, scale = scalars
    _gradient, query, _key, _value, key_gradient, value_gradient, _statistics = tensors
    all_keys, all_values, queries, slopes, rows_of = memory
    own_full, full, empty = barriers
    heads, group, L, S, shift = sizes
    dtype: gl.constexpr = query.dtype
    DIMS: gl.constexpr = query.block_type.shape[3]
    # Layouts as above; here scores have keys along dim 0.
    scores_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, ROWS, 16])
    sums_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, DIMS, 16])
    operand_layout: gl.constexpr = gl.DotOperandLayout(0, sums_layout, 2)
    nothing = gl.zeros([ROWS, ROWS], gl.float32, scores_layout)
    taken = 0
    first_of_tile = tile * TILE
    first, count = _query_blocks(first_of_tile, L, shift, CAUSAL)
    first_key = first_of_tile + GROUP * ROWS
    first_query = first_key - shift + gl.arange(0, ROWS, gl.SliceLayout(1, scores_layout))
    total = count - first
    # The blocks, in the order in which they are walked, of which some queries do not see all keys of the group.
    edges = 1

    if CAUSAL:
        edges += gl.maximum(gl.cdiv(first_key + ROWS - 1 - shift, ROWS) - first, 0)

    own_keys = _matrix(all_keys.index(GROUP))
    own_values = _matrix(all_values.index(GROUP))
    key_sums = gl.zeros([ROWS, DIMS], gl.float32, sums_layout)
    value_sums = gl.zeros([ROWS, DIMS], gl.float32, sums_layout)
    mbarrier.wait(own_full.index(GROUP), 0)
    keys = _held(own_keys, scores_layout, DIMS == 64)
    values = _held(own_values, scores_layout, DIMS == 64)

    for _member in range(group):
        stage = taken % STAGES
        mbarrier.wait(full.index(stage), taken // STAGES % 2)
        scores = warpgroup_mma(keys, _transposed(queries.index(stage)), nothing, use_acc=False, is_async=True)
        along = warpgroup_mma(values, _transposed(slopes.index(stage)), nothing, use_acc=False, is_async=True)
        scores = warpgroup_mma_wait(1, deps=[scores])
        weights = _again(scores, rows_of.index(stage), factor, count - 1, first_query, L, CAUSAL, True)
        along = warpgroup_mma_wait(0, deps=[along])
        position = 1

        for EDGE in gl.static_range(1, -1, -1):
            end = gl.minimum(edges, total) if EDGE else total

            while position < end:
                # Naming the operands keeps their registers untouched while the products read them.
                operand = gl.convert_layout(weights.to(dtype), operand_layout)
                value_product = warpgroup_mma(operand, _matrix(slopes.index(stage)), value_sums, is_async=True)
                other_operand = _changes(weights, along, rows_of.index(stage), dtype, operand_layout)
                key_product = warpgroup_mma(other_operand, _matrix(queries.index(stage)), key_sums, is_async=True)
                value_sums, operand = warpgroup_mma_wait(1, deps=[value_product, operand])
                block = first + position - 1
                last_stage = stage
                taken += 1
                position += 1
                stage = taken % STAGES
                mbarrier.wait(full.index(stage), taken // STAGES % 2)
                next_queries = _transposed(queries.index(stage))
                scores = warpgroup_mma(keys, next_queries, nothing, use_acc=False, is_async=True)
                next_slopes = _transposed(slopes.index(stage))
                along = warpgroup_mma(values, next_slopes, nothing, use_acc=False, is_async=True)
                key_sums, other_operand, scores = warpgroup_mma_wait(1, deps=[key_product, other_operand, scores])
                mbarrier.arrive(empty.index(last_stage), count=1)
                weights = _again(scores, rows_of.index(stage), factor, block, first_query, L, CAUSAL, EDGE == 1)
                # As above.
                mbarrier.wait(full.index(stage), taken // STAGES % 2)
                along = warpgroup_mma_wait(0, deps=[along])

        operand = gl.convert_layout(weights.to(dtype), operand_layout)
        value_product = warpgroup_mma(operand, _matrix(slopes.index(stage)), value_sums, is_async=True)
        other_operand = _changes(weights, along, rows_of.index(stage), dtype, operand_layout)
        key_product = warpgroup_mma(other_operand, _matrix(queries.index(stage)), key_sums, is_async=True)
        value_sums, key_sums, operand, other_operand = warpgroup_mma_wait(
            0, deps=[value_product, key_product, operand, other_operand]
        )
        mbarrier.arrive(empty.index(stage), count=1)
        taken += 1

    if MASKED:
        # Keys that do not take part have no weights at all.
        own = first_key + gl.arange(0, ROWS, gl.SliceLayout(1, sums_layout))
        masked = _taken(given_mask, head_of_all // heads, own, S, MASKED)
        key_sums = gl.where(masked[:, None] != 0, key_sums, 0.0)
        value_sums = gl.where(masked[:, None] != 0, value_sums, 0.0)

    # The results go through the shared memory of the keys and values.
    own_keys.store((key_sums * scale).to(dtype))
    own_values.store(value_sums.to(dtype))
    fence_async_shared()
    place = [head_of_all // heads, head_of_all % heads, first_key, 0]
    tma.async_copy_shared_to_global(key_gradient, place, all_keys.index(GROUP))
    tma.async_copy_shared_to_global(value_gradient, place, all_values.index(GROUP))
    tma.store_wait(0)


@gluon.jit
def _again(scores, statistics, factor, block, first_query, L, CAUSAL: gl.constexpr, EDGE: gl.constexpr):
    """Compute the weights of a block of queries again, from products of keys and queries and the logarithms of the
    queries' sums. In the blocks of an ``EDGE``, queries beyond the end and those that do not see a key take no part.

    :param first_query: The first query that sees each key.
    """
    layout: gl.constexpr = scores.type.layout
    weights = _exp2(scores * factor - statistics.slice(0, 1, 0).load(layout))

    if EDGE:
        rows = gl.expand_dims(block * ROWS + gl.arange(0, ROWS, gl.SliceLayout(0, layout)), 0)
        kept = rows < L

        if CAUSAL:
            kept = kept & (rows >= first_query[:, None])

        weights = gl.where(kept, weights, 0.0)

    return weights


@gluon.jit
def _changes(weights, along, statistics, dtype: gl.constexpr, layout: gl.constexpr):
    """Compute the gradient of the scores, as an operand."""
    delta = statistics.slice(1, 1, 0).load(weights.type.layout)
    return gl.convert_layout((weights * (along - delta)).to(dtype), layout)


@gluon.jit(
    do_not_specialize=["heads", "group", "L", "S", "shift", "batches", "tiles", "together", "stride_mb", "stride_ms"]
)
def to_keys(
    gradient,
    query,
    key,
    value,
    key_gradient,
    value_gradient,
    statistics,
    heads,
    group,
    L,
    S,
    shift,
    batches,
    tiles,
    together,
    factor,
    scale,
    mask,
    stride_mb,
    stride_ms,
    MASKED: gl.constexpr,
    CAUSAL: gl.constexpr,
    STAGES: gl.constexpr,
):
    """Compute the gradients of a tile of keys and of values. Arguments are as for ``to_queries``, with the statistics
    as a descriptor of blocks of (2, ROWS)."""
    DIMS: gl.constexpr = query.block_type.shape[3]
    memory = (
        gl.allocate_shared_memory(query.dtype, [GROUPS, 1, 1, ROWS, DIMS], query.layout),
        gl.allocate_shared_memory(query.dtype, [GROUPS, 1, 1, ROWS, DIMS], query.layout),
        gl.allocate_shared_memory(query.dtype, [STAGES, 1, 1, ROWS, DIMS], query.layout),
        gl.allocate_shared_memory(query.dtype, [STAGES, 1, 1, ROWS, DIMS], query.layout),
        gl.allocate_shared_memory(gl.float32, [STAGES, 2, ROWS], statistics.layout),
    )
    barriers = (make_barriers(GROUPS, 1), make_barriers(STAGES, 1), make_barriers(STAGES, GROUPS))
    fence_async_shared()
    tensors = (gradient, query, key, value, key_gradient, value_gradient, statistics)
    place = _place(batches * heads, tiles, together, False)
    given = (tensors, memory, barriers, (heads, group, L, S, shift), place)
    given_mask = (mask, stride_mb, stride_ms)

    gl.warp_specialize(
        [
            (_keys_of_group, (given, (factor, scale), given_mask, MASKED, CAUSAL, STAGES, 0)),
            (_keys_of_group, (given, (factor, scale), given_mask, MASKED, CAUSAL, STAGES, 1)),
            (_load_for_keys, (given, CAUSAL, STAGES)),
        ],
        [4, 1],
        [240, 24],
    )
