"""Products on Hopper, in Gluon: what ``ntops.kernels.persistent_mm`` computes, with the work of every warp written out.

A program has one or two groups of four warps, which multiply and store, and one warp that has the Tensor Memory
Accelerator fetch tiles of both factors. Two groups share a tile, or take tiles in turn: then one stores while the
other multiplies.
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
from triton.language.extra.cuda import gdc_launch_dependents

from ntops.kernels import persistent_mm

_place = gluon.jit(persistent_mm._place.fn)


@gluon.jit
def _unit(number, sizes, PARTS_OF_K: gl.constexpr, BLOCK_K: gl.constexpr, GROUP: gl.constexpr):
    """What a unit of work is of: the matrix of the batch, the row and the column of the tile, its first step and the
    one after its last. Where K is cut into parts, the part stands for the matrix."""
    tiles_m, tiles_n, K = sizes
    batch, tile_m, tile_n = _place(number, tiles_m, tiles_n, GROUP)
    steps = gl.cdiv(K, BLOCK_K)
    first = 0
    stop = steps

    if PARTS_OF_K > 1:
        first = batch * steps // PARTS_OF_K
        stop = (batch + 1) * steps // PARTS_OF_K

    return batch, tile_m, tile_n, first, stop


@gluon.jit
def _load(tensors, memory, barriers, sizes, units, steps_ab, OPTIONS: gl.constexpr, TURNED: gl.constexpr):
    """The warp that loads."""
    PARTS_OF_K: gl.constexpr = OPTIONS[0]
    GROUPS: gl.constexpr = OPTIONS[1]
    TAKES_TURNS: gl.constexpr = OPTIONS[2]
    STAGES: gl.constexpr = OPTIONS[3]
    BLOCK_K: gl.constexpr = OPTIONS[4]
    GROUP: gl.constexpr = OPTIONS[5]
    SLICES: gl.constexpr = 1 if TAKES_TURNS else GROUPS
    a, b, _output = tensors
    a_memory, b_memory, _results = memory
    full, empty, _turns = barriers
    step_a, step_b = steps_ab
    ROWS: gl.constexpr = a.block_type.shape[2] if TURNED[0] else a.block_type.shape[1]
    COLUMNS: gl.constexpr = b.block_type.shape[1] if TURNED[1] else b.block_type.shape[2]
    taken = 0

    if PARTS_OF_K > 1:
        gdc_launch_dependents()

    for number in range(gl.program_id(0), units, gl.num_programs(0)):
        batch, tile_m, tile_n, first, stop = _unit(number, sizes, PARTS_OF_K, BLOCK_K, GROUP)
        batch_a = batch * step_a
        batch_b = batch * step_b

        for step in range(first, stop):
            stage = taken % STAGES
            k = step * BLOCK_K
            n = tile_n * COLUMNS
            mbarrier.wait(empty.index(stage), (taken // STAGES + 1) % 2)
            mbarrier.expect(full.index(stage), SLICES * a.block_type.nbytes + b.block_type.nbytes)

            for i in gl.static_range(SLICES):
                m = (tile_m * SLICES + i) * ROWS
                own = a_memory.index(stage * SLICES + i)

                if TURNED[0]:
                    tma.async_copy_global_to_shared(a, [batch_a, k, m], full.index(stage), own)
                else:
                    tma.async_copy_global_to_shared(a, [batch_a, m, k], full.index(stage), own)

            if TURNED[1]:
                tma.async_copy_global_to_shared(b, [batch_b, n, k], full.index(stage), b_memory.index(stage))
            else:
                tma.async_copy_global_to_shared(b, [batch_b, k, n], full.index(stage), b_memory.index(stage))

            taken += 1


@gluon.jit
def _matrix(memory, IS_TURNED: gl.constexpr):
    """Of a tile in memory, the matrix."""
    matrix = memory.reshape([memory.shape[1], memory.shape[2]])

    if IS_TURNED:
        matrix = matrix.permute((1, 0))

    return matrix


@gluon.jit
def _halves(tile):
    """The columns of a tile, the first half and the second one."""
    return gl.split(tile.reshape([tile.shape[0], 2, tile.shape[1] // 2]).permute((0, 2, 1)))


@gluon.jit
def _store(
    output,
    memory,
    sums,
    batch,
    first_m,
    first_n,
    more,
    SCALED: gl.constexpr,
    ADDED: gl.constexpr,
    IS_TURNED: gl.constexpr,
):
    added, M, N, stride_m, stride_n, alpha, beta = more

    if SCALED:
        sums = alpha.to(gl.float32) * sums

    if ADDED != 0:
        m = first_m + gl.arange(0, sums.shape[0], gl.SliceLayout(1, sums.type.layout))
        n = first_n + gl.arange(0, sums.shape[1], gl.SliceLayout(0, sums.type.layout))

        if ADDED == 1:
            values = gl.load(added + n * stride_n, mask=n < N, other=0)
            sums = (beta.to(gl.float32) * values.to(gl.float32))[None, :] + sums
        elif ADDED == 2:
            values = gl.load(added + m * stride_m, mask=m < M, other=0)
            sums = (beta.to(gl.float32) * values.to(gl.float32))[:, None] + sums
        else:
            places = (m.to(gl.int64) * stride_m)[:, None] + (n.to(gl.int64) * stride_n)[None, :]
            values = gl.load(added + places, mask=(m < M)[:, None] & (n < N)[None, :], other=0)
            sums = beta.to(gl.float32) * values.to(gl.float32) + sums

    # What was stored before from the same memory has been read.
    tma.store_wait(0)
    _matrix(memory, IS_TURNED).store(sums.to(output.dtype))
    fence_async_shared()

    if IS_TURNED:
        tma.async_copy_shared_to_global(output, [batch, first_n, first_m], memory)
    else:
        tma.async_copy_shared_to_global(output, [batch, first_m, first_n], memory)


@gluon.jit
def _multiply(
    tensors,
    memory,
    barriers,
    sizes,
    units,
    more,
    OPTIONS: gl.constexpr,
    TURNED: gl.constexpr,
    SCALED: gl.constexpr,
    ADDED: gl.constexpr,
    PARTS: gl.constexpr,
    NUMBER: gl.constexpr,
):
    """A group of warps: its rows of each tile, or its tiles."""
    PARTS_OF_K: gl.constexpr = OPTIONS[0]
    GROUPS: gl.constexpr = OPTIONS[1]
    TAKES_TURNS: gl.constexpr = OPTIONS[2]
    STAGES: gl.constexpr = OPTIONS[3]
    BLOCK_K: gl.constexpr = OPTIONS[4]
    GROUP: gl.constexpr = OPTIONS[5]
    SLICES: gl.constexpr = 1 if TAKES_TURNS else GROUPS
    SLICE: gl.constexpr = 0 if TAKES_TURNS else NUMBER
    a, b, output = tensors
    a_memory, b_memory, results = memory
    full, empty, turns = barriers
    ROWS: gl.constexpr = a.block_type.shape[2] if TURNED[0] else a.block_type.shape[1]
    COLUMNS: gl.constexpr = b.block_type.shape[1] if TURNED[1] else b.block_type.shape[2]
    WIDTH: gl.constexpr = COLUMNS // PARTS
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, COLUMNS, 32 // (a.dtype.primitive_bitwidth // 8)])
    operand_layout: gl.constexpr = gl.DotOperandLayout(0, layout, 1)
    # The matrix units take 32-bit factors from memory with K innermost only; from registers it does not matter.
    FROM_REGISTERS: gl.constexpr = a.dtype == gl.float32
    taken = 0
    count = 0
    turn = 0

    for number in range(gl.program_id(0), units, gl.num_programs(0)):
        batch, tile_m, tile_n, first, stop = _unit(number, sizes, PARTS_OF_K, BLOCK_K, GROUP)
        steps = stop - first

        if TAKES_TURNS and count % GROUPS != NUMBER:
            taken += steps
        else:
            if TAKES_TURNS:
                mbarrier.wait(turns.index(NUMBER), (turn + (1 if NUMBER == 0 else 0)) % 2)
                turn += 1

            sums = gl.zeros([ROWS, COLUMNS], gl.float32, layout)

            if FROM_REGISTERS:
                stage = taken % STAGES
                mbarrier.wait(full.index(stage), taken // STAGES % 2)
                left = _matrix(a_memory.index(stage * SLICES + SLICE), TURNED[0]).load(operand_layout)

                for step in range(1, steps):
                    stage = taken % STAGES
                    taken += 1
                    next_stage = taken % STAGES
                    product = warpgroup_mma(
                        left, _matrix(b_memory.index(stage), TURNED[1]), sums, is_async=True
                    )
                    mbarrier.wait(full.index(next_stage), taken // STAGES % 2)
                    following = _matrix(a_memory.index(next_stage * SLICES + SLICE), TURNED[0]).load(operand_layout)
                    sums, left = warpgroup_mma_wait(0, deps=[product, left])
                    mbarrier.arrive(empty.index(stage), count=1)
                    left = following

                stage = taken % STAGES
                taken += 1
                product = warpgroup_mma(
                    left, _matrix(b_memory.index(stage), TURNED[1]), sums, is_async=True
                )
                sums, left = warpgroup_mma_wait(0, deps=[product, left])
                mbarrier.arrive(empty.index(stage), count=1)
            else:
                for step in range(steps):
                    stage = taken % STAGES
                    mbarrier.wait(full.index(stage), taken // STAGES % 2)
                    left = _matrix(a_memory.index(stage * SLICES + SLICE), TURNED[0])
                    right = _matrix(b_memory.index(stage), TURNED[1])
                    product = warpgroup_mma(left, right, sums, is_async=True)
                    # The product before is done when this one begins to wait.
                    sums = warpgroup_mma_wait(1, deps=[product])
                    mbarrier.arrive(empty.index((taken + STAGES - 1) % STAGES), count=1, pred=step > 0)
                    taken += 1

                sums = warpgroup_mma_wait(0, deps=[sums])
                mbarrier.arrive(empty.index((taken + STAGES - 1) % STAGES), count=1)

            if TAKES_TURNS:
                mbarrier.arrive(turns.index((NUMBER + 1) % GROUPS), count=1)

            first_m = (tile_m * SLICES + SLICE) * ROWS
            first_n = tile_n * COLUMNS
            own = results.index(NUMBER)

            if PARTS == 1:
                _store(output, own, sums, batch, first_m, first_n, more, SCALED, ADDED, TURNED[2])
            elif PARTS == 2:
                near, far = _halves(sums)
                _store(output, own, near, batch, first_m, first_n, more, SCALED, ADDED, TURNED[2])
                _store(output, own, far, batch, first_m, first_n + WIDTH, more, SCALED, ADDED, TURNED[2])
            else:
                near, far = _halves(sums)
                one, two = _halves(near)
                _store(output, own, one, batch, first_m, first_n, more, SCALED, ADDED, TURNED[2])
                _store(output, own, two, batch, first_m, first_n + WIDTH, more, SCALED, ADDED, TURNED[2])
                one, two = _halves(far)
                _store(output, own, one, batch, first_m, first_n + 2 * WIDTH, more, SCALED, ADDED, TURNED[2])
                _store(output, own, two, batch, first_m, first_n + 3 * WIDTH, more, SCALED, ADDED, TURNED[2])

        count += 1

    tma.store_wait(0)


@gluon.jit
def _barriers(NUMBER: gl.constexpr, ARRIVALS: gl.constexpr):
    """Barriers that wait for as many arrivals each."""
    barriers = gl.allocate_shared_memory(gl.int64, [NUMBER, 1], mbarrier.MBarrierLayout())

    for i in gl.static_range(NUMBER):
        mbarrier.init(barriers.index(i), count=ARRIVALS)

    return barriers


@gluon.jit(do_not_specialize=["M", "N", "K", "tiles_m", "tiles_n", "units", "step_a", "step_b"])
def multiply(
    output,
    a,
    b,
    added,
    M,
    N,
    K,
    tiles_m,
    tiles_n,
    units,
    step_a,
    step_b,
    stride_am,
    stride_an,
    alpha: gl.float64,
    beta: gl.float64,
    TURNED: gl.constexpr,
    SCALED: gl.constexpr,
    ADDED: gl.constexpr,
    OPTIONS: gl.constexpr,
    PARTS: gl.constexpr,
):
    PARTS_OF_K: gl.constexpr = OPTIONS[0]
    GROUPS: gl.constexpr = OPTIONS[1]
    TAKES_TURNS: gl.constexpr = OPTIONS[2]
    STAGES: gl.constexpr = OPTIONS[3]
    SLICES: gl.constexpr = 1 if TAKES_TURNS else GROUPS
    a_shape: gl.constexpr = a.block_type.shape
    b_shape: gl.constexpr = b.block_type.shape
    out_shape: gl.constexpr = output.block_type.shape
    memory = (
        gl.allocate_shared_memory(a.dtype, [STAGES * SLICES, 1, a_shape[1], a_shape[2]], a.layout),
        gl.allocate_shared_memory(b.dtype, [STAGES, 1, b_shape[1], b_shape[2]], b.layout),
        gl.allocate_shared_memory(output.dtype, [GROUPS, 1, out_shape[1], out_shape[2]], output.layout),
    )
    barriers = (_barriers(STAGES, 1), _barriers(STAGES, SLICES), _barriers(GROUPS, 1))
    fence_async_shared()
    tensors = (a, b, output)
    sizes = (tiles_m, tiles_n, K)
    more = (added, M, N, stride_am, stride_an, alpha, beta)

    if GROUPS == 1:
        gl.warp_specialize(
            [
                (_multiply, (tensors, memory, barriers, sizes, units, more, OPTIONS, TURNED, SCALED, ADDED, PARTS, 0)),
                (_load, (tensors, memory, barriers, sizes, units, (step_a, step_b), OPTIONS, TURNED)),
            ],
            [1],
            [24],
        )
    else:
        gl.warp_specialize(
            [
                (_multiply, (tensors, memory, barriers, sizes, units, more, OPTIONS, TURNED, SCALED, ADDED, PARTS, 0)),
                (_multiply, (tensors, memory, barriers, sizes, units, more, OPTIONS, TURNED, SCALED, ADDED, PARTS, 1)),
                (_load, (tensors, memory, barriers, sizes, units, (step_a, step_b), OPTIONS, TURNED)),
            ],
            [4, 1],
            [240, 24],
        )
