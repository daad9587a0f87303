"""Products on Hopper, in Gluon, with explicit work for every warp: of 8-bit matrices, and of a gated MLP.

A program computes tiles one after the other. Two or three groups of four warps take 64 rows of a tile each, and one
warp makes the Tensor Memory Accelerator fetch the next operands. While a group is busy with other work, such as adding
up or storing, the tensor cores run the products of the other group, and loads go on from one tile to the next.

Median us on an H200 (Triton 3.6, bf16 results), each line of one run:

=================================== ===== ============================ ==============
                                     this                        torch the other form
=================================== ===== ============================ ==============
fp8_gemm 4096^3, scales of rows       108                          105            160
8192^3                                762                          772           1195
4096^3, scales of blocks              243    272, as a bfloat16 product            349
fused_gated_mlp 4096 x 4096 x 14336  1238 1358; two products alone 1214           1567
4096 x 8192 x 28672                  5032 5360; two products alone 5067           6705
16 x 8192 x 28672, by ``mm_hopper``   223   231; two products alone 224            236
=================================== ===== ============================ ==============
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

from ntops.kernels.attention_hopper import ROWS
from ntops.kernels.hopper import activated, make_barriers, place_of

COLUMNS = gl.constexpr(128)
"""The number of columns of a block of a right factor."""


@gluon.jit
def _load(
    factors,
    memory,
    barriers,
    sizes,
    GROUPS: gl.constexpr,
    STAGES: gl.constexpr,
    BLOCKS: gl.constexpr,
    WIDTH: gl.constexpr,
):
    """Run the loading warp: in each step along K load the rows of each group, and one or two blocks of right factors.

    :param WIDTH: The columns of a tile of the result. If it is the width of two blocks, they lie side by side.
    """
    left, right, other = factors
    lefts, rights = memory
    full, empty = barriers
    tiles_m, tiles_n, steps = sizes
    BLOCK_K: gl.constexpr = left.block_type.shape[1]
    APART: gl.constexpr = WIDTH - COLUMNS
    taken = 0

    for tile in range(gl.program_id(0), tiles_m * tiles_n, gl.num_programs(0)):
        _, tile_m, tile_n = place_of(tile, tiles_m, tiles_n)
        row = tile_m * (GROUPS * ROWS)
        column = tile_n * WIDTH

        for step in range(steps):
            stage = taken % STAGES
            ready = full.index(stage)
            mbarrier.wait(empty.index(stage), (taken // STAGES + 1) % 2)
            mbarrier.expect(ready, GROUPS * left.block_type.nbytes + BLOCKS * right.block_type.nbytes)

            for i in gl.static_range(GROUPS):
                place = [row + i * ROWS, step * BLOCK_K]
                tma.async_copy_global_to_shared(left, place, ready, lefts.index(stage * GROUPS + i))

            place = [column, step * BLOCK_K]
            tma.async_copy_global_to_shared(right, place, ready, rights.index(stage * BLOCKS))

            if BLOCKS == 2:
                place = [column + APART, step * BLOCK_K]
                tma.async_copy_global_to_shared(other, place, ready, rights.index(stage * BLOCKS + 1))

            taken += 1


@gluon.jit
def _store(output, staged, values, row, column):
    """Store a block through shared memory, after the previous store has read it."""
    tma.store_wait(0)
    staged.store(values.to(output.dtype))
    fence_async_shared()
    tma.async_copy_shared_to_global(output, [row, column], staged)


@gluon.jit
def _scales(a_scale, b_scale, shape, row, column, BY_ROW: gl.constexpr, BY_COLUMN: gl.constexpr, layout: gl.constexpr):
    """Load the scales of a block's rows and of its columns, or of the matrices."""
    M, N = shape

    if BY_ROW:
        m = row + gl.arange(0, ROWS, gl.SliceLayout(1, layout))
        of_rows = gl.load(a_scale + m, mask=m < M, other=0.0)[:, None]
    else:
        of_rows = gl.load(a_scale)

    if BY_COLUMN:
        n = column + gl.arange(0, COLUMNS, gl.SliceLayout(0, layout))
        of_columns = gl.load(b_scale + n, mask=n < N, other=0.0)[None, :]
    else:
        of_columns = gl.load(b_scale)

    return of_rows, of_columns


