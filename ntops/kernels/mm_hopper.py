"""``a @ b`` of two matrices, or of each two of a batch, on Hopper, in Gluon, with the work of every warp written out;
and the first half of a gated MLP, of few rows.

NineToothed's form of it is ``mm.premake``, which runs everywhere. It computes one tile in each program, so that the
matrix units wait at the beginning and at the end of every tile. Here a program computes tiles one after the other: it
has one or two groups of four warps, which multiply and store, and one warp that has the Tensor Memory Accelerator fetch
what they multiply next. Triton's own compiler has the same warps do both.

How many times as fast as cuBLAS on an H200 (Triton 3.6, bf16 but for TF32; medians of interleaved runs), beside the
faster one of NineToothed's form and a kernel in Triton with tensor descriptors, which was here before:

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
"""Is added to a product; or the same ROW to all rows, the same COLUMN to all columns, or a MATRIX."""
ROW = gl.constexpr(1)
COLUMN = gl.constexpr(2)
MATRIX = gl.constexpr(3)


@gluon.jit
def _load(given, TURNED: gl.constexpr, GATED: gl.constexpr, GROUPS: gl.constexpr, STAGES: gl.constexpr):
    """The warp that loads: for each step along K the rows of each group, and the columns of all. ``GATED``: the rows of
    a second left factor, too."""
    tensors, memory, barriers, sizes, steps_ab = given
    a, b, _output, up = tensors
    lefts, rights, _results = memory
    full, empty, _arrived = barriers
    tiles, tiles_m, tiles_n, steps = sizes
    step_a, step_b = steps_ab
    FACTORS: gl.constexpr = 2 if GATED else 1
    ROWS: gl.constexpr = a.block_type.shape[2 if TURNED[0] else 1]
    COLUMNS: gl.constexpr = b.block_type.shape[1 if TURNED[1] else 2]
    BLOCK_K: gl.constexpr = a.block_type.shape[1 if TURNED[0] else 2]
    taken = 0

    for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
        batch, tile_m, tile_n = place_of(tile, tiles_m, tiles_n)
        batch_a = batch * step_a
        batch_b = batch * step_b
        n = tile_n * COLUMNS

        for step in range(steps):
            k = step * BLOCK_K
            stage = taken % STAGES
            ready = full.index(stage)
            mbarrier.wait(empty.index(stage), (taken // STAGES + 1) % 2)
            mbarrier.expect(ready, GROUPS * FACTORS * a.block_type.nbytes + b.block_type.nbytes)

            for i in gl.static_range(GROUPS):
                m = (tile_m * GROUPS + i) * ROWS
                place = [batch_a, k, m] if TURNED[0] else [batch_a, m, k]
                left = (stage * GROUPS + i) * FACTORS
                tma.async_copy_global_to_shared(a, place, ready, lefts.index(left))

                if GATED:
                    tma.async_copy_global_to_shared(up, place, ready, lefts.index(left + 1))

            place = [batch_b, n, k] if TURNED[1] else [batch_b, k, n]
            tma.async_copy_global_to_shared(b, place, ready, rights.index(stage))
            taken += 1


@gluon.jit
def _matrix(memory, IS_TURNED: gl.constexpr):
    """Of a tile in shared memory, the matrix."""
    matrix = memory.reshape([memory.shape[1], memory.shape[2]])
    return matrix.permute((1, 0)) if IS_TURNED else matrix


@gluon.jit
def _part(tile, PARTS: gl.constexpr, PART: gl.constexpr):
    """Of the columns of a tile, the PART-th of as many PARTS: 1, or 2 or 4 of which threads have all of some rows."""
    if PARTS == 1:
        return tile
    else:
        first, second = gl.split(tile.reshape([tile.shape[0], 2, tile.shape[1] // 2]).permute((0, 2, 1)))
        return _part(second if PART >= PARTS // 2 else first, PARTS // 2, PART % (PARTS // 2))


@gluon.jit
def _fetch(added, memory, ready, batch, m, n, IS_TURNED: gl.constexpr):
    """Have values to add fetched, into the shared memory that others may still be stored from."""
    tma.store_wait(0)
    mbarrier.expect(ready, added.block_type.nbytes)
    tma.async_copy_global_to_shared(added, [batch, n, m] if IS_TURNED else [batch, m, n], ready, memory)


@gluon.jit
def _store(output, memory, values, batch, m, n, IS_TURNED: gl.constexpr):
    """Have values stored, out of shared memory that those before them may still be stored from."""
    tma.store_wait(0)
    _matrix(memory, IS_TURNED).store(values.to(output.dtype))
    fence_async_shared()
    tma.async_copy_shared_to_global(output, [batch, n, m] if IS_TURNED else [batch, m, n], memory)


@gluon.jit
def _multiply(
    given,
    addend,
    TURNED: gl.constexpr,
    SCALED: gl.constexpr,
    ADDED: gl.constexpr,
    ACTIVATION: gl.constexpr,
    GROUPS: gl.constexpr,
    STAGES: gl.constexpr,
    GROUP: gl.constexpr,
):
    """A group of warps: its rows of each tile."""
    tensors, memory, barriers, sizes, _steps_ab = given
    a, b, output, added = tensors
    lefts, rights, results = memory
    full, empty, arrived = barriers
    tiles, tiles_m, tiles_n, steps = sizes
    M, N, stride_m, stride_n, alpha, beta = addend
    GATED: gl.constexpr = ACTIVATION != ""
    FACTORS: gl.constexpr = 2 if GATED else 1
    ROWS: gl.constexpr = a.block_type.shape[2 if TURNED[0] else 1]
    COLUMNS: gl.constexpr = b.block_type.shape[1 if TURNED[1] else 2]
    WIDTH: gl.constexpr = output.block_type.shape[1 if TURNED[2] else 2]
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, COLUMNS, 256 // a.dtype.primitive_bitwidth])
    # The matrix units take 32-bit factors from memory with K innermost only; from registers in any layout.
    FROM_REGISTERS: gl.constexpr = a.dtype == gl.float32
    operand_layout: gl.constexpr = gl.DotOperandLayout(0, layout, 1)
    PARTS: gl.constexpr = COLUMNS // WIDTH
    own = results.index(GROUP)
    taken = 0
    fetched = 0

    for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
        batch, tile_m, tile_n = place_of(tile, tiles_m, tiles_n)
        first_m = (tile_m * GROUPS + GROUP) * ROWS
        first_n = tile_n * COLUMNS
        m = first_m + gl.arange(0, ROWS, gl.SliceLayout(1, layout))
        n = first_n + gl.arange(0, COLUMNS, gl.BlockedLayout([1], [32], [4], [0]))
        sums = gl.zeros([ROWS, COLUMNS], gl.float32, layout)

        if GATED:
            ups = gl.zeros([ROWS, COLUMNS], gl.float32, layout)

        # These arrive while the product is computed.
        if ADDED == ROW:
            values = gl.load(added + n.to(gl.int64) * stride_n, mask=n < N, other=0)
        elif ADDED == COLUMN:
            values = gl.load(added + m.to(gl.int64) * stride_m, mask=m < M, other=0)
        elif ADDED == MATRIX:
            _fetch(added, own, arrived.index(GROUP), batch, first_m, first_n, TURNED[2])

        if FROM_REGISTERS:
            # The left factor of the next step is read while the matrix units have that of this one.
            mbarrier.wait(full.index(taken % STAGES), taken // STAGES % 2)
            left = _matrix(lefts.index(taken % STAGES * GROUPS + GROUP), TURNED[0]).load(operand_layout)

            for _step in range(1, steps):
                stage = taken % STAGES
                taken += 1
                next_stage = taken % STAGES
                product = warpgroup_mma(left, _matrix(rights.index(stage), TURNED[1]), sums, is_async=True)
                mbarrier.wait(full.index(next_stage), taken // STAGES % 2)
                next_left = _matrix(lefts.index(next_stage * GROUPS + GROUP), TURNED[0]).load(operand_layout)
                # Registers are named so that they are left alone while the product reads them.
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

                # When a product begins, the one before is done with its factors.
                if GATED:
                    other = warpgroup_mma(_matrix(lefts.index(left + 1), TURNED[0]), right, ups, is_async=True)
                    sums, ups = warpgroup_mma_wait(2, deps=[product, other])
                else:
                    sums = warpgroup_mma_wait(1, deps=[product])

                mbarrier.arrive(empty.index((taken + STAGES - 1) % STAGES), count=1, pred=step > 0)
                taken += 1

            if GATED:
                sums, ups = warpgroup_mma_wait(0, deps=[sums, ups])
            else:
                sums = warpgroup_mma_wait(0, deps=[sums])

        mbarrier.arrive(empty.index((taken + STAGES - 1) % STAGES), count=1)

        if GATED:
            sums = activated(sums, ACTIVATION) * ups

        if SCALED:
            sums = alpha.to(gl.float32) * sums

        if ADDED == ROW:
            values = gl.convert_layout(beta.to(gl.float32) * values.to(gl.float32), gl.SliceLayout(0, layout))
            sums = values[None, :] + sums
        elif ADDED == COLUMN:
            sums = (beta.to(gl.float32) * values.to(gl.float32))[:, None] + sums

        for part in gl.static_range(PARTS):
            values = _part(sums, PARTS, part)
            n = first_n + part * WIDTH

            if ADDED == MATRIX:
                mbarrier.wait(arrived.index(GROUP), fetched % 2)
                fetched += 1
                others = _matrix(own, TURNED[2]).load(values.type.layout)
                values = beta.to(gl.float32) * others.to(gl.float32) + values

            _store(output, own, values, batch, first_m, n, TURNED[2])

            if ADDED == MATRIX and part + 1 < PARTS:
                _fetch(added, own, arrived.index(GROUP), batch, first_m, n + WIDTH, TURNED[2])

    tma.store_wait(0)


@gluon.jit
def _memory(tensor, NUMBER: gl.constexpr):
    """Shared memory for tiles of a descriptor's tensor."""
    shape: gl.constexpr = tensor.block_type.shape
    return gl.allocate_shared_memory(tensor.dtype, [NUMBER, 1, shape[1], shape[2]], tensor.layout)


