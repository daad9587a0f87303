"""Softmax and the norms over rows too long for registers, which a program walks twice, a tile at a time.

NineToothed cannot express these Triton kernels: the second walk goes backwards, so that it begins with the tiles that
were read last, and the caches are told what to keep. On an H200, rms_norm of 4096 x 16384 bfloat16 takes 64 us so, and
74 us in NineToothed's kernel with the same configuration; 1024 x 65536 takes 76 and 96 us (tiles of 4096 and 8192; a
copy 63 us).

They take rows of float32 and the half types that begin at multiples of 16 bytes, with a stride of 1; NineToothed's
kernels take all others. If a row is a few whole tiles, ``TILES`` is their number, and nothing is masked; else it is 0.
``FAR`` says that a row has so many tiles that each lane of a norm must compensate its sums for rounding (W. Kahan, CACM
8(1), 1965).
"""

import triton
import triton.language as tl
from triton.language.extra import libdevice

_SIZES = ["columns", "output_stride", "input_stride"]


@triton.jit
def _load(pointer, inside, policy: tl.constexpr, TILES: tl.constexpr):
    if TILES:
        return tl.load(pointer, eviction_policy=policy)
    else:
        return tl.load(pointer, inside, other=0, eviction_policy=policy)


@triton.jit
def _store(pointer, value, inside, TILES: tl.constexpr):
    if TILES:
        tl.store(pointer, value.to(pointer.dtype.element_ty), eviction_policy="evict_first")
    else:
        tl.store(pointer, value.to(pointer.dtype.element_ty), inside, eviction_policy="evict_first")


@triton.jit
def _added(total, lost, number):
    """Return ``total + number``, and ``lost`` plus the rounding error of the sum."""
    grown = total + number
    return grown, lost + (number - (grown - total))


