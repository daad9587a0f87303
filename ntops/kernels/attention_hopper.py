"""Attention on Hopper, in Gluon: the function of ``ntops.kernels.attention``, with explicit work for every warp.

The design follows FlashAttention-3 (Shah et al., arXiv:2407.08608). A program has two or four groups of four warps,
which take 64 rows of a tile each, and one warp that makes the Tensor Memory Accelerator fetch blocks of keys and
values. A group starts two products, of the queries with the next keys and of its weights with the values, and computes
the next weights while the second product runs. Triton's own compiler does not overlap these.

Median us on an H200 (Triton 3.6, bf16; torch's is cuDNN); the column of a plain kernel with descriptors is from another
run:

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

With 64 dims the exponentials (16 a clock) keep their units busy for as long as the products keep theirs. Three groups
that take blocks of 128 keys in turn, without overlap of their own, need 1058 us for 4 x 32 x 4096, but 1193 for 1 x 8 x
16384, whose tiles of 192 rows they divide badly among programs.

One file: all of it is one kernel, whose warps share barriers and memory.
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

from ntops.kernels.attention import BOOL_MASK, FLOAT_MASK, NO_MASK
from ntops.kernels.hopper import make_barriers

ROWS = gl.constexpr(64)
"""The rows of a group of warps: as many as the one product instruction of four warps has."""
LAYOUT = gl.NVMMASharedLayout(128, 16, rank=4)
"""The layout of blocks in shared memory."""


@gluon.jit
def _exp2(x):
    """Compute a power of two by one instruction: Triton's own adds three to each, for subnormal results."""
    return gl.inline_asm_elementwise("ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=gl.float32, is_pure=True, pack=1)


@gluon.jit
def _place(turn, program, programs):
    """Return a program's place in a turn. Every other turn goes through the programs backwards, so that who takes the
    most work in one turn takes the least in the next."""
    return program + turn % 2 * (programs - 1 - 2 * program)


@gluon.jit
def _count(program, programs, units):
    """Return how many units a program takes."""
    whole = units // programs
    return whole + (_place(whole, program, programs) < units % programs)


@gluon.jit
def _unit(turn, program, programs, units_per_head, row_tiles, together):
    """Return the unit of work that a program takes in a turn: its head, its tile of rows, the other tile, and whether
    it has the other tile.

    Units of ``together`` heads follow each other, the tiles with the most keys first; programs read the keys of these
    heads at a time. If a head has fewer units than tiles, the units are pairs of a tile of many keys and one of few.
    """
    number = turn * programs + _place(turn, program, programs)
    of_these = number % (together * units_per_head)
    head = number // (together * units_per_head) * together + of_these % together
    other = of_these // together
    tile = row_tiles - 1 - other
    has_other = (units_per_head < row_tiles) & (other < tile)

    return head, tile, other, has_other


@gluon.jit
def _blocks(first_row, rows, L, S, shift, CAUSAL: gl.constexpr, BLOCK_N: gl.constexpr):
    """Return how many blocks of keys a tile of rows walks, at least one, and how many of these it sees whole."""
    stop = S
    seen = S

    if CAUSAL:
        stop = gl.minimum(S, gl.minimum(first_row + rows, L) + shift)
        seen = gl.minimum(S, first_row + shift + 1)

    return gl.maximum(gl.cdiv(stop, BLOCK_N), 1), gl.maximum(seen, 0) // BLOCK_N


@gluon.jit
def _load(
    given,
    CAUSAL: gl.constexpr,
    BLOCK_N: gl.constexpr,
    STAGES: gl.constexpr,
    GROUPS: gl.constexpr,
    TILES: gl.constexpr,
):
    """Run the loading warp: load the queries of each tile, then its keys and values, the last block first."""
    tensors, memory, barriers, sizes, _given_mask, _scale = given
    query, key, value, _output = tensors
    queries, keys, values = memory
    query_full, query_empty, key_full, key_empty, value_full, value_empty, _turns = barriers
    heads, group, L, S, shift, units, units_per_head, row_tiles, together = sizes
    tiles_taken = 0
    taken = 0

    program, programs = gl.program_id(0), gl.num_programs(0)

    for own_turn in range(_count(program, programs, units)):
        head_of_all, tile, other, has_other = _unit(own_turn, program, programs, units_per_head, row_tiles, together)
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
    """Reshape (ROWS, N) to (ROWS, N / 8, 8). A thread holds two columns of every eight of a product's result, so it
    holds all elements along dim 1 afterwards."""
    return x.reshape([x.shape[0], x.shape[1] // 8, 8])


@gluon.jit
def _mask(
    given,
    first_row,
    first_key,
    L,
    S,
    layout: gl.constexpr,
    BLOCK_N: gl.constexpr,
    FORM: gl.constexpr,
    EDGE: gl.constexpr,
):
    """Return the mask for (ROWS, BLOCK_N) scores, or for (1, BLOCK_N) if all rows share it: numbers to add, or whether
    scores count. Without a mask the result is unused."""
    pointer, stride_l, stride_s = given

    if FORM[0] == NO_MASK:
        return 0
    else:
        keys = first_key + gl.arange(0, BLOCK_N, gl.SliceLayout(0, layout))
        places = keys.to(gl.int64) * stride_s

        if FORM[3]:
            rows = first_row + gl.arange(0, ROWS, gl.SliceLayout(1, layout))
            inside = (rows < L)[:, None] & (keys < S)[None, :] if EDGE else (rows < L)[:, None]
            return gl.load(pointer + ((rows.to(gl.int64) * stride_l)[:, None] + places[None, :]), mask=inside, other=0)
        else:
            found = gl.load(pointer + places, mask=keys < S, other=0) if EDGE else gl.load(pointer + places)
            return found[None, :]


@gluon.jit
def _weigh(scores, maximum, normalizer, scale, last_key, bias, KIND: gl.constexpr, EDGE: gl.constexpr):
    """Compute the weights of a block of scores, the factor for the sums so far, and the new maximum and normalizer.

    The maximum is in units of log2, or in natural units if KIND is a float mask: the least finite number, of which many
    masks consist, would overflow in units of log2. In the blocks of an ``EDGE``, only the keys up to ``last_key``,
    counted from the first one of the block, take part. ``normalizer`` is (ROWS, 8), the sums of ``_eighths``. ``bias``
    is the return value of ``_mask``.
    """
    row_layout: gl.constexpr = gl.SliceLayout(1, scores.type.layout)
    UNIT: gl.constexpr = 1.4426950408889634 if KIND == FLOAT_MASK else 1.0

    if KIND == FLOAT_MASK:
        scores = scores * scale + bias.to(gl.float32)
        scale = 1.0
    elif KIND == BOOL_MASK:
        scores = gl.where(gl.broadcast(bias != 0, scores)[0], scores, float("-inf"))

    if EDGE:
        keys = gl.arange(0, scores.shape[1], gl.SliceLayout(0, scores.type.layout))
        scores = gl.where(keys[None, :] <= last_key[:, None], scores, float("-inf"))

    highest = gl.convert_layout(gl.max(gl.max(_eighths(scores), 1), 1), row_layout)
    largest = gl.maximum(maximum, highest * scale)
    # Before any key took part, the difference of two infinities must be avoided.
    safe = gl.where(largest == float("-inf"), 0.0, largest)
    weights = _exp2((scores * scale - safe[:, None]) * UNIT)
    shrunk = _exp2((maximum - safe) * UNIT)
    sums = gl.sum(_eighths(weights), 1)
    normalizer = normalizer * gl.convert_layout(shrunk, gl.SliceLayout(1, sums.type.layout))[:, None] + sums

    return weights, shrunk, largest, normalizer


@gluon.jit
def _of_head(given, batch, head, FORM: gl.constexpr):
    """Return a head's mask as a pointer and two strides."""
    pointer, stride_b, stride_h, stride_l, stride_s = given
    pointer += (batch.to(gl.int64) * stride_b + head.to(gl.int64) * stride_h) * FORM[1]
    step = 1 if FORM[2] else stride_s
    return pointer, stride_l.to(gl.int64) * FORM[1], step


@gluon.jit
def _multiply(queries, keys, nothing, TAKEN: gl.constexpr):
    """Start the product of (ROWS, BLOCK_E) queries and (BLOCK_E, BLOCK_N) keys, over the first TAKEN dims."""
    if queries.shape[1] == TAKEN:
        return warpgroup_mma(queries, keys, nothing, use_acc=False, is_async=True)
    else:
        HALF: gl.constexpr = queries.shape[1] // 2
        REST: gl.constexpr = TAKEN - HALF
        scores = warpgroup_mma(queries.slice(0, HALF, 1), keys.slice(0, HALF, 0), nothing, use_acc=False, is_async=True)
        return warpgroup_mma(queries.slice(HALF, REST, 1), keys.slice(HALF, REST, 0), scores, is_async=True)


@gluon.jit
def _attend_rows(
    given,
    saved,
    CAUSAL: gl.constexpr,
    BLOCK_N: gl.constexpr,
    BLOCK_E: gl.constexpr,
    STAGES: gl.constexpr,
    GROUPS: gl.constexpr,
    TILES: gl.constexpr,
    TAKEN: gl.constexpr,
    FORM: gl.constexpr,
    SAVE: gl.constexpr,
    GROUP: gl.constexpr,
):
    """Run a group of warps: compute its rows of each tile."""
    tensors, memory, barriers, sizes, given_mask, scale = given
    query, _key, _value, output = tensors
    queries, keys, values = memory
    query_full, query_empty, key_full, key_empty, value_full, value_empty, turns = barriers
    heads, group, L, S, shift, units, units_per_head, row_tiles, together = sizes
    dtype: gl.constexpr = query.dtype
    # Layouts: scores and the output, 16 rows to a warp; and weights, as an operand that products take from registers.
    scores_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    output_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_E, 16])
    weights_layout: gl.constexpr = gl.DotOperandLayout(0, output_layout, 2)
    row_layout: gl.constexpr = gl.SliceLayout(1, scores_layout)
    output_row_layout: gl.constexpr = gl.SliceLayout(1, output_layout)
    # One of two groups at a time starts products: 4 x 32 x 4096 x 64, causal, takes 610 us instead of 624.
    TURNS: gl.constexpr = GROUPS == 2
    LEADS: gl.constexpr = 1 if GROUP == 0 else 0
    NEXT: gl.constexpr = (GROUP + 1) % GROUPS
    nothing = gl.zeros([ROWS, BLOCK_N], gl.float32, scores_layout)
    tiles_taken = 0
    taken = 0
    turn = 0

    program, programs = gl.program_id(0), gl.num_programs(0)

    for own_turn in range(_count(program, programs, units)):
        head_of_all, tile, other, has_other = _unit(own_turn, program, programs, units_per_head, row_tiles, together)

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

            mask = _of_head(given_mask, head_of_all // (heads * group), head_of_all % (heads * group), FORM)

            # The last block may contain keys that do not take part.
            block = count - 1
            stage = taken % STAGES
            mbarrier.wait(query_full.index(slot), tiles_taken // TILES % 2)
            mbarrier.wait(key_full.index(stage), taken // STAGES % 2)
            own_keys = keys.index(stage).reshape([BLOCK_N, BLOCK_E]).permute((1, 0))

            if TURNS:
                mbarrier.wait(turns.index(GROUP), (turn + LEADS) % 2)
                turn += 1

            scores = _multiply(own_queries, own_keys, nothing, TAKEN)

            if TURNS:
                mbarrier.arrive(turns.index(NEXT), count=1)

            if TILES > 1:
                # The output of the last tile has been read by now.
                tma.store_wait(0)
                last_slot = (tiles_taken + TILES - 1) % TILES * GROUPS + GROUP
                mbarrier.arrive(query_empty.index(last_slot), count=1, pred=tiles_taken > 0)

            bias = _mask(mask, first_row, block * BLOCK_N, L, S, scores_layout, BLOCK_N, FORM, True)
            scores = warpgroup_mma_wait(0, deps=[scores])
            mbarrier.arrive(key_empty.index(stage), count=1)
            weights, shrunk, maximum, normalizer = _weigh(
                scores, maximum, normalizer, scale, last_key - block * BLOCK_N, bias, FORM[0], True
            )
            mbarrier.wait(value_full.index(stage), taken // STAGES % 2)

            # The weights of a block are multiplied while those of the next block are computed. Between iterations they
            # are in float32: half types would be unpacked from their pairs and packed again.
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

                    scores = _multiply(own_queries, own_keys, nothing, TAKEN)
                    operand = gl.convert_layout(weights.to(dtype), weights_layout)
                    product = warpgroup_mma(operand, own_values, accumulator, is_async=True)

                    if TURNS:
                        mbarrier.arrive(turns.index(NEXT), count=1)

                    bias = _mask(mask, first_row, block * BLOCK_N, L, S, scores_layout, BLOCK_N, FORM, EDGE == 1)
                    scores = warpgroup_mma_wait(1, deps=[scores])
                    mbarrier.arrive(key_empty.index(next_stage), count=1)
                    weights, shrunk, maximum, normalizer = _weigh(
                        scores, maximum, normalizer, scale, last_key - block * BLOCK_N, bias, FORM[0], EDGE == 1
                    )
                    # The wait is here, though it could be in the next iteration: ptxas moves the product's wait to
                    # before the weights (4 x 32 x 4096 x 64, causal: 669 us instead of 624), unless a loop is in
                    # between.
                    mbarrier.wait(value_full.index(next_stage), next_parity)
                    # Naming the operand keeps its registers untouched while the product reads them.
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

            # A row to which no key took part is 0. The output goes through the shared memory of the queries.
            total = gl.sum(normalizer, 1)

            if SAVE:
                rows = first_row + gl.arange(0, ROWS, row_layout)
                every_row = head_of_all.to(gl.int64) * L + rows
                maxima, normalizers = saved
                gl.store(maxima + every_row, maximum, mask=rows < L)
                gl.store(normalizers + every_row, gl.convert_layout(total, row_layout), mask=rows < L)

            total = gl.convert_layout(total, output_row_layout)
            accumulator = accumulator * (1.0 / gl.where(total == 0, 1.0, total))[:, None]
            own_queries.store(accumulator.to(dtype))
            fence_async_shared()
            place = [head_of_all // (heads * group), head_of_all % (heads * group), first_row, 0]
            tma.async_copy_shared_to_global(output, place, queries.index(slot))
            tiles_taken += 1

            if TILES == 1:
                tma.store_wait(0)
                mbarrier.arrive(query_empty.index(slot), count=1)

    tma.store_wait(0)


@gluon.jit(
    do_not_specialize=[
        *("heads", "group", "L", "S", "shift", "units", "units_per_head", "row_tiles", "together"),
        *("stride_mb", "stride_mh", "stride_ml", "stride_ms"),
    ]
)
def attend(
    query,
    key,
    value,
    output,
    maxima,
    normalizers,
    mask,
    stride_mb,
    stride_mh,
    stride_ml,
    stride_ms,
    heads,
    group,
    L,
    S,
    shift,
    units,
    units_per_head,
    row_tiles,
    together,
    scale,
    CAUSAL: gl.constexpr,
    BLOCK_N: gl.constexpr,
    BLOCK_E: gl.constexpr,
    STAGES: gl.constexpr,
    GROUPS: gl.constexpr,
    TILES: gl.constexpr,
    TAKEN: gl.constexpr,
    MASK: gl.constexpr,
    MASK_UNIT: gl.constexpr,
    UNIT_MASK: gl.constexpr,
    EACH_ROW: gl.constexpr,
    SAVE: gl.constexpr,
):
    """Compute attention for this program's units of work: see ``_count`` and ``_unit``.

    :param query: A tensor descriptor of (batch, heads * group, L, E) with blocks of (1, 1, ROWS, BLOCK_E), with E at
        most BLOCK_E; dims beyond E are read as zeros and not written. ``output`` likewise.
    :param key: A descriptor of (batch, heads, S, E), S at least 1, with blocks of (1, 1, BLOCK_N, BLOCK_E); ``value``
        likewise.
    :param maxima: With SAVE, (batch, heads * group, L), float32, contiguous: the largest scores; ``normalizers``
        likewise the sums of weights.
    :param mask: (batch, heads * group, L, S) if there is one: bytes, or floats to add. EACH_ROW: rows differ.
    :param heads: The number of key/value heads; ``group`` query heads read each.
    :param shift: Row l sees the keys up to l + shift, if CAUSAL.
    :param units: The number of units of all heads. A unit is a tile of rows, or a pair of tiles: see ``_unit``.
    :param row_tiles: The number of tiles of a head, of GROUPS * ROWS rows each.
    :param together: The number of heads whose units alternate: a divisor of that of all heads.
    :param scale: The positive factor that brings scores to units of log2, or with a float mask to natural units.
    :param MASK_UNIT: A divisor of the mask's strides except that of the keys; strides are passed divided by it.
        UNIT_MASK: the stride of the keys is 1.
    :param STAGES: The number of blocks of keys, and of values, that shared memory holds.
    :param GROUPS: The number of groups of warps: two or four.
    :param TILES: The number of row tiles whose queries shared memory holds. With two, while one tile is computed, the
        output of the last tile, which takes the place of its queries, is stored, and the queries of the next tile are
        loaded. 4 x 32 x 4096 x 64, causal, takes 624 us so, and 655 with one.
    :param TAKEN: The number of dims of BLOCK_E over which queries and keys are multiplied: all, or a half and a part of
        the other half.
    """
    memory = (
        gl.allocate_shared_memory(query.dtype, [TILES * GROUPS, 1, 1, ROWS, BLOCK_E], query.layout),
        gl.allocate_shared_memory(key.dtype, [STAGES, 1, 1, BLOCK_N, BLOCK_E], key.layout),
        gl.allocate_shared_memory(value.dtype, [STAGES, 1, 1, BLOCK_N, BLOCK_E], value.layout),
    )
    # The loading warp fills memory; the group whose queries it holds, or all groups, empty it.
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
    sizes = (heads, group, L, S, shift, units, units_per_head, row_tiles, together)
    tensors = (query, key, value, output)
    given_mask = (mask, stride_mb, stride_mh, stride_ml, stride_ms)
    FORM: gl.constexpr = (MASK, MASK_UNIT, UNIT_MASK, EACH_ROW)
    given = (tensors, memory, barriers, sizes, given_mask, scale)
    saved = (maxima, normalizers)

    # The registers per thread of all groups except the first, which gets the rest: as many as another group.
    if GROUPS == 2:
        gl.warp_specialize(
            [
                (_attend_rows, (given, saved, CAUSAL, BLOCK_N, BLOCK_E, STAGES, GROUPS, TILES, TAKEN, FORM, SAVE, 0)),
                (_attend_rows, (given, saved, CAUSAL, BLOCK_N, BLOCK_E, STAGES, GROUPS, TILES, TAKEN, FORM, SAVE, 1)),
                (_load, (given, CAUSAL, BLOCK_N, STAGES, GROUPS, TILES)),
            ],
            [4, 1],
            [240, 24],
        )
    else:
        gl.warp_specialize(
            [
                (_attend_rows, (given, saved, CAUSAL, BLOCK_N, BLOCK_E, STAGES, GROUPS, TILES, TAKEN, FORM, SAVE, 0)),
                (_attend_rows, (given, saved, CAUSAL, BLOCK_N, BLOCK_E, STAGES, GROUPS, TILES, TAKEN, FORM, SAVE, 1)),
                (_attend_rows, (given, saved, CAUSAL, BLOCK_N, BLOCK_E, STAGES, GROUPS, TILES, TAKEN, FORM, SAVE, 2)),
                (_attend_rows, (given, saved, CAUSAL, BLOCK_N, BLOCK_E, STAGES, GROUPS, TILES, TAKEN, FORM, SAVE, 3)),
                (_load, (given, CAUSAL, BLOCK_N, STAGES, GROUPS, TILES)),
            ],
            [4, 4, 4, 1],
            [112, 112, 112, 24],
        )
