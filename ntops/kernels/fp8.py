"""Kernels of the FP8 functions, in Triton: NineToothed has no 8-bit floating-point types.

The formats are those of the OCP 8-bit floating point specification 1.0: float8_e4m3fn (bias 7, no infinity, largest
448, NaN 0x7F) and float8_e5m2 (bias 15, largest 57344). Where a GPU has no instructions for them (``NATIVE`` false) the
tensors come as bytes, and conversion is integer arithmetic, with the same result.

A scale belongs to a tile's row: it is read at ``row * stride_sr + block * stride_sb``, where a block is 128 columns. A
stride of 0 makes one scale serve a whole row or tensor.
"""

import triton
import triton.language as tl

BLOCK = tl.constexpr(128)
"""The number of columns that share a scale in the block form, and of terms after which a product is added up in
float32."""


@triton.jit
def encode(values, E4M3: tl.constexpr, NATIVE: tl.constexpr):
    """Convert float32 to fp8, to nearest even; larger numbers saturate, NaN stays NaN."""
    if NATIVE:
        # cvt.rn.satfinite: infinities saturate too.
        encoded = values.to(tl.float8e4nv if E4M3 else tl.float8e5)
    else:
        MANTISSA: tl.constexpr = 3 if E4M3 else 2
        BIAS: tl.constexpr = 7 if E4M3 else 15
        DROPPED: tl.constexpr = 23 - MANTISSA
        # Adding this to a subnormal of the format leaves multiples of its smallest number in the lowest bits.
        ALIGN: tl.constexpr = 2.0 ** (24 - BIAS - MANTISSA)
        LARGEST: tl.constexpr = 448.0 if E4M3 else 57344.0
        magnitude = tl.abs(values)
        magnitude = tl.where(magnitude > LARGEST, LARGEST, magnitude)
        bits = magnitude.to(tl.int32, bitcast=True)
        normal = (bits + ((1 << (DROPPED - 1)) - 1) + ((bits >> DROPPED) & 1)) >> DROPPED
        normal -= (127 - BIAS) << MANTISSA
        aligned = tl.full(values.shape, ALIGN, tl.float32)
        small = (magnitude + aligned).to(tl.int32, bitcast=True) - aligned.to(tl.int32, bitcast=True)
        found = tl.where(magnitude < 2.0 ** (1 - BIAS), small, normal)
        found = tl.where(values != values, 0x7F, found)
        sign = (values.to(tl.int32, bitcast=True) >> 24) & 0x80
        encoded = (found | sign).to(tl.uint8)

    return encoded


@triton.jit
def decode(values, E4M3: tl.constexpr, NATIVE: tl.constexpr):
    """Convert fp8 to float16, which holds every number of either format."""
    if NATIVE:
        decoded = values.to(tl.float16)
    elif E4M3:
        bits = values.to(tl.int16)
        shifted = ((bits & 0x80) << 8) | ((bits & 0x7F) << 7)
        # The exponents' biases are 8 apart; subnormals become subnormals.
        decoded = shifted.to(tl.float16, bitcast=True) * tl.full(values.shape, 256.0, tl.float16)
        nan = tl.full(values.shape, float("nan"), tl.float16)
        decoded = tl.where((bits & 0x7F) == 0x7F, nan, decoded)
    else:
        decoded = (values.to(tl.int16) << 8).to(tl.float16, bitcast=True)

    return decoded


@triton.jit
def _finite_magnitude(values):
    """Return |values| in float32, but 0 for infinities and NaN."""
    magnitude = tl.abs(values.to(tl.float32))
    return tl.where(magnitude < float("inf"), magnitude, 0.0)


@triton.jit
def _scale_of(amax, LARGEST: tl.constexpr):
    """Return amax / LARGEST, at least the smallest normal number, so that its reciprocal is finite; 1 where amax is
    0."""
    scale = tl.div_rn(amax, tl.full(amax.shape, LARGEST, tl.float32))
    return tl.where(amax == 0.0, 1.0, tl.maximum(scale, 2.0**-126))


