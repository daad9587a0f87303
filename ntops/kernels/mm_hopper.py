"""``a @ b`` of two matrices, or of each pair of a batch, on Hopper, in Gluon, with explicit work for every warp; and
the first half of a gated MLP with few rows.

``mm.premake`` is the NineToothed version, which runs everywhere. It computes one tile in each program, so that the
tensor cores wait at the beginning and at the end of every tile. Here a program computes tiles one after the other: it
has one to three groups of four warps, which multiply and store, and one warp that makes the Tensor Memory Accelerator
fetch the next operands. Triton's own compiler has the same warps do both.

Triton's tensors have sizes that are powers of two. A tile may have two blocks of columns (144 = 128 + 16), each with
its own sums: such tiles fill the last wave where a power of two leaves it nearly empty.

One file: all of it is one kernel, whose warps share barriers and memory.

Speed relative to cuBLAS on an H200 (Triton 3.6, bf16 except TF32; medians of interleaved runs), beside the faster one
of the NineToothed version and a Triton kernel with tensor descriptors:

===================================== ==== =====
                                      this plain
===================================== ==== =====
4096 x 4096 x 4096                    1.00  0.99
8192 x 8192 x 8192                    1.03  1.01
4096 x 4096 x 4096, TF32              1.01  0.73
128 x 4096 x 4096, TF32               1.09     -
1024 x 1024 x 1024, TF32              1.01     -
16 products of 1024 x 1024 x 1024     1.02  0.98
128 products of 2048 x 128 x 2048     0.98  0.94
1024 x 1024 x 1024                    0.99  0.69
128 x 4096 x 4096                     1.09  0.73
128 x 8192 x 28672                    1.75  1.59
16 x 4096 x 4096                      1.04  0.90
===================================== ==== =====
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

from ntops.kernels.hopper import activated, make_barriers, place_of

NOTHING = gl.constexpr(0)
"""The kind of addend: NOTHING; a ROW for all rows; a COLUMN for all columns; or a MATRIX."""
ROW = gl.constexpr(1)
COLUMN = gl.constexpr(2)
MATRIX = gl.constexpr(3)


@gluon.jit
def _load(given, TURNED: gl.constexpr, GATED: gl.constexpr, GROUPS: gl.constexpr, STAGES: gl.constexpr):
    """Run the loading warp: in each step along K load the rows of each group, and the columns for all. With ``GATED``,
    load the rows of a second left factor, too."""
    tensors, memory, barriers, sizes, steps_ab = given
    a, b, _output, up, more = tensors
    lefts, rights, _results, more_memory = memory
    full, empty, _arrived = barriers
    tiles, tiles_m, tiles_n, steps, apart = sizes
    step_a, step_b = steps_ab
    FACTORS: gl.constexpr = 2 if GATED else 1
    ROWS: gl.constexpr = a.block_type.shape[2 if TURNED[0] else 1]
    COLUMNS: gl.constexpr = b.block_type.shape[1 if TURNED[1] else 2]
    MORE: gl.constexpr = more[0].block_type.shape[1 if TURNED[1] else 2] if len(more) else 0
    BYTES: gl.constexpr = GROUPS * FACTORS * a.block_type.nbytes + b.block_type.nbytes * (COLUMNS + MORE) // COLUMNS
    BLOCK_K: gl.constexpr = a.block_type.shape[1 if TURNED[0] else 2]
    taken = 0

    for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
        batch, tile_m, tile_n = place_of(tile, tiles_m, tiles_n)
        batch_a = batch * step_a
        batch_b = batch * step_b
        n = tile_n * (COLUMNS + MORE)

        for step in range(steps):
            k = (batch * apart + step) * BLOCK_K
            stage = taken % STAGES
            ready = full.index(stage)
            mbarrier.wait(empty.index(stage), (taken // STAGES + 1) % 2)
            mbarrier.expect(ready, BYTES)

            for i in gl.static_range(GROUPS):
                m = (tile_m * GROUPS + i) * ROWS
                place = [batch_a, k, m] if TURNED[0] else [batch_a, m, k]
                left = (stage * GROUPS + i) * FACTORS
                tma.async_copy_global_to_shared(a, place, ready, lefts.index(left))

                if GATED:
                    tma.async_copy_global_to_shared(up, place, ready, lefts.index(left + 1))

            place = [batch_b, n, k] if TURNED[1] else [batch_b, k, n]
            tma.async_copy_global_to_shared(b, place, ready, rights.index(stage))

            if MORE:
                place = [batch_b, n + COLUMNS, k] if TURNED[1] else [batch_b, k, n + COLUMNS]
                tma.async_copy_global_to_shared(more[0], place, ready, more_memory[0].index(stage))

            taken += 1


@gluon.jit
def _matrix(memory, IS_TURNED: gl.constexpr):
    """Return the matrix of a tile in shared memory."""
    matrix = memory.reshape([memory.shape[1], memory.shape[2]])
    return matrix.permute((1, 0)) if IS_TURNED else matrix


@gluon.jit
def _part(tile, PARTS: gl.constexpr, PART: gl.constexpr):
    """Return the PART-th of PARTS parts of a tile's columns: 1, or 2 or 4, for which threads hold all columns of some
    rows."""
    if PARTS == 1:
        return tile
    else:
        first, second = gl.split(tile.reshape([tile.shape[0], 2, tile.shape[1] // 2]).permute((0, 2, 1)))
        return _part(second if PART >= PARTS // 2 else first, PARTS // 2, PART % (PARTS // 2))


@gluon.jit
def _fetch(added, memory, ready, batch, m, n, IS_TURNED: gl.constexpr):
    """Start fetching values to add, after stores have read the shared memory that they go to."""
    tma.store_wait(0)
    mbarrier.expect(ready, added.block_type.nbytes)
    tma.async_copy_global_to_shared(added, [batch, n, m] if IS_TURNED else [batch, m, n], ready, memory)


@gluon.jit
def _store(output, memory, values, batch, m, n, IS_TURNED: gl.constexpr, UNIT: gl.constexpr):
    """Start storing values: by a descriptor, after earlier stores have read the shared memory that they go through; or
    each thread its own."""
    if UNIT:
        pointer, strides, M, N = output
        stride_b, stride_m, stride_n = strides
        layout: gl.constexpr = values.type.layout
        rows = m + gl.arange(0, values.shape[0], gl.SliceLayout(1, layout))
        columns = n + gl.arange(0, values.shape[1], gl.SliceLayout(0, layout))
        # The compiler knows a product with UNIT for a multiple of it.
        across = columns if UNIT > 1 else columns.to(gl.int64) * stride_n
        down = batch.to(gl.int64) * (stride_b * UNIT) + rows.to(gl.int64) * (stride_m * UNIT)
        stored = (rows < M)[:, None] & (columns < N // UNIT * UNIT)[None, :]
        gl.store(pointer + down[:, None] + across[None, :], values.to(pointer.dtype.element_ty), mask=stored)
    else:
        tma.store_wait(0)
        _matrix(memory, IS_TURNED).store(values.to(output.dtype))
        fence_async_shared()
        tma.async_copy_shared_to_global(output, [batch, n, m] if IS_TURNED else [batch, m, n], memory)


@gluon.jit
def _finish(
    output,
    own,
    ready,
    sums,
    addend,
    place,
    fetched,
    SCALED: gl.constexpr,
    ADDED: gl.constexpr,
    IS_TURNED: gl.constexpr,
    UNIT: gl.constexpr,
):
    """Scale the sums of a block of columns, add the addend, and store them. Return ``fetched`` as it is then.

    :param addend: The addend, which is a descriptor of a MATRIX, or the loaded values of a ROW or COLUMN; then
        ``alpha`` and ``beta``.
    :param fetched: The number of blocks of a MATRIX that were fetched; the phase of ``ready`` follows from it.
    """
    added, alpha, beta = addend
    batch, first_m, first_n = place

    if UNIT and ADDED != MATRIX:
        WIDTH: gl.constexpr = sums.shape[1]
    else:
        like = added if ADDED == MATRIX else output
        WIDTH: gl.constexpr = like.block_type.shape[1 if IS_TURNED else 2]

    PARTS: gl.constexpr = sums.shape[1] // WIDTH

    if SCALED:
        sums = alpha.to(gl.float32) * sums

    if ADDED == ROW:
        row = gl.convert_layout(added.to(gl.float32), gl.SliceLayout(0, sums.type.layout))
        sums = gl.fma(beta.to(gl.float32), row[None, :], sums)
    elif ADDED == COLUMN:
        column = gl.convert_layout(added.to(gl.float32), gl.SliceLayout(1, sums.type.layout))
        sums = gl.fma(beta.to(gl.float32), column[:, None], sums)

    for part in gl.static_range(PARTS):
        values = _part(sums, PARTS, part)
        n = first_n + part * WIDTH

        if ADDED == MATRIX:
            mbarrier.wait(ready, fetched % 2)
            fetched += 1
            others = _matrix(own, IS_TURNED).load(values.type.layout)
            values = gl.fma(beta.to(gl.float32), others.to(gl.float32), values)

        _store(output, own, values, batch, first_m, n, IS_TURNED, UNIT)

        if ADDED == MATRIX and part + 1 < PARTS:
            _fetch(added, own, ready, batch, first_m, n + WIDTH, IS_TURNED)

    return fetched


@gluon.jit
def _multiply(
    given,
    addend,
    TURNED: gl.constexpr,
    SCALED: gl.constexpr,
    ADDED: gl.constexpr,
    ACTIVATION: gl.constexpr,
    UNIT: gl.constexpr,
    GROUPS: gl.constexpr,
    STAGES: gl.constexpr,
    GROUP: gl.constexpr,
):
    """Run a group of warps: compute its rows of each tile."""
    tensors, memory, barriers, sizes, _steps_ab = given
    a, b, output, added, more = tensors
    lefts, rights, results, more_memory = memory
    full, empty, arrived = barriers
    tiles, tiles_m, tiles_n, steps, _apart = sizes
    M, N, stride_m, stride_n, alpha, beta = addend
    GATED: gl.constexpr = ACTIVATION != ""
    FACTORS: gl.constexpr = 2 if GATED else 1
    ROWS: gl.constexpr = a.block_type.shape[2 if TURNED[0] else 1]
    COLUMNS: gl.constexpr = b.block_type.shape[1 if TURNED[1] else 2]
    MORE: gl.constexpr = more[0].block_type.shape[1 if TURNED[1] else 2] if len(more) else 0
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, COLUMNS, 256 // a.dtype.primitive_bitwidth])
    # The tensor cores take 32-bit factors from shared memory with K innermost only; from registers in any layout.
    FROM_REGISTERS: gl.constexpr = a.dtype == gl.float32
    operand_layout: gl.constexpr = gl.DotOperandLayout(0, layout, 1)
    own, ready = results.index(GROUP), arrived.index(GROUP)
    taken = 0
    fetched = 0

    if MORE:
        more_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, MORE, 16])
        more_own = more_memory[1].index(GROUP)

    for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
        batch, tile_m, tile_n = place_of(tile, tiles_m, tiles_n)
        first_m = (tile_m * GROUPS + GROUP) * ROWS
        first_n = tile_n * (COLUMNS + MORE)
        m = first_m + gl.arange(0, ROWS, gl.SliceLayout(1, layout))
        n = first_n + gl.arange(0, COLUMNS, gl.BlockedLayout([1], [32], [4], [0]))
        sums = gl.zeros([ROWS, COLUMNS], gl.float32, layout)
        values = added

        if GATED:
            others = gl.zeros([ROWS, COLUMNS], gl.float32, layout)
        elif MORE:
            others = gl.zeros([ROWS, MORE], gl.float32, more_layout)

        # These arrive while the product is computed.
        if ADDED == ROW:
            values = gl.load(added + n.to(gl.int64) * stride_n, mask=n < N, other=0)
        elif ADDED == COLUMN:
            values = gl.load(added + m.to(gl.int64) * stride_m, mask=m < M, other=0)
        elif ADDED == MATRIX:
            _fetch(added, own, ready, batch, first_m, first_n, TURNED[2])

        if FROM_REGISTERS:
            # The left factor of the next step is read while the tensor cores work on this one.
            mbarrier.wait(full.index(taken % STAGES), taken // STAGES % 2)
            left = _matrix(lefts.index(taken % STAGES * GROUPS + GROUP), TURNED[0]).load(operand_layout)

            for _step in range(1, steps):
                stage = taken % STAGES
                taken += 1
                next_stage = taken % STAGES
                product = warpgroup_mma(left, _matrix(rights.index(stage), TURNED[1]), sums, is_async=True)
                mbarrier.wait(full.index(next_stage), taken // STAGES % 2)
                next_left = _matrix(lefts.index(next_stage * GROUPS + GROUP), TURNED[0]).load(operand_layout)
                # Naming the registers keeps them untouched while the product reads them.
                sums, left = warpgroup_mma_wait(0, deps=[product, left])
                mbarrier.arrive(empty.index(stage), count=1)
                left = next_left

            product = warpgroup_mma(left, _matrix(rights.index(taken % STAGES), TURNED[1]), sums, is_async=True)
            sums, left = warpgroup_mma_wait(0, deps=[product, left])
            taken += 1
        else:
            for step in range(steps):
                stage = taken % STAGES
                mbarrier.wait(full.index(stage), taken // STAGES % 2)
                left = (stage * GROUPS + GROUP) * FACTORS
                right = _matrix(rights.index(stage), TURNED[1])
                product = warpgroup_mma(_matrix(lefts.index(left), TURNED[0]), right, sums, is_async=True)

                # When a product begins, the previous one has read its factors.
                if GATED:
                    other = warpgroup_mma(_matrix(lefts.index(left + 1), TURNED[0]), right, others, is_async=True)
                    sums, others = warpgroup_mma_wait(2, deps=[product, other])
                elif MORE:
                    right = _matrix(more_memory[0].index(stage), TURNED[1])
                    other = warpgroup_mma(_matrix(lefts.index(left), TURNED[0]), right, others, is_async=True)
                    sums, others = warpgroup_mma_wait(2, deps=[product, other])
                else:
                    sums = warpgroup_mma_wait(1, deps=[product])

                mbarrier.arrive(empty.index((taken + STAGES - 1) % STAGES), count=1, pred=step > 0)
                taken += 1

            if GATED or MORE:
                sums, others = warpgroup_mma_wait(0, deps=[sums, others])
            else:
                sums = warpgroup_mma_wait(0, deps=[sums])

        mbarrier.arrive(empty.index((taken + STAGES - 1) % STAGES), count=1)

        if GATED:
            sums = activated(sums, ACTIVATION) * others

        place = (batch, first_m, first_n)
        fetched = _finish(
            output, own, ready, sums, (values, alpha, beta), place, fetched, SCALED, ADDED, TURNED[2], UNIT
        )

        if MORE:
            first_n += COLUMNS

            if ADDED == ROW:
                n = first_n + gl.arange(0, MORE, gl.BlockedLayout([1], [32], [4], [0]))
                values = gl.load(added + n.to(gl.int64) * stride_n, mask=n < N, other=0)
            elif ADDED == MATRIX:
                values = more[2]
                _fetch(values, more_own, ready, batch, first_m, first_n, TURNED[2])

            place = (batch, first_m, first_n)
            fetched = _finish(
                more[1], more_own, ready, others, (values, alpha, beta), place, fetched, SCALED, ADDED, TURNED[2], UNIT
            )

    tma.store_wait(0)


@gluon.jit
def _memory(tensor, NUMBER: gl.constexpr):
    """Allocate shared memory for tiles of a descriptor's tensor."""
    shape: gl.constexpr = tensor.block_type.shape
    return gl.allocate_shared_memory(tensor.dtype, [NUMBER, 1, shape[1], shape[2]], tensor.layout)


