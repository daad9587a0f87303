"""Attention on Hopper, in Gluon: what ``ntops.kernels.attention`` computes, with the work of every warp written out.

After FlashAttention-3 (Shah et al., arXiv:2407.08608). A program has two or four groups of four warps, which take 64
rows of a tile each, and one warp that has the Tensor Memory Accelerator fetch blocks of keys and values. A group starts
two products, of the queries with the next keys and of its weights with the values, and computes the next weights while
the second one runs. Triton's own compiler does not overlap these.

Median us on an H200 (Triton 3.6, bf16; torch's is cuDNN); those of a plain kernel with descriptors are of another run:

====================== ===== ===== =====
                        this torch plain
====================== ===== ===== =====
4 x 32 x 4096 x 128     1599  1670  2353
causal                   844   930  1245
1 x 8 x 16384 x 128     1542  1606
causal                   785   929  1065
4 x 32 x 4096 x 64      1146  1139  1222
causal                   622   641   694
causal, 8 kv heads       621   638
1 x 8 x 16384 x 64      1144  1130
causal                   598   657   594
====================== ===== ===== =====

With 64 dims the exponentials (16 a clock) keep their units busy for as long as the products theirs. Three groups that
take a block of 128 keys after the other, without overlap of their own, need 1058 us for 4 x 32 x 4096, but 1193 for
1 x 8 x 16384, whose tiles of 192 rows they divide badly among programs.
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

from ntops.kernels.hopper import make_barriers

ROWS = gl.constexpr(64)
"""The rows of a group of warps: those of the one instruction for products that four warps have together."""
TILES = gl.constexpr(2)
"""Tiles whose queries there is shared memory for: while one is worked on, the output of the last one, which takes the
place of its queries, is stored, and the queries of the next one are loaded. 4 x 32 x 4096 x 64, causal, takes 624 us
so, and 655 with one."""
LAYOUT = gl.NVMMASharedLayout(128, 16, rank=4)
"""Of blocks in shared memory."""


@gluon.jit
def _exp2(x):
    """The power of two by one instruction: Triton's own adds three to each, for results that are subnormal."""
    return gl.inline_asm_elementwise("ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=gl.float32, is_pure=True, pack=1)


@gluon.jit
def _unit(number, units_per_head, row_tiles):
    """A unit of work: the head of all that it is of, its tile of rows, the other tile, and whether it has that one too.

    Units of a head follow each other, so that programs read the same keys at a time; the tiles with the most keys come
    first. Where a head has fewer units than tiles, they are pairs, of a tile of many keys and one of few.
    """
    other = number % units_per_head
    tile = row_tiles - 1 - other
    has_other = (units_per_head < row_tiles) & (other < tile)

    return number // units_per_head, tile, other, has_other


@gluon.jit
def _blocks(first_row, rows, L, S, shift, CAUSAL: gl.constexpr, BLOCK_N: gl.constexpr):
    """How many blocks of keys a tile of rows walks, one at least, and how many of these it sees whole."""
    stop = S
    seen = S

    if CAUSAL:
        stop = gl.minimum(S, gl.minimum(first_row + rows, L) + shift)
        seen = gl.minimum(S, first_row + shift + 1)

    return gl.maximum(gl.cdiv(stop, BLOCK_N), 1), gl.maximum(seen, 0) // BLOCK_N


@gluon.jit
def _load(
    tensors,
    memory,
    barriers,
    sizes,
    CAUSAL: gl.constexpr,
    BLOCK_N: gl.constexpr,
    STAGES: gl.constexpr,
    GROUPS: gl.constexpr,
):
    """The warp that loads: the queries of each tile, then its keys and values, the last block first."""
    query, key, value, _output = tensors
    queries, keys, values = memory
    query_full, query_empty, key_full, key_empty, value_full, value_empty, _turns = barriers
    heads, group, L, S, shift, units, units_per_head, row_tiles = sizes
    tiles_taken = 0
    taken = 0

    for number in range(gl.program_id(0), units, gl.num_programs(0)):
        head_of_all, tile, other, has_other = _unit(number, units_per_head, row_tiles)
        batch = head_of_all // (heads * group)
        query_head = head_of_all % (heads * group)
        head = query_head // group

        for number_in_unit in range(1 + has_other):
            first_row = gl.where(number_in_unit == 0, tile, other) * (GROUPS * ROWS)
            count, _ = _blocks(first_row, GROUPS * ROWS, L, S, shift, CAUSAL, BLOCK_N)

            for i in gl.static_range(GROUPS):
                place = [batch, query_head, first_row + i * ROWS, 0]
                slot = tiles_taken % TILES * GROUPS + i
                mbarrier.wait(query_empty.index(slot), (tiles_taken // TILES + 1) % 2)
                mbarrier.expect(query_full.index(slot), query.block_type.nbytes)
                tma.async_copy_global_to_shared(query, place, query_full.index(slot), queries.index(slot))

            for back in range(count):
                place = [batch, head, (count - 1 - back) * BLOCK_N, 0]
                stage = taken % STAGES
                parity = (taken // STAGES + 1) % 2
                mbarrier.wait(key_empty.index(stage), parity)
                mbarrier.expect(key_full.index(stage), key.block_type.nbytes)
                tma.async_copy_global_to_shared(key, place, key_full.index(stage), keys.index(stage))
                mbarrier.wait(value_empty.index(stage), parity)
                mbarrier.expect(value_full.index(stage), value.block_type.nbytes)
                tma.async_copy_global_to_shared(value, place, value_full.index(stage), values.index(stage))
                taken += 1

            tiles_taken += 1


@gluon.jit
def _eighths(x):
    """(ROWS, N) as (ROWS, N / 8, 8). Of a product's result a thread holds two columns of each eight, and so all of what
    is along dim 1 then."""
    return x.reshape([x.shape[0], x.shape[1] // 8, 8])


@gluon.jit
def _weigh(scores, maximum, normalizer, scale, last_key, EDGE: gl.constexpr):
    """The weights of a block of scores, what the sums so far shrink by, and the new maximum and normalizer.

    These are in units of log2. In the blocks of an ``EDGE``, the keys up to ``last_key``, counted from the first one of
    the block, alone take part. ``normalizer`` is (ROWS, 8), the sums of ``_eighths``.
    """
    row_layout: gl.constexpr = gl.SliceLayout(1, scores.type.layout)

    if EDGE:
        keys = gl.arange(0, scores.shape[1], gl.SliceLayout(0, scores.type.layout))
        scores = gl.where(keys[None, :] <= last_key[:, None], scores, float("-inf"))

    highest = gl.convert_layout(gl.max(gl.max(_eighths(scores), 1), 1), row_layout)
    largest = gl.maximum(maximum, highest * scale)
    # Where nothing took part yet, the difference of two infinities must not arise.
    safe = gl.where(largest == float("-inf"), 0.0, largest)
    weights = _exp2(scores * scale - safe[:, None])
    shrunk = _exp2(maximum - safe)
    sums = gl.sum(_eighths(weights), 1)
    normalizer = normalizer * gl.convert_layout(shrunk, gl.SliceLayout(1, sums.type.layout))[:, None] + sums

    return weights, shrunk, largest, normalizer


@gluon.jit
def _attend_rows(
    tensors,
    memory,
    barriers,
    sizes,
    scale,
    CAUSAL: gl.constexpr,
    BLOCK_N: gl.constexpr,
    BLOCK_E: gl.constexpr,
    STAGES: gl.constexpr,
    GROUPS: gl.constexpr,
    GROUP: gl.constexpr,
):
    """A group of warps: its rows of each tile."""
    query, _key, _value, output = tensors
    queries, keys, values = memory
    query_full, query_empty, key_full, key_empty, value_full, value_empty, turns = barriers
    heads, group, L, S, shift, units, units_per_head, row_tiles = sizes
    dtype: gl.constexpr = query.dtype
    # Scores and the output, 16 rows to a warp; and weights, as the operand that products take from registers.
    scores_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    output_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_E, 16])
    weights_layout: gl.constexpr = gl.DotOperandLayout(0, output_layout, 2)
    row_layout: gl.constexpr = gl.SliceLayout(1, scores_layout)
    output_row_layout: gl.constexpr = gl.SliceLayout(1, output_layout)
    # Of two groups one at a time starts products: 4 x 32 x 4096 x 64, causal, takes 610 us and not 624.
    TURNS: gl.constexpr = GROUPS == 2
    LEADS: gl.constexpr = 1 if GROUP == 0 else 0
    NEXT: gl.constexpr = (GROUP + 1) % GROUPS
    nothing = gl.zeros([ROWS, BLOCK_N], gl.float32, scores_layout)
    tiles_taken = 0
    taken = 0
    turn = 0

    for number in range(gl.program_id(0), units, gl.num_programs(0)):
        head_of_all, tile, other, has_other = _unit(number, units_per_head, row_tiles)

        for number_in_unit in range(1 + has_other):
            slot = tiles_taken % TILES * GROUPS + GROUP
            own_queries = queries.index(slot).reshape([ROWS, BLOCK_E])
            first_of_tile = gl.where(number_in_unit == 0, tile, other) * (GROUPS * ROWS)
            count, seen = _blocks(first_of_tile, GROUPS * ROWS, L, S, shift, CAUSAL, BLOCK_N)
            first_row = first_of_tile + GROUP * ROWS
            last_key = gl.full([ROWS], S - 1, gl.int32, row_layout)

            if CAUSAL:
                last_key = gl.minimum(last_key, first_row + shift + gl.arange(0, ROWS, row_layout))

            accumulator = gl.zeros([ROWS, BLOCK_E], gl.float32, output_layout)
            normalizer = gl.sum(_eighths(nothing), 1)
            maximum = gl.full([ROWS], float("-inf"), gl.float32, row_layout)

            # The last block: there may be keys in it that do not take part.
            block = count - 1
            stage = taken % STAGES
            mbarrier.wait(query_full.index(slot), tiles_taken // TILES % 2)
            mbarrier.wait(key_full.index(stage), taken // STAGES % 2)
            own_keys = keys.index(stage).reshape([BLOCK_N, BLOCK_E]).permute((1, 0))

            if TURNS:
                mbarrier.wait(turns.index(GROUP), (turn + LEADS) % 2)
                turn += 1

            scores = warpgroup_mma(own_queries, own_keys, nothing, use_acc=False, is_async=True)

            if TURNS:
                mbarrier.arrive(turns.index(NEXT), count=1)

            # By now the output of the last tile has been read.
            tma.store_wait(0)
            last_slot = (tiles_taken + TILES - 1) % TILES * GROUPS + GROUP
            mbarrier.arrive(query_empty.index(last_slot), count=1, pred=tiles_taken > 0)

            scores = warpgroup_mma_wait(0, deps=[scores])
            mbarrier.arrive(key_empty.index(stage), count=1)
            weights, shrunk, maximum, normalizer = _weigh(
                scores, maximum, normalizer, scale, last_key - block * BLOCK_N, True
            )
            mbarrier.wait(value_full.index(stage), taken // STAGES % 2)

            # The weights of a block are multiplied while those of the next one are computed. From one pass to the next
            # they are in float32: halves would be taken out of their pairs and put back.
            for EDGE in gl.static_range(1, -1, -1):
                end = seen if EDGE else 0

                while block > end:
                    stage = taken % STAGES
                    taken += 1
                    block -= 1
                    next_stage = taken % STAGES
                    next_parity = taken // STAGES % 2
                    own_keys = keys.index(next_stage).reshape([BLOCK_N, BLOCK_E]).permute((1, 0))
                    own_values = values.index(stage).reshape([BLOCK_N, BLOCK_E])
                    mbarrier.wait(key_full.index(next_stage), next_parity)

                    if TURNS:
                        mbarrier.wait(turns.index(GROUP), (turn + LEADS) % 2)
                        turn += 1

                    scores = warpgroup_mma(own_queries, own_keys, nothing, use_acc=False, is_async=True)
                    operand = gl.convert_layout(weights.to(dtype), weights_layout)
                    product = warpgroup_mma(operand, own_values, accumulator, is_async=True)

                    if TURNS:
                        mbarrier.arrive(turns.index(NEXT), count=1)

                    scores = warpgroup_mma_wait(1, deps=[scores])
                    mbarrier.arrive(key_empty.index(next_stage), count=1)
                    weights, shrunk, maximum, normalizer = _weigh(
                        scores, maximum, normalizer, scale, last_key - block * BLOCK_N, EDGE == 1
                    )
                    # Waited for here, where the next pass would do: ptxas moves the wait for the product to before the
                    # weights (4 x 32 x 4096 x 64, causal: 669 us, not 624), unless there is a loop in between.
                    mbarrier.wait(value_full.index(next_stage), next_parity)
                    # The operand is named so that its registers are left alone while the product reads them.
                    accumulator, operand = warpgroup_mma_wait(0, deps=[product, operand])
                    mbarrier.arrive(value_empty.index(stage), count=1)
                    accumulator = accumulator * gl.convert_layout(shrunk, output_row_layout)[:, None]

            stage = taken % STAGES
            own_values = values.index(stage).reshape([BLOCK_N, BLOCK_E])
            operand = gl.convert_layout(weights.to(dtype), weights_layout)
            product = warpgroup_mma(operand, own_values, accumulator, is_async=True)
            accumulator, operand = warpgroup_mma_wait(0, deps=[product, operand])
            mbarrier.arrive(value_empty.index(stage), count=1)
            taken += 1

            # A row to which nothing took part is 0. The output goes through the memory of the queries.
            total = gl.convert_layout(gl.sum(normalizer, 1), output_row_layout)
            accumulator = accumulator * (1.0 / gl.where(total == 0, 1.0, total))[:, None]
            own_queries.store(accumulator.to(dtype))
            fence_async_shared()
            place = [head_of_all // (heads * group), head_of_all % (heads * group), first_row, 0]
            tma.async_copy_shared_to_global(output, place, queries.index(slot))
            tiles_taken += 1

    tma.store_wait(0)


@gluon.jit(do_not_specialize=["heads", "group", "L", "S", "shift", "units", "units_per_head", "row_tiles"])
def attend(
    query,
    key,
    value,
    output,
    heads,
    group,
    L,
    S,
    shift,
    units,
    units_per_head,
    row_tiles,
    scale,
    CAUSAL: gl.constexpr,
    BLOCK_N: gl.constexpr,
    BLOCK_E: gl.constexpr,
    STAGES: gl.constexpr,
    GROUPS: gl.constexpr,
):
    """Attention of the units of work that this program takes: as many programs as there are apart.

    :param query: A tensor descriptor of (batch, heads * group, L, BLOCK_E) with blocks of (1, 1, ROWS, BLOCK_E);
        ``output`` likewise.
    :param key: One of (batch, heads, S, BLOCK_E), S at least 1, with blocks of (1, 1, BLOCK_N, BLOCK_E); ``value``
        likewise.
    :param heads: Key/value heads; ``group`` query heads read each.
    :param shift: Row l sees the keys up to l + shift, if CAUSAL.
    :param units: Of all heads. A unit is a tile of rows, or a pair of tiles: see ``_unit``.
    :param row_tiles: The tiles of a head, of GROUPS * ROWS rows.
    :param scale: Of the scores, positive, to units of log2.
    :param STAGES: Blocks of keys, and of values, that there is shared memory for.
    :param GROUPS: Of warps: two or four.
    """
    memory = (
        gl.allocate_shared_memory(query.dtype, [TILES * GROUPS, 1, 1, ROWS, BLOCK_E], query.layout),
        gl.allocate_shared_memory(key.dtype, [STAGES, 1, 1, BLOCK_N, BLOCK_E], key.layout),
        gl.allocate_shared_memory(value.dtype, [STAGES, 1, 1, BLOCK_N, BLOCK_E], value.layout),
    )
    # Memory is filled by the warp that loads, and emptied by the group whose queries it holds, or by all.
    barriers = (
        make_barriers(TILES * GROUPS, 1),
        make_barriers(TILES * GROUPS, 1),
        make_barriers(STAGES, 1),
        make_barriers(STAGES, GROUPS),
        make_barriers(STAGES, 1),
        make_barriers(STAGES, GROUPS),
        make_barriers(GROUPS, 1),
    )
    fence_async_shared()
    sizes = (heads, group, L, S, shift, units, units_per_head, row_tiles)
    tensors = (query, key, value, output)

    # Registers of a thread: the first group has what the others leave, as many as another group.
    if GROUPS == 2:
        gl.warp_specialize(
            [
                (_attend_rows, (tensors, memory, barriers, sizes, scale, CAUSAL, BLOCK_N, BLOCK_E, STAGES, GROUPS, 0)),
                (_attend_rows, (tensors, memory, barriers, sizes, scale, CAUSAL, BLOCK_N, BLOCK_E, STAGES, GROUPS, 1)),
                (_load, (tensors, memory, barriers, sizes, CAUSAL, BLOCK_N, STAGES, GROUPS)),
            ],
            [4, 1],
            [240, 24],
        )
    else:
        gl.warp_specialize(
            [
                (_attend_rows, (tensors, memory, barriers, sizes, scale, CAUSAL, BLOCK_N, BLOCK_E, STAGES, GROUPS, 0)),
                (_attend_rows, (tensors, memory, barriers, sizes, scale, CAUSAL, BLOCK_N, BLOCK_E, STAGES, GROUPS, 1)),
                (_attend_rows, (tensors, memory, barriers, sizes, scale, CAUSAL, BLOCK_N, BLOCK_E, STAGES, GROUPS, 2)),
                (_attend_rows, (tensors, memory, barriers, sizes, scale, CAUSAL, BLOCK_N, BLOCK_E, STAGES, GROUPS, 3)),
                (_load, (tensors, memory, barriers, sizes, CAUSAL, BLOCK_N, STAGES, GROUPS)),
            ],
            [4, 4, 4, 1],
            [112, 112, 112, 24],
        )