@gluon.jit
def _add_up(
    output,
    given,
    BY_ROW: gl.constexpr,
    BY_COLUMN: gl.constexpr,
    BLOCKED: gl.constexpr,
    GROUPS: gl.constexpr,
    STAGES: gl.constexpr,
    BLOCKS: gl.constexpr,
    GROUP: gl.constexpr,
):
    """Run a group of warps of ``fp8_gemm``: multiply 128 terms at a time, and add them to the total in float32."""
    memory, staged, barriers, sizes, shape, scales = given
    a_scale, b_scale, step_a, step_b = scales
    lefts, rights = memory
    full, empty = barriers
    tiles_m, tiles_n, steps = sizes
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, COLUMNS, 32])
    nothing = gl.zeros([ROWS, COLUMNS], gl.float32, layout)
    own = staged.index(GROUP)
    taken = 0

    for tile in range(gl.program_id(0), tiles_m * tiles_n, gl.num_programs(0)):
        _, tile_m, tile_n = place_of(tile, tiles_m, tiles_n)
        row = tile_m * (GROUPS * ROWS) + GROUP * ROWS
        column = tile_n * (BLOCKS * COLUMNS)
        near = gl.zeros([ROWS, COLUMNS], gl.float32, layout)
        far = gl.zeros([ROWS, COLUMNS], gl.float32, layout)

        for step in range(steps):
            stage = taken % STAGES
            mbarrier.wait(full.index(stage), taken // STAGES % 2)
            left = lefts.index(stage * GROUPS + GROUP)

            for block in gl.static_range(BLOCKS):
                right = rights.index(stage * BLOCKS + block).permute((1, 0))
                product = warpgroup_mma(left, right, nothing, use_acc=False, is_async=True)

                if BLOCKED:
                    # These arrive while the tensor cores are busy.
                    a_scales = a_scale + step.to(gl.int64) * step_a
                    b_scales = b_scale + step.to(gl.int64) * step_b
                    first = column + block * COLUMNS
                    of_rows, of_columns = _scales(a_scales, b_scales, shape, row, first, BY_ROW, BY_COLUMN, layout)

                terms = warpgroup_mma_wait(0, deps=[product])

                if block == BLOCKS - 1:
                    mbarrier.arrive(empty.index(stage), count=1)

                if BLOCKED:
                    terms *= of_rows * of_columns

                if block == 0:
                    near += terms
                else:
                    far += terms

            taken += 1

        for block in gl.static_range(BLOCKS):
            sums = far if block else near
            first = column + block * COLUMNS

            if not BLOCKED:
                of_rows, of_columns = _scales(a_scale, b_scale, shape, row, first, BY_ROW, BY_COLUMN, layout)
                sums *= of_rows * of_columns

            _store(output, own, sums, row, first)

    tma.store_wait(0)


@gluon.jit(do_not_specialize=["M", "N", "steps", "step_a", "step_b"])
def fp8_gemm(
    output,
    a,
    b,
    a_scale,
    b_scale,
    M,
    N,
    steps,
    step_a,
    step_b,
    BY_ROW: gl.constexpr,
    BY_COLUMN: gl.constexpr,
    BLOCKED: gl.constexpr,
    GROUPS: gl.constexpr,
    STAGES: gl.constexpr,
    BLOCKS: gl.constexpr,
):
    """Compute ``a @ b`` times scales, in tiles of GROUPS * 64 rows and BLOCKS * 128 columns.

    :param output: A descriptor of (M, N) in blocks of (64, 128).
    :param a: A descriptor of (M, K), 8-bit, in blocks of (64, 128).
    :param b: A descriptor of the transposed right factor, (N, K), in blocks of (128, 128).
    :param a_scale: With BY_ROW a scale for each row of ``a``, else one; ``b_scale`` likewise with BY_COLUMN.
    :param step_a: With BLOCKED, the distance to the scales of the next 128 terms; ``step_b`` likewise.
    :param steps: The number of steps of 128 along K.
    """
    memory = (
        gl.allocate_shared_memory(a.dtype, [STAGES * GROUPS, ROWS, a.block_type.shape[1]], a.layout),
        gl.allocate_shared_memory(b.dtype, [STAGES * BLOCKS, COLUMNS, b.block_type.shape[1]], b.layout),
    )
    staged = gl.allocate_shared_memory(output.dtype, [GROUPS, ROWS, COLUMNS], output.layout)
    barriers = (make_barriers(STAGES, 1), make_barriers(STAGES, GROUPS))
    fence_async_shared()
    WIDTH: gl.constexpr = BLOCKS * COLUMNS
    sizes = (gl.cdiv(M, GROUPS * ROWS), gl.cdiv(N, WIDTH), steps)
    shape = (M, N)
    factors = (a, b, b)
    given = (memory, staged, barriers, sizes, shape, (a_scale, b_scale, step_a, step_b))

    # The registers per thread of all groups except the first, which gets the rest: as many as another group.
    if GROUPS == 2:
        gl.warp_specialize(
            [
                (_add_up, (output, given, BY_ROW, BY_COLUMN, BLOCKED, 2, STAGES, BLOCKS, 0)),
                (_add_up, (output, given, BY_ROW, BY_COLUMN, BLOCKED, 2, STAGES, BLOCKS, 1)),
                (_load, (factors, memory, barriers, sizes, 2, STAGES, BLOCKS, WIDTH)),
            ],
            [4, 1],
            [240, 24],
        )
    else:
        gl.warp_specialize(
            [
                (_add_up, (output, given, BY_ROW, BY_COLUMN, BLOCKED, 3, STAGES, BLOCKS, 0)),
                (_add_up, (output, given, BY_ROW, BY_COLUMN, BLOCKED, 3, STAGES, BLOCKS, 1)),
                (_add_up, (output, given, BY_ROW, BY_COLUMN, BLOCKED, 3, STAGES, BLOCKS, 2)),
                (_load, (factors, memory, barriers, sizes, 3, STAGES, BLOCKS, WIDTH)),
            ],
            [4, 4, 1],
            [160, 160, 24],
        )


@gluon.jit
def _gate(
    output,
    memory,
    staged,
    barriers,
    sizes,
    ACTIVATION: gl.constexpr,
    STAGES: gl.constexpr,
    GROUP: gl.constexpr,
):
    """Run a group of warps of ``fused_gated_mlp``: one product of its rows with a block of gate and one of up, which
    lie one above the other in shared memory, so that a thread has the same columns of both."""
    lefts, rights = memory
    full, empty = barriers
    tiles_m, tiles_n, steps = sizes
    BLOCK_K: gl.constexpr = lefts.shape[2]
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 2 * COLUMNS, 16])
    half: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, COLUMNS, 16])
    both = rights._reinterpret(rights.dtype, [STAGES, 2 * COLUMNS, BLOCK_K], rights.layout)
    nothing = gl.zeros([ROWS, 2 * COLUMNS], gl.float32, layout)
    own = staged.index(GROUP)
    taken = 0

    for tile in range(gl.program_id(0), tiles_m * tiles_n, gl.num_programs(0)):
        _, tile_m, tile_n = place_of(tile, tiles_m, tiles_n)
        stage = taken % STAGES
        mbarrier.wait(full.index(stage), taken // STAGES % 2)
        product = warpgroup_mma(
            lefts.index(stage * 2 + GROUP), both.index(stage).permute((1, 0)), nothing, use_acc=False, is_async=True
        )
        # One product waits for the tensor cores while the previous one is computed.
        sums = warpgroup_mma_wait(1, deps=[product])
        taken += 1

        for _ in range(1, steps):
            last = stage
            stage = taken % STAGES
            mbarrier.wait(full.index(stage), taken // STAGES % 2)
            product = warpgroup_mma(
                lefts.index(stage * 2 + GROUP), both.index(stage).permute((1, 0)), sums, is_async=True
            )
            sums = warpgroup_mma_wait(1, deps=[product])
            mbarrier.arrive(empty.index(last), count=1)
            taken += 1

        sums = warpgroup_mma_wait(0, deps=[sums])
        mbarrier.arrive(empty.index(stage), count=1)
        gate, up = sums.reshape([ROWS, 2, COLUMNS]).permute((0, 2, 1)).split()
        gate = gl.convert_layout(gate, half)
        up = gl.convert_layout(up, half)
        row = tile_m * (2 * ROWS) + GROUP * ROWS
        _store(output, own, activated(gate, ACTIVATION) * up, row, tile_n * COLUMNS)

    tma.store_wait(0)


@gluon.jit(do_not_specialize=["M", "N", "steps"])
def fused_gated_mlp(output, x, gate, up, M, N, steps, ACTIVATION: gl.constexpr, STAGES: gl.constexpr):
    """Compute ``act(x @ gate.T) * (x @ up.T)``, in tiles of 128 rows and columns.

    :param output: A descriptor of (M, N) in blocks of (64, 128).
    :param x: A descriptor of (M, K) in blocks of (64, 64).
    :param gate: A descriptor of (N, K) in blocks of (128, 64); ``up`` likewise.
    :param steps: The number of steps of 64 along K.
    """
    memory = (
        gl.allocate_shared_memory(x.dtype, [STAGES * 2, ROWS, x.block_type.shape[1]], x.layout),
        gl.allocate_shared_memory(gate.dtype, [STAGES * 2, COLUMNS, gate.block_type.shape[1]], gate.layout),
    )
    staged = gl.allocate_shared_memory(output.dtype, [2, ROWS, COLUMNS], output.layout)
    barriers = (make_barriers(STAGES, 1), make_barriers(STAGES, 2))
    fence_async_shared()
    sizes = (gl.cdiv(M, 2 * ROWS), gl.cdiv(N, COLUMNS), steps)
    gl.warp_specialize(
        [
            (_gate, (output, memory, staged, barriers, sizes, ACTIVATION, STAGES, 0)),
            (_gate, (output, memory, staged, barriers, sizes, ACTIVATION, STAGES, 1)),
            (_load, ((x, gate, up), memory, barriers, sizes, 2, STAGES, 2, COLUMNS)),
        ],
        [4, 1],
        [240, 24],
    )