@gluon.jit
def _passed(output, added, unused, ADDED: gl.constexpr, UNIT: gl.constexpr, NUMBER: gl.constexpr):
    """Return the memory that results pass through, which a descriptor stores, and a MATRIX; ``unused`` if none do."""
    if ADDED == MATRIX:
        return _memory(added, NUMBER)
    elif UNIT:
        return unused
    else:
        return _memory(output, NUMBER)


@gluon.jit(
    do_not_specialize=[
        "M",
        "N",
        "tiles",
        "tiles_m",
        "tiles_n",
        "steps",
        "apart",
        "step_a",
        "step_b",
        "stride_ob",
        "stride_om",
        "stride_on",
    ]
)
def multiply(
    output,
    a,
    b,
    added,
    more_b,
    more_output,
    more_added,
    M,
    N,
    tiles,
    tiles_m,
    tiles_n,
    steps,
    apart,
    step_a,
    step_b,
    stride_ob,
    stride_om,
    stride_on,
    stride_m,
    stride_n,
    alpha: gl.float64,
    beta: gl.float64,
    TURNED_A: gl.constexpr,
    TURNED_B: gl.constexpr,
    TURNED_OUTPUT: gl.constexpr,
    UNIT: gl.constexpr,
    SCALED: gl.constexpr,
    ADDED: gl.constexpr,
    ACTIVATION: gl.constexpr,
    GROUPS: gl.constexpr,
    STAGES: gl.constexpr,
    MORE: gl.constexpr,
):
    """Compute this program's tiles of ``output``: each program takes every so many tiles, from its own index on.

    :param output: A tensor descriptor of (batch, M, N), in blocks of (1, rows of a group of warps, columns of a tile or
        a quarter of them).
    :param a: A descriptor of (batch, M, K), in blocks of (1, rows of a group of warps, block of K). Elements beyond the
        end are zero.
    :param b: A descriptor of (batch, K, N), in blocks of (1, block of K, columns of a tile). In TF32, K is innermost.
    :param added: A MATRIX as a descriptor like ``output``'s; a ROW or COLUMN as (M, N) with strides ``stride_m`` and
        ``stride_n``. With an ACTIVATION, a descriptor of another left factor, like that of ``a``: the result is the
        activated product times the product with this factor.
    :param more_b: With MORE, a descriptor of ``b`` in blocks of the tile's second block of columns; ``more_output``
        and, of a MATRIX, ``more_added`` likewise.
    :param tiles: The number of tiles of the batch; ``tiles_m`` down and ``tiles_n`` across in each matrix.
    :param steps: The number of blocks of K, at least one.
    :param apart: The blocks of K from the first of one product to that of the next: 0, or ``steps`` if the products are
        the parts of one. The last part may be shorter: elements beyond the end are zero.
    :param step_a: 1, or 0 if all products share one ``a``; ``step_b`` likewise.
    :param alpha: With SCALED, the factor of the product; ``beta`` is the factor of ``added``.
    :param UNIT: 0, or the number of adjacent elements that a thread stores, 1 or 2: ``output`` is a pointer then, whose
        strides are UNIT times ``stride_ob``, ``stride_om`` and, with 1, ``stride_on``; with 2 it is 1.
    :param TURNED_A: Whether the descriptor of ``a`` has it transposed, blocks included; TURNED flags of ``b`` and
        ``output`` likewise.
    :param ACTIVATION: "", or the activation of a gated MLP.
    :param GROUPS: The number of groups of warps: one, two or three.
    :param STAGES: The number of blocks of K that shared memory holds.
    :param MORE: Whether a tile has two blocks of columns.
    """
    TURNED: gl.constexpr = (TURNED_A, TURNED_B, TURNED_OUTPUT)
    GATED: gl.constexpr = ACTIVATION != ""
    gl.static_assert(not (MORE or GATED) or a.dtype != gl.float32, "of TF32 there is one block of columns, not gated")
    gl.static_assert(not (MORE and GATED), "a gated product has one block of columns")
    LEFTS: gl.constexpr = GROUPS * (2 if GATED else 1)

    target = (output, (stride_ob, stride_om, stride_on), M, N) if UNIT else output
    lefts = _memory(a, STAGES * LEFTS)
    rights = _memory(b, STAGES)
    more = ()
    more_memory = ()

    if MORE:
        more_target = target if UNIT else more_output
        more = (more_b, more_target, more_added) if ADDED == MATRIX else (more_b, more_target)
        more_rights = _memory(more_b, STAGES)
        more_memory = (more_rights, _passed(more_output, more_added, more_rights, ADDED, UNIT, GROUPS))

    memory = (lefts, rights, _passed(output, added, rights, ADDED, UNIT, GROUPS), more_memory)
    # The loading warp fills memory, and all groups empty it.
    barriers = (make_barriers(STAGES, 1), make_barriers(STAGES, GROUPS), make_barriers(GROUPS, 1))
    fence_async_shared()
    tensors = (a, b, target, added, more)
    sizes = (tiles, tiles_m, tiles_n, steps, apart)
    addend = (M, N, stride_m, stride_n, alpha, beta)
    given = (tensors, memory, barriers, sizes, (step_a, step_b))

    # The registers per thread of all groups except the first, which gets the rest.
    if GROUPS == 1:
        gl.warp_specialize(
            [
                (_multiply, (given, addend, TURNED, SCALED, ADDED, ACTIVATION, UNIT, GROUPS, STAGES, 0)),
                (_load, (given, TURNED, GATED, GROUPS, STAGES)),
            ],
            [1],
            [24],
        )
    elif GROUPS == 2:
        gl.warp_specialize(
            [
                (_multiply, (given, addend, TURNED, SCALED, ADDED, ACTIVATION, UNIT, GROUPS, STAGES, 0)),
                (_multiply, (given, addend, TURNED, SCALED, ADDED, ACTIVATION, UNIT, GROUPS, STAGES, 1)),
                (_load, (given, TURNED, GATED, GROUPS, STAGES)),
            ],
            [4, 1],
            [240, 24],
        )
    else:
        gl.warp_specialize(
            [
                (_multiply, (given, addend, TURNED, SCALED, ADDED, ACTIVATION, UNIT, GROUPS, STAGES, 0)),
                (_multiply, (given, addend, TURNED, SCALED, ADDED, ACTIVATION, UNIT, GROUPS, STAGES, 1)),
                (_multiply, (given, addend, TURNED, SCALED, ADDED, ACTIVATION, UNIT, GROUPS, STAGES, 2)),
                (_load, (given, TURNED, GATED, GROUPS, STAGES)),
            ],
            [4, 4, 1],
            [160, 160, 24],
        )