@triton.jit(do_not_specialize=_SIZES)
def softmax(
    output,
    input,
    columns: tl.int32,
    output_stride: tl.int64,
    input_stride: tl.int64,
    UNIT: tl.constexpr,
    TILE: tl.constexpr,
    TILES: tl.constexpr,
):
    """Compute ``exp(input - max) / sum(exp(input - max))`` of each row.

    :param UNIT: The elements of 16 bytes; ``columns`` and the strides are passed divided by it.
    """
    # A thread takes the eight half-type elements of one load together, and rescales its sum once for them: 1024 x 65536
    # bfloat16 takes 76 us on an H200 so, and 85 us one by one. float32 takes 165 us so, and 149 us one by one.
    TOGETHER: tl.constexpr = 8 if input.dtype.element_ty.primitive_bitwidth == 16 else 1
    row = tl.program_id(0).to(tl.int64)
    input += row * (input_stride * UNIT)
    output += row * (output_stride * UNIT)
    columns *= UNIT

    if TOGETHER > 1:
        lanes = tl.arange(0, TILE // TOGETHER)[:, None] * TOGETHER + tl.arange(0, TOGETHER)[None, :]
    else:
        lanes = tl.arange(0, TILE)

    if TILES:
        columns = TILES * TILE

    # Each lane has the maximum and the sum of its elements so far; after only -inf the sum is 0.
    maximum = tl.full([TILE // TOGETHER], -3.4028234663852886e38, tl.float32)
    total = tl.zeros([TILE // TOGETHER], tl.float32)

    for start in range(0, columns, TILE):
        places = start + lanes
        inside = places < columns
        loaded = _load(input + places, inside, "evict_last", TILES)
        values = loaded.to(output.dtype.element_ty).to(tl.float32)

        if not TILES:
            values = tl.where(inside, values, float("-inf"))

        # exp2 flushes subnormal results to zero, which does not change a sum of 1 or more.
        if TOGETHER > 1:
            grown = tl.maximum(maximum, tl.max(values, 1))
            powers = tl.exp2((values - grown[:, None]) * 1.4426950408889634)
            total = total * tl.exp2((maximum - grown) * 1.4426950408889634) + tl.sum(powers, 1)
            maximum = grown
        else:
            grows = values > maximum
            power = tl.exp2(tl.abs(values - maximum) * -1.4426950408889634)
            total = tl.where(grows, total * power + 1, total + power)
            maximum = tl.where(grows, values, maximum)

    highest = tl.max(maximum, 0)
    # A row of -inf has a sum of 0, and 0 / 0 is NaN; +inf gives NaN through inf - inf.
    scale = 1 / tl.sum(total * tl.exp(maximum - highest), 0)

    last = (tl.cdiv(columns, TILE) - 1) * TILE

    # Triton does not see that the index of a loop with a negative step is a multiple of 16.
    for walked in range(0, columns, TILE):
        places = last - walked + lanes
        inside = places < columns
        loaded = _load(input + places, inside, "evict_first", TILES)
        # Not Triton's exp, which rounds the product with log2(e): tens of ulps far below the maximum.
        values = libdevice.exp(loaded.to(output.dtype.element_ty).to(tl.float32) - highest) * scale
        _store(output + places, values, inside, TILES)


@triton.jit
def _added_up(values, HALVINGS: tl.constexpr):
    """Add up along the first dim, which can be halved HALVINGS times, in an order that does not depend on the tile's
    layout in registers; the result is (1, ...)."""
    for _ in tl.static_range(HALVINGS):
        values = tl.sum(tl.reshape(values, [2, values.shape[0] // 2, values.shape[1]]), 0)

    return values


@triton.jit(do_not_specialize=["columns", "inner", "inner_tiles", "second"])
def softmax_across(
    output,
    input,
    columns,
    inner,
    inner_tiles,
    second,
    output_first: tl.int64,
    output_second: tl.int64,
    output_column: tl.int64,
    output_inner: tl.int64,
    input_first: tl.int64,
    input_second: tl.int64,
    input_column: tl.int64,
    input_inner: tl.int64,
    PLAIN: tl.constexpr,
    UNIT: tl.constexpr,
    TILE: tl.constexpr,
    HALVINGS: tl.constexpr,
    WIDTH: tl.constexpr,
    WHOLE: tl.constexpr,
):
    """Compute ``softmax`` over ``columns`` of (first, second, columns, inner) tensors of any strides.

    A program takes WIDTH adjacent rows, and walks down. The order of summation depends on TILE alone, so that a row has
    the same bits in any batch and layout.

    :param PLAIN: Whether strides along ``inner`` are 1.
    :param UNIT: A divisor of ``inner`` and of all other strides; they are passed divided by it.
    :param HALVINGS: The number of times that TILE can be halved.
    :param WHOLE: Whether a tile holds all of a row.
    """
    tile = tl.program_id(0) % inner_tiles
    outer = tl.program_id(0) // inner_tiles
    input += ((outer // second) * input_first + (outer % second) * input_second) * UNIT
    output += ((outer // second) * output_first + (outer % second) * output_second) * UNIT
    inner *= UNIT
    input_column *= UNIT
    output_column *= UNIT

    if PLAIN:
        input_inner = 1
        output_inner = 1

    values_type: tl.constexpr = output.dtype.element_ty
    beside = (tile * WIDTH + tl.arange(0, WIDTH))[None, :]
    lanes = tl.arange(0, TILE)[:, None]

    if WHOLE:
        inside = (lanes < columns) & (beside < inner)
        loaded = tl.load(input + lanes * input_column + beside * input_inner, inside, other=float("-inf"))
        values = loaded.to(values_type).to(tl.float32)
        powers = libdevice.exp(values - tl.max(values, 0)[None, :])
        scale = 1 / _added_up(powers, HALVINGS)
        tl.store(output + lanes * output_column + beside * output_inner, (powers * scale).to(values_type), inside)
    else:
        # Each lane has the maximum and the sum of its elements so far; after only -inf the sum is 0.
        maximum = tl.full([TILE, WIDTH], -3.4028234663852886e38, tl.float32)
        total = tl.zeros([TILE, WIDTH], tl.float32)

        for start in range(0, columns, TILE):
            places = start + lanes
            inside = (places < columns) & (beside < inner)
            loaded = tl.load(input + places * input_column + beside * input_inner, inside, other=float("-inf"))
            values = loaded.to(values_type).to(tl.float32)
            grows = values > maximum
            power = tl.exp2(tl.abs(values - maximum) * -1.4426950408889634)
            total = tl.where(grows, total * power + 1, total + power)
            maximum = tl.where(grows, values, maximum)

        highest = tl.max(maximum, 0)[None, :]
        scale = 1 / _added_up(total * tl.exp(maximum - highest), HALVINGS)
        last = (tl.cdiv(columns, TILE) - 1) * TILE

        for walked in range(0, columns, TILE):
            places = last - walked + lanes
            inside = (places < columns) & (beside < inner)
            loaded = tl.load(input + places * input_column + beside * input_inner, inside, other=float("-inf"))
            result = libdevice.exp(loaded.to(values_type).to(tl.float32) - highest) * scale
            tl.store(output + places * output_column + beside * output_inner, result.to(values_type), inside)


@triton.jit(do_not_specialize=_SIZES)
def rms_norm(
    output,
    input,
    weight,
    columns: tl.int32,
    output_stride: tl.int64,
    input_stride: tl.int64,
    count: tl.float32,
    eps: tl.float32,
    HAS_WEIGHT: tl.constexpr,
    UNIT: tl.constexpr,
    TILE: tl.constexpr,
    TILES: tl.constexpr,
    FAR: tl.constexpr,
):
    """Compute ``input / sqrt(mean(input^2) + eps) * weight`` of each row."""
    row = tl.program_id(0).to(tl.int64)
    input += row * (input_stride * UNIT)
    output += row * (output_stride * UNIT)
    columns *= UNIT
    lanes = tl.arange(0, TILE)

    if TILES:
        columns = TILES * TILE

    squares = tl.zeros([TILE], tl.float32)
    lost = tl.zeros([TILE], tl.float32)

    for start in range(0, columns, TILE):
        places = start + lanes
        values = _load(input + places, places < columns, "evict_last", TILES).to(tl.float32)

        if FAR:
            squares, lost = _added(squares, lost, values * values)
        else:
            squares += values * values

    if FAR:
        # An infinite sum has no rounding error.
        squares = tl.where(squares < float("inf"), squares + lost, squares)

    scale = 1 / tl.sqrt(tl.sum(squares, 0) / count + eps)

    last = (tl.cdiv(columns, TILE) - 1) * TILE

    # Triton does not see that the index of a loop with a negative step is a multiple of 16.
    for walked in range(0, columns, TILE):
        places = last - walked + lanes
        inside = places < columns
        values = _load(input + places, inside, "evict_first", TILES).to(tl.float32) * scale

        if HAS_WEIGHT:
            values *= _load(weight + places, inside, "evict_last", TILES).to(tl.float32)

        _store(output + places, values, inside, TILES)


@triton.jit(do_not_specialize=_SIZES)
def layer_norm(
    output,
    input,
    weight,
    bias,
    columns: tl.int32,
    output_stride: tl.int64,
    input_stride: tl.int64,
    count: tl.float32,
    eps: tl.float32,
    HAS_WEIGHT: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    UNIT: tl.constexpr,
    TILE: tl.constexpr,
    TILES: tl.constexpr,
    FAR: tl.constexpr,
):
    """Compute ``(input - mean) / sqrt(variance + eps) * weight + bias`` of each row."""
    row = tl.program_id(0).to(tl.int64)
    input += row * (input_stride * UNIT)
    output += row * (output_stride * UNIT)
    columns *= UNIT
    lanes = tl.arange(0, TILE)

    if TILES:
        columns = TILES * TILE

    # As in NineToothed's kernel, each lane keeps the mean of its elements and the squares about it (B. P. Welford).
    mean = tl.zeros([TILE], tl.float32)
    squares = tl.zeros([TILE], tl.float32)
    lost = tl.zeros([TILE], tl.float32)
    lost_squares = tl.zeros([TILE], tl.float32)
    seen = 0.0

    for start in range(0, columns, TILE):
        places = start + lanes
        inside = places < columns
        values = _load(input + places, inside, "evict_last", TILES).to(tl.float32)
        seen += 1
        step = values - mean

        if FAR:
            step = tl.where(inside, step - lost, 0)
            mean, lost = _added(mean, lost, step * (1 / seen))
            squares, lost_squares = _added(squares, lost_squares, step * (values - mean))
        else:
            if not TILES:
                step = tl.where(inside, step, 0)

            mean += step * (1 / seen)
            squares += step * (values - mean)

    if FAR:
        mean += lost
        squares += lost_squares

    # The last tile has no elements for some lanes.
    last = (tl.cdiv(columns, TILE) - 1) * TILE
    weights = tl.where(last + lanes < columns, seen, seen - 1)
    center = tl.sum(mean * weights, 0) / count
    apart = mean - center
    scale = 1 / tl.sqrt(tl.sum(squares + apart * apart * weights, 0) / count + eps)

    for walked in range(0, columns, TILE):
        places = last - walked + lanes
        inside = places < columns
        values = (_load(input + places, inside, "evict_first", TILES).to(tl.float32) - center) * scale

        if HAS_WEIGHT:
            values *= _load(weight + places, inside, "evict_last", TILES).to(tl.float32)

        if HAS_BIAS:
            values += _load(bias + places, inside, "evict_last", TILES).to(tl.float32)

        _store(output + places, values, inside, TILES)