@triton.jit
def _quotient(values, scale, GIVEN: tl.constexpr):
    """Return values / scale by the reciprocal: one division for each scale, not for each element."""
    reciprocal = tl.div_rn(tl.full(scale.shape, 1.0, tl.float32), scale)
    values = values.to(tl.float32)
    quotient = values * reciprocal[:, None]

    if GIVEN:
        # If a caller gives a scale of 0, 0 divided by it stays 0, not NaN.
        by_zero = tl.abs(reciprocal) == float("inf")
        quotient = tl.where((values == 0.0) & by_zero[:, None], values, quotient)

    return quotient


@triton.jit
def maxima(partial, input, columns, chunk, stride_r, BLOCK_C: tl.constexpr):
    """Write the largest finite magnitude of each chunk of each row to ``partial`` (rows, chunks), contiguous."""
    chunks = tl.cdiv(columns, chunk)
    row = (tl.program_id(0) // chunks).to(tl.int64)
    start = (tl.program_id(0) % chunks).to(tl.int64) * chunk
    lanes = tl.arange(0, BLOCK_C)
    largest = tl.zeros((BLOCK_C,), tl.float32)
    input += row * stride_r

    for first in range(0, chunk, BLOCK_C):
        places = start + first + lanes
        largest = tl.maximum(largest, _finite_magnitude(tl.load(input + places, mask=places < columns, other=0.0)))

    tl.store(partial + tl.program_id(0), tl.max(largest, 0))


@triton.jit
def quantize(
    output,
    scale,
    input,
    partial,
    rows,
    columns,
    chunks,
    stride_r,
    stride_sr,
    stride_sb,
    SOURCE: tl.constexpr,
    E4M3: tl.constexpr,
    NATIVE: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_C: tl.constexpr,
    CHUNKS: tl.constexpr,
):
    """Quantize a tile of ``input`` (rows, columns) to ``output``, contiguous. A tile has one scale for each of its
    rows.

    :param SOURCE: The source of scales: "given", they are read; "tile", a tile holds all elements that share one;
        "partial", the maxima of each row's chunks, at most CHUNKS. Scales that are not given are written.
    """
    LARGEST: tl.constexpr = 448.0 if E4M3 else 57344.0
    # The part that the previous pass read last may still be in the cache.
    tile = tl.num_programs(0) - 1 - tl.program_id(0)
    tiles_c = tl.cdiv(columns, BLOCK_C)
    tile_r = tile // tiles_c
    tile_c = tile % tiles_c
    row = tile_r.to(tl.int64) * BLOCK_R + tl.arange(0, BLOCK_R)
    column = tile_c.to(tl.int64) * BLOCK_C + tl.arange(0, BLOCK_C)
    inside = row < rows
    kept = inside[:, None] & (column < columns)[None, :]
    values = tl.load(input + (row * stride_r)[:, None] + column[None, :], mask=kept, other=0.0)
    scales = scale + row * stride_sr + tile_c * stride_sb

    if SOURCE == "given":
        found = tl.load(scales, mask=inside, other=1.0)
    else:
        if SOURCE == "tile":
            amax = tl.max(_finite_magnitude(values), 1)
            writes = inside
        else:
            chunk = tl.arange(0, CHUNKS)
            known = inside[:, None] & (chunk < chunks)[None, :]
            amax = tl.max(tl.load(partial + (row * chunks)[:, None] + chunk[None, :], mask=known, other=0.0), 1)
            writes = inside & (tile_c == 0)

        found = _scale_of(amax, LARGEST)
        tl.store(scales, found, mask=writes)

    encoded = encode(_quotient(values, found, SOURCE == "given"), E4M3, NATIVE)
    tl.store(output + (row * columns)[:, None] + column[None, :], encoded, mask=kept)


@triton.jit
def dequantize(
    output,
    input,
    scale,
    rows,
    columns,
    stride_r,
    stride_sr,
    stride_sb,
    E4M3: tl.constexpr,
    NATIVE: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """Write a tile of ``input`` (rows, columns) times its scales, in float32, to ``output``, contiguous."""
    tiles_c = tl.cdiv(columns, BLOCK_C)
    tile_c = tl.program_id(0) % tiles_c
    row = (tl.program_id(0) // tiles_c).to(tl.int64) * BLOCK_R + tl.arange(0, BLOCK_R)
    column = tile_c.to(tl.int64) * BLOCK_C + tl.arange(0, BLOCK_C)
    inside = row < rows
    kept = inside[:, None] & (column < columns)[None, :]
    values = tl.load(input + (row * stride_r)[:, None] + column[None, :], mask=kept)
    factors = tl.load(scale + row * stride_sr + tile_c * stride_sb, mask=inside, other=1.0)
    product = decode(values, E4M3, NATIVE).to(tl.float32) * factors[:, None]
    tl.store(output + (row * columns)[:, None] + column[None, :], product.to(output.dtype.element_ty), mask=kept)


@triton.jit
def gemm(
    output,
    a,
    b,
    a_scale,
    b_scale,
    M,
    N,
    K,
    stride_am,
    stride_bn,
    stride_sam,
    stride_sak,
    stride_sbn,
    stride_sbk,
    A_E4M3: tl.constexpr,
    B_E4M3: tl.constexpr,
    NATIVE: tl.constexpr,
    BLOCKED: tl.constexpr,
    EVEN_K: tl.constexpr,
    GROUP_M: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Write a tile of ``a @ b`` to ``output`` (M, N), contiguous; ``a`` (M, K) and ``b`` (K, N) have unit strides along
    K.

    128 terms at a time are multiplied, and added to the total in float32: the tensor cores of an H100 or H200 keep some
    14 bits of a sum of fp8 products (DeepSeek-V3, arXiv:2412.19437, section 3.3.2).

    :param BLOCKED: Whether a scale changes along K, so that each 128 terms are scaled before they are added up.
    """
    # Tiles that run together share rows of a and columns of b: GROUP_M tiles down, then one to the right.
    tile = tl.program_id(0)
    tiles_m = tl.cdiv(M, BLOCK_M)
    tiles_n = tl.cdiv(N, BLOCK_N)
    first_m = tile // (GROUP_M * tiles_n) * GROUP_M
    group_m = tl.minimum(tiles_m - first_m, GROUP_M)
    tile_m = first_m + tile % (GROUP_M * tiles_n) % group_m
    tile_n = tile % (GROUP_M * tiles_n) // group_m
    m = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
    n = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    # Past the end, rows and columns repeat, which is cheaper than a mask; they are not stored.
    read_m = (m % M).to(tl.int64)
    read_n = (n % N).to(tl.int64)
    k = tl.arange(0, BLOCK)
    a_tile = a + (read_m * stride_am)[:, None] + k[None, :]
    b_tile = b + k[:, None] + (read_n * stride_bn)[None, :]
    a_scales = a_scale + read_m * stride_sam
    b_scales = b_scale + read_n * stride_sbn
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)

    for first in range(0, K, BLOCK):
        if EVEN_K:
            left = tl.load(a_tile)
            right = tl.load(b_tile)
        else:
            left = tl.load(a_tile, mask=(k < K - first)[None, :], other=0.0)
            right = tl.load(b_tile, mask=(k < K - first)[:, None], other=0.0)

        if NATIVE:
            # Naming the limit keeps the compiler from adding to ``total`` within the tensor cores.
            terms = tl.dot(left, right, max_num_imprecise_acc=BLOCK)
        else:
            terms = tl.dot(decode(left, A_E4M3, NATIVE), decode(right, B_E4M3, NATIVE))

        if BLOCKED:
            terms *= tl.load(a_scales)[:, None] * tl.load(b_scales)[None, :]
            a_scales += stride_sak
            b_scales += stride_sbk

        total += terms
        a_tile += BLOCK
        b_tile += BLOCK

    if not BLOCKED:
        total *= tl.load(a_scales)[:, None] * tl.load(b_scales)[None, :]

    places = output + (m.to(tl.int64) * N)[:, None] + n[None, :]
    tl.store(places, total.to(output.dtype.element_ty), mask=(m < M)[:, None] & (n < N)[None, :])
