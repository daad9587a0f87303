"""``a @ b`` of float32 matrices in IEEE arithmetic, or of each pair of a batch, on the CUDA cores, in Gluon.

``mm.premake`` is the NineToothed version, which runs everywhere. Its threads read 16 bytes of shared memory for 10
products. Here they read 16 bytes for 16 products, since each has 8 x 8 sums, and keep few enough factors in registers
that two programs share a multiprocessor. That takes factors that lie side by side for each term: with K innermost, four
terms at a time, 4096 x 4096 x 4096 took 3.7 to 4.9 ms on an H200, and 2.85 ms as it is (cuBLAS 2.65). So what has K
innermost is turned on its way to shared memory, an element at a time, or copied before.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy

from ntops.kernels.hopper import place_of


@gluon.constexpr_function
def _copied(terms, rows, warps, is_turned):
    """Return the layout in which threads copy (terms, rows) elements: 16 bytes at a time; with K innermost one element,
    and a warp four terms of eight rows."""
    if is_turned:
        return gl.BlockedLayout([1, 1], [4, 8], [1, warps], [0, 1])

    across = min(rows // 4, 32)
    return gl.BlockedLayout([1, 4], [32 // across, across], [warps, 1], [1, 0])


@gluon.jit
def _copy(memory, source, stage, first, rows, k, end, pitch, UNIT: gl.constexpr, TURNED: gl.constexpr):
    """Begin to copy a stage. Elements beyond the end are zero."""
    layout: gl.constexpr = _copied(memory.shape[1], memory.shape[2], gl.num_warps(), TURNED)
    term = (k + gl.arange(0, memory.shape[1], gl.SliceLayout(1, layout)))[:, None]
    row = (first + gl.arange(0, memory.shape[2], gl.SliceLayout(0, layout)))[None, :]
    outer, inner = (row, term) if TURNED else (term, row)
    places = source + outer.to(gl.int64) * pitch * UNIT + inner
    async_copy.async_copy_global_to_shared(memory.index(stage), places, mask=(term < end) & (row < rows * UNIT))


@gluon.jit(do_not_specialize=["M", "N", "K", "tiles_m", "tiles_n", "terms", "units_m", "units_n"])
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
    terms,
    units_m,
    units_n,
    pitch_a,
    pitch_b,
    batch_o,
    batch_a,
    batch_b,
    stride_m,
    stride_n,
    stride_am,
    stride_an,
    alpha: gl.float64,
    beta: gl.float64,
    UNIT_A: gl.constexpr,
    UNIT_B: gl.constexpr,
    TURNED_A: gl.constexpr,
    TURNED_B: gl.constexpr,
    SCALED: gl.constexpr,
    ADDED: gl.constexpr,
    BLOCK_M: gl.constexpr,
    BLOCK_N: gl.constexpr,
    BLOCK_K: gl.constexpr,
    STAGES: gl.constexpr,
    WARPS_M: gl.constexpr,
):
    """Compute one tile of ``output``, over all terms or over a part of them, which program 1 names.

    :param output: (batch, M, N), or (parts, M, N).
    :param a: (batch, K, M), with M innermost or, with TURNED_A, K; ``pitch_a`` is the stride of the other. ``b`` is
        (batch, K, N), likewise.
    :param terms: The terms of a part, a multiple of BLOCK_K.
    :param units_m: The elements of a row of ``a`` that may be read, in units of UNIT_A, as ``pitch_a`` and
        ``batch_a`` are.
    :param UNIT_A: 4 if M is innermost, rows begin at multiples of 16 bytes and units of 16 bytes may be read; else 1.
    :param added: With ADDED, (M, N) to add ``beta`` times; with SCALED, ``alpha`` is the factor of the product.
    :param WARPS_M: The number of warps below each other. A warp has 16 x 32 sums, and each thread 4 x 4 of them.
    """
    layout: gl.constexpr = gl.BlockedLayout([4, 4], [4, 8], [WARPS_M, gl.num_warps() // WARPS_M], [1, 0])
    shared: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    batch, tile_m, tile_n = place_of(gl.program_id(0), tiles_m, tiles_n)
    first_m = tile_m * BLOCK_M
    first_n = tile_n * BLOCK_N
    begin = gl.program_id(1) * terms
    steps = gl.cdiv(gl.minimum(K - begin, terms), BLOCK_K)
    a += batch.to(gl.int64) * batch_a * UNIT_A
    b += batch.to(gl.int64) * batch_b * UNIT_B
    lefts = gl.allocate_shared_memory(gl.float32, [STAGES, BLOCK_K, BLOCK_M], shared)
    rights = gl.allocate_shared_memory(gl.float32, [STAGES, BLOCK_K, BLOCK_N], shared)

    for stage in gl.static_range(STAGES - 1):
        k = begin + stage * BLOCK_K
        _copy(lefts, a, stage, first_m, units_m, k, K, pitch_a, UNIT_A, TURNED_A)
        _copy(rights, b, stage, first_n, units_n, k, K, pitch_b, UNIT_B, TURNED_B)
        async_copy.commit_group()

    sums = gl.zeros([BLOCK_M, BLOCK_N], gl.float32, layout)

    for step in range(steps):
        async_copy.wait_group(STAGES - 2)
        k = begin + (step + STAGES - 1) * BLOCK_K
        next_stage = (step + STAGES - 1) % STAGES
        _copy(lefts, a, next_stage, first_m, units_m, k, K, pitch_a, UNIT_A, TURNED_A)
        _copy(rights, b, next_stage, first_n, units_n, k, K, pitch_b, UNIT_B, TURNED_B)
        async_copy.commit_group()
        left = lefts.index(step % STAGES).permute((1, 0))
        right = rights.index(step % STAGES)

        for term in gl.static_range(BLOCK_K):
            column = left.slice(term, 1, dim=1).load(layout)
            row = right.slice(term, 1, dim=0).load(layout)
            sums = gl.fma(column, row, sums)

    async_copy.wait_group(0)
    m = (first_m + gl.arange(0, BLOCK_M, gl.SliceLayout(1, layout)))[:, None]
    n = (first_n + gl.arange(0, BLOCK_N, gl.SliceLayout(0, layout)))[None, :]
    stored = (m < M) & (n < N)

    if SCALED:
        sums = alpha.to(gl.float32) * sums

    if ADDED:
        places = added + m.to(gl.int64) * stride_am + n.to(gl.int64) * stride_an
        sums = gl.fma(beta.to(gl.float32), gl.load(places, mask=stored, other=0), sums)

    output += (batch + gl.program_id(1)).to(gl.int64) * batch_o
    gl.store(output + m.to(gl.int64) * stride_m + n.to(gl.int64) * stride_n, sums, mask=stored)
