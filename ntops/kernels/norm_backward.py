"""The gradients of ``layer_norm`` and ``rms_norm`` over the rows of a matrix.

With ``n`` the normalized row and ``g`` the gradient times the weight, the gradient of a row is ``(g - mean(g) - n
mean(g n)) / deviation``, without ``mean(g)`` if nothing was centered. The gradients of the weight and the bias are the
sums over rows of the gradient times ``n``, and of the gradient. The forward pass saves only its arguments: mean and
deviation are computed again from data that is loaded anyway.

NineToothed cannot express these Triton kernels: a program takes several rows one after the other, and keeps its sums
for the parameters in registers. It writes them as a row of ``weights`` and ``biases``, whose columns ``column_sums``
adds up: nothing is added in the order of arrival.
"""

import triton
import triton.language as tl


@triton.jit
def _rows(gradient, input, stride_g, stride_i, row, column, rows, columns, FULL: tl.constexpr):
    """Load rows of both operands, zeros beyond the end."""
    taken = row < rows

    if not FULL:
        taken = taken & (column < columns)

    values = tl.load(input + row * stride_i + column, mask=taken, other=0)
    return values, tl.load(gradient + row * stride_g + column, mask=taken, other=0)


@triton.jit(do_not_specialize=["rows"])
def whole_rows(
    output,
    weights,
    biases,
    gradient,
    input,
    weight,
    stride_g: tl.int64,
    stride_i: tl.int64,
    rows,
    columns,
    eps: tl.float64,
    CENTERED: tl.constexpr,
    WEIGHTED: tl.constexpr,
    TO_INPUT: tl.constexpr,
    TO_WEIGHT: tl.constexpr,
    TO_BIAS: tl.constexpr,
    DTYPE: tl.constexpr,
    FULL: tl.constexpr,
    AHEAD: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """Compute the gradients of rows that a tile holds, ``BLOCK_R`` at a time; programs take tiles in turn.

    :param output: (rows, columns), contiguous; written with TO_INPUT.
    :param weights: (programs, columns), contiguous, in the compute dtype, with TO_WEIGHT; ``biases`` with TO_BIAS.
    :param gradient: (rows, columns), with unit stride along a row, like ``input``.
    :param weight: (columns,), contiguous, with WEIGHTED.
    :param FULL: Whether ``columns`` is ``BLOCK_C``, so that no column is masked.
    :param AHEAD: Whether a program loads its next tile before it reduces this one. Else it waits for memory at each.
    """
    column = tl.arange(0, BLOCK_C)[None, :]
    lanes = tl.arange(0, BLOCK_R)[:, None]
    inside = column < columns
    # ``columns`` is a plain number if it is 1, which Triton compiles in.
    count = tl.full((), 0, DTYPE) + columns
    first = tl.program_id(0).to(tl.int64) * BLOCK_R
    step = tl.num_programs(0) * BLOCK_R

    if WEIGHTED and AHEAD:
        factors = tl.load(weight + column, mask=inside, other=0)

    weight_sums = tl.zeros((BLOCK_R, BLOCK_C), DTYPE)
    bias_sums = tl.zeros((BLOCK_R, BLOCK_C), DTYPE)

    if AHEAD:
        values_ahead, slopes_ahead = _rows(
            gradient, input, stride_g, stride_i, first + lanes, column, rows, columns, FULL
        )

    for start in range(first, rows, step):
        row = start + lanes

        if AHEAD:
            values = values_ahead
            slopes = slopes_ahead
            values_ahead, slopes_ahead = _rows(
                gradient, input, stride_g, stride_i, row + step, column, rows, columns, FULL
            )
        else:
            values, slopes = _rows(gradient, input, stride_g, stride_i, row, column, rows, columns, FULL)

        values = values.to(DTYPE)
        slopes = slopes.to(DTYPE)

        if CENTERED:
            values = values - (tl.sum(values, 1) / count)[:, None]

            if not FULL:
                values = tl.where(inside, values, 0)

        scale = 1 / tl.sqrt(tl.sum(values * values, 1) / count + eps.to(DTYPE))[:, None]
        normal = values * scale

        if TO_WEIGHT:
            # Rows beyond the end have gradients of zero, though their normalized values may be infinite.
            weight_sums += tl.where(row < rows, slopes * normal, 0)

        if TO_BIAS:
            bias_sums += slopes

        if TO_INPUT:
            if WEIGHTED:
                if not AHEAD:
                    # The longest rows leave no registers for it.
                    factors = tl.load(weight + column, mask=inside, other=0)

                slopes = slopes * factors.to(DTYPE)

            along = (tl.sum(slopes * normal, 1) / count)[:, None]

            if CENTERED:
                slopes = slopes - (tl.sum(slopes, 1) / count)[:, None]

            result = (slopes - normal * along) * scale
            taken = row < rows

            if not FULL:
                taken = taken & inside

            tl.store(output + row * columns + column, result.to(output.dtype.element_ty), mask=taken)

    place = tl.program_id(0).to(tl.int64) * columns + tl.arange(0, BLOCK_C)
    stored = tl.arange(0, BLOCK_C) < columns

    if TO_WEIGHT:
        tl.store(weights + place, tl.sum(weight_sums, 0), mask=stored)

    if TO_BIAS:
        tl.store(biases + place, tl.sum(bias_sums, 0), mask=stored)


@triton.jit
def walked_rows(
    output,
    means,
    scales,
    gradient,
    input,
    weight,
    stride_g: tl.int64,
    stride_i: tl.int64,
    columns,
    eps: tl.float64,
    CENTERED: tl.constexpr,
    WEIGHTED: tl.constexpr,
    TO_INPUT: tl.constexpr,
    DTYPE: tl.constexpr,
    TILE: tl.constexpr,
):
    """Compute the gradient of one row, a tile at a time, and keep its mean and inverse deviation for ``parameters``.

    :param means: (rows,), in the compute dtype, written with CENTERED; ``scales`` is always written.
    """
    row = tl.program_id(0).to(tl.int64)
    input += row * stride_i
    gradient += row * stride_g
    output += row * columns
    lanes = tl.arange(0, TILE)
    # ``columns`` is a plain number if it is 1, which Triton compiles in.
    count = tl.full((), 0, DTYPE) + columns
    mean = tl.full((), 0, DTYPE)

    if CENTERED:
        sums = tl.zeros((TILE,), DTYPE)

        for start in range(0, columns, TILE):
            place = start + lanes
            sums += tl.load(input + place, mask=place < columns, other=0).to(DTYPE)

        mean = tl.sum(sums, 0) / count
        tl.store(means + row, mean)

    squares = tl.zeros((TILE,), DTYPE)
    products = tl.zeros((TILE,), DTYPE)
    slope_sums = tl.zeros((TILE,), DTYPE)

    for start in range(0, columns, TILE):
        place = start + lanes
        inside = place < columns
        values = tl.load(input + place, mask=inside, other=0).to(DTYPE)
        slopes = tl.load(gradient + place, mask=inside, other=0).to(DTYPE)

        if CENTERED:
            values = tl.where(inside, values - mean, 0)

        if WEIGHTED:
            slopes = slopes * tl.load(weight + place, mask=inside, other=0).to(DTYPE)

        squares += values * values
        products += slopes * values
        slope_sums += slopes

    scale = 1 / tl.sqrt(tl.sum(squares, 0) / count + eps.to(DTYPE))
    tl.store(scales + row, scale)

    if TO_INPUT:
        along = tl.sum(products, 0) * scale / count
        middle = tl.sum(slope_sums, 0) / count

        for start in range(0, columns, TILE):
            place = start + lanes
            inside = place < columns
            values = tl.load(input + place, mask=inside, other=0).to(DTYPE)
            slopes = tl.load(gradient + place, mask=inside, other=0).to(DTYPE)

            if WEIGHTED:
                slopes = slopes * tl.load(weight + place, mask=inside, other=0).to(DTYPE)

            result = slopes - (values - mean) * scale * along

            if CENTERED:
                result = result - middle

            tl.store(output + place, (result * scale).to(output.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["rows", "part"])
def parameters(
    weights,
    biases,
    means,
    scales,
    gradient,
    input,
    stride_g: tl.int64,
    stride_i: tl.int64,
    rows,
    columns,
    part,
    CENTERED: tl.constexpr,
    TO_WEIGHT: tl.constexpr,
    TO_BIAS: tl.constexpr,
    DTYPE: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """Compute the contribution of a part's rows to the parameters' gradients, for ``BLOCK_C`` columns; the grid is
    (column tiles, parts). The arguments are those of ``whole_rows`` and ``walked_rows``."""
    column = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    inside = column < columns
    first = tl.program_id(1).to(tl.int64) * part
    stop = tl.minimum(first + part, rows)
    weight_sums = tl.zeros((BLOCK_R, BLOCK_C), DTYPE)
    bias_sums = tl.zeros((BLOCK_R, BLOCK_C), DTYPE)

    for start in range(first, stop, BLOCK_R):
        row = start + tl.arange(0, BLOCK_R)
        there = row < stop
        taken = there[:, None] & inside[None, :]
        slopes = tl.load(gradient + row[:, None] * stride_g + column[None, :], mask=taken, other=0).to(DTYPE)

        if TO_BIAS:
            bias_sums += slopes

        if TO_WEIGHT:
            values = tl.load(input + row[:, None] * stride_i + column[None, :], mask=taken, other=0).to(DTYPE)

            if CENTERED:
                values = values - tl.load(means + row, mask=there, other=0)[:, None]

            weight_sums += slopes * (values * tl.load(scales + row, mask=there, other=0)[:, None])

    place = tl.program_id(1).to(tl.int64) * columns + column

    if TO_WEIGHT:
        tl.store(weights + place, tl.sum(weight_sums, 0), mask=inside)

    if TO_BIAS:
        tl.store(biases + place, tl.sum(bias_sums, 0), mask=inside)