@gluon.jit(do_not_specialize=["M", "N", "tiles", "tiles_m", "tiles_n", "steps", "step_a", "step_b"])
def multiply(
    output,
    a,
    b,
    added,
    M,
    N,
    tiles,
    tiles_m,
    tiles_n,
    steps,
    step_a,
    step_b,
    stride_m,
    stride_n,
    alpha: gl.float64,
    beta: gl.float64,
    TURNED_A: gl.constexpr,
    TURNED_B: gl.constexpr,
    TURNED_OUTPUT: gl.constexpr,
    SCALED: gl.constexpr,
    ADDED: gl.constexpr,
    ACTIVATION: gl.constexpr,
    GROUPS: gl.constexpr,
    STAGES: gl.constexpr,
):
    """Each program computes tiles of ``output`` one after the other: those of its number, counted round.

    :param output: A tensor descriptor of (batch, M, N), in blocks of (1, rows of a group of warps, columns of a tile or
        a quarter of them).
    :param a: One of (batch, M, K), in blocks of (1, rows of a group of warps, block of K). What lies beyond the end is
        zero.
    :param b: One of (batch, K, N), in blocks of (1, block of K, columns of a tile). In TF32, K is innermost.
    :param added: A MATRIX by a descriptor like ``output``'s; a ROW or COLUMN as (M, N) of the strides ``stride_m`` and
        ``stride_n``. With an ACTIVATION a descriptor like that of ``a``, of another left factor: the result is the
        activated product times the product with that one.
    :param tiles: Of all the batch; ``tiles_m`` down and ``tiles_n`` across in each matrix.
    :param steps: Blocks of K, one at least.
    :param step_a: 1, or 0 where all products have one ``a``; ``step_b`` likewise.
    :param alpha: Where SCALED, the factor of the product; ``beta`` that of ``added``.
    :param TURNED_A: Whether the descriptor of ``a`` is of it turned, blocks and all; those of ``b`` and ``output``
        likewise.
    :param ACTIVATION: "", or the one of a gated MLP.
    :param GROUPS: Of warps: one or two.
    :param STAGES: Blocks of K that there is shared memory for.
    """
    TURNED: gl.constexpr = (TURNED_A, TURNED_B, TURNED_OUTPUT)
    GATED: gl.constexpr = ACTIVATION != ""
    LEFTS: gl.constexpr = GROUPS * (2 if GATED else 1)
    memory = (_memory(a, STAGES * LEFTS), _memory(b, STAGES), _memory(output, GROUPS))
    # Memory is filled by the warp that loads, and emptied by all groups.
    barriers = (make_barriers(STAGES, 1), make_barriers(STAGES, GROUPS), make_barriers(GROUPS, 1))
    fence_async_shared()
    tensors = (a, b, output, added)
    sizes = (tiles, tiles_m, tiles_n, steps)
    addend = (M, N, stride_m, stride_n, alpha, beta)
    given = (tensors, memory, barriers, sizes, (step_a, step_b))

    # Registers of a thread: the first group has what the others leave.
    if GROUPS == 1:
        gl.warp_specialize(
            [
                (_multiply, (given, addend, TURNED, SCALED, ADDED, ACTIVATION, GROUPS, STAGES, 0)),
                (_load, (given, TURNED, GATED, GROUPS, STAGES)),
            ],
            [1],
            [24],
        )
    else:
        gl.warp_specialize(
            [
                (_multiply, (given, addend, TURNED, SCALED, ADDED, ACTIVATION, GROUPS, STAGES, 0)),
                (_multiply, (given, addend, TURNED, SCALED, ADDED, ACTIVATION, GROUPS, STAGES, 1)),
                (_load, (given, TURNED, GATED, GROUPS, STAGES)),
            ],
            [4, 1],
            [240, 24],
        )
