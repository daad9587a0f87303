"""The gradients of attention's keys and values on Hopper, in Gluon; see ``attention_backward_hopper``."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from ntops.kernels.attention_backward_hopper import GROUPS, TILE, head_and_tile, held, key_mask, matrix, transposed
from ntops.kernels.attention_hopper import ROWS, _exp2
from ntops.kernels.hopper import make_barriers


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
    # Layouts of scores, which have keys along dim 0, and sums, 16 rows to a warp; and an operand from registers.
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

    own_keys = matrix(all_keys.index(GROUP))
    own_values = matrix(all_values.index(GROUP))
    key_sums = gl.zeros([ROWS, DIMS], gl.float32, sums_layout)
    value_sums = gl.zeros([ROWS, DIMS], gl.float32, sums_layout)
    mbarrier.wait(own_full.index(GROUP), 0)
    keys = held(own_keys, scores_layout, DIMS == 64)
    values = held(own_values, scores_layout, DIMS == 64)

    for _member in range(group):
        stage = taken % STAGES
        mbarrier.wait(full.index(stage), taken // STAGES % 2)
        scores = warpgroup_mma(keys, transposed(queries.index(stage)), nothing, use_acc=False, is_async=True)
        along = warpgroup_mma(values, transposed(slopes.index(stage)), nothing, use_acc=False, is_async=True)
        scores = warpgroup_mma_wait(1, deps=[scores])
        weights = _again(scores, rows_of.index(stage), factor, count - 1, first_query, L, CAUSAL, True)
        along = warpgroup_mma_wait(0, deps=[along])
        position = 1

        for EDGE in gl.static_range(1, -1, -1):
            end = gl.minimum(edges, total) if EDGE else total

            while position < end:
                # Naming the operands keeps their registers untouched while the products read them.
                operand = gl.convert_layout(weights.to(dtype), operand_layout)
                value_product = warpgroup_mma(operand, matrix(slopes.index(stage)), value_sums, is_async=True)
                other_operand = _changes(weights, along, rows_of.index(stage), dtype, operand_layout)
                key_product = warpgroup_mma(other_operand, matrix(queries.index(stage)), key_sums, is_async=True)
                value_sums, operand = warpgroup_mma_wait(1, deps=[value_product, operand])
                block = first + position - 1
                last_stage = stage
                taken += 1
                position += 1
                stage = taken % STAGES
                mbarrier.wait(full.index(stage), taken // STAGES % 2)
                next_queries = transposed(queries.index(stage))
                scores = warpgroup_mma(keys, next_queries, nothing, use_acc=False, is_async=True)
                next_slopes = transposed(slopes.index(stage))
                along = warpgroup_mma(values, next_slopes, nothing, use_acc=False, is_async=True)
                key_sums, other_operand, scores = warpgroup_mma_wait(1, deps=[key_product, other_operand, scores])
                mbarrier.arrive(empty.index(last_stage), count=1)
                weights = _again(scores, rows_of.index(stage), factor, block, first_query, L, CAUSAL, EDGE == 1)
                # The wait is over at once. It is a loop, over which ptxas does not move the weights: it would compute
                # them when no product runs any more.
                mbarrier.wait(full.index(stage), taken // STAGES % 2)
                along = warpgroup_mma_wait(0, deps=[along])

        operand = gl.convert_layout(weights.to(dtype), operand_layout)
        value_product = warpgroup_mma(operand, matrix(slopes.index(stage)), value_sums, is_async=True)
        other_operand = _changes(weights, along, rows_of.index(stage), dtype, operand_layout)
        key_product = warpgroup_mma(other_operand, matrix(queries.index(stage)), key_sums, is_async=True)
        value_sums, key_sums, operand, other_operand = warpgroup_mma_wait(
            0, deps=[value_product, key_product, operand, other_operand]
        )
        mbarrier.arrive(empty.index(stage), count=1)
        taken += 1

    if MASKED:
        # Keys that do not take part have no weights at all.
        own = first_key + gl.arange(0, ROWS, gl.SliceLayout(1, sums_layout))
        masked = key_mask(given_mask, head_of_all // heads, own, S, MASKED)
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
    """Compute the gradients of a tile of keys and of values. Arguments are as for
    ``attention_queries_backward_hopper.to_queries``, with the statistics as a descriptor of blocks of (2, ROWS)."""
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
    place = head_and_tile(batches * heads, tiles, together, False)
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
