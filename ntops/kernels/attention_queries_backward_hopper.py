"""The gradient of attention's queries on Hopper, in Gluon; see ``attention_backward_hopper``."""

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
from ntops.kernels.attention_hopper import ROWS, _blocks, _exp2
from ntops.kernels.hopper import make_barriers


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
    count, _ = _blocks(first_row, TILE, L, S, shift, CAUSAL, ROWS)

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
def _weights(scores, logarithm, factor, last_key, taken, EDGE: gl.constexpr, MASKED: gl.constexpr):
    """Compute the weights of a block of keys again. In the blocks of an ``EDGE``, only the keys up to ``last_key``,
    counted from the first one of the block, take part. ``taken`` is the return value of ``key_mask``."""
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
    count, seen = _blocks(first_of_tile, TILE, L, S, shift, CAUSAL, ROWS)
    first_row = first_of_tile + GROUP * ROWS
    rows = first_row + gl.arange(0, ROWS, row_layout)
    last_key = gl.full([ROWS], S - 1, gl.int32, row_layout)

    if CAUSAL:
        last_key = gl.minimum(last_key, rows + shift)

    own_queries = matrix(all_queries.index(GROUP))
    own_slopes = matrix(all_slopes.index(GROUP))
    stage = taken % STAGES
    mbarrier.wait(own_full.index(GROUP), 0)
    mbarrier.wait(full.index(stage), taken // STAGES % 2)
    outputs = matrix(keys.index(stage)) if GROUP == 0 else matrix(values.index(stage))
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
    queries = held(own_queries, scores_layout, True)
    slopes = held(own_slopes, scores_layout, DIMS == 64)
    sums = gl.zeros([ROWS, DIMS], gl.float32, sums_layout)
    block = count - 1
    columns = gl.arange(0, ROWS, gl.SliceLayout(0, scores_layout))
    batch = head_of_all // (heads * group)
    stage = taken % STAGES
    mbarrier.wait(full.index(stage), taken // STAGES % 2)
    scores = warpgroup_mma(queries, transposed(keys.index(stage)), nothing, use_acc=False, is_async=True)
    along = warpgroup_mma(slopes, transposed(values.index(stage)), nothing, use_acc=False, is_async=True)
    masked = key_mask(given_mask, batch, block * ROWS + columns, S, MASKED)
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
            next_keys = transposed(keys.index(next_stage))
            scores = warpgroup_mma(queries, next_keys, nothing, use_acc=False, is_async=True)
            next_values = transposed(values.index(next_stage))
            along = warpgroup_mma(slopes, next_values, nothing, use_acc=False, is_async=True)
            operand = gl.convert_layout(changes.to(dtype), operand_layout)
            product = warpgroup_mma(operand, matrix(keys.index(stage)), sums, is_async=True)
            masked = key_mask(given_mask, batch, block * ROWS + columns, S, MASKED)
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
    product = warpgroup_mma(operand, matrix(keys.index(stage)), sums, is_async=True)
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
    :param batches: The batch dim; ``tiles`` is the number of tiles of a head, ``together`` as for ``head_and_tile``.
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
    place = head_and_tile(batches * heads * group, tiles, together, CAUSAL)
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
