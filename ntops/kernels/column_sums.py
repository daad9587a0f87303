"""Sums of the columns of a matrix, in a fixed order: gradients of broadcast operands, and of weights.

NineToothed cannot express these Triton kernels: a program walks over the rows of its part, and the same kernel adds up
the parts. Nothing is added in the order of arrival.
"""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["stride_c", "rows", "part"])
def add_rows(
    output,
    input,
    stride_r: tl.int64,
    stride_c: tl.int64,
    rows,
    columns,
    part,
    scale: tl.float64,
    DTYPE: tl.constexpr,
    UNIT: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """Compute ``scale`` times the sum of a part's rows, for ``BLOCK_C`` columns; the grid is (column tiles, parts).

    :param output: (parts, columns), contiguous.
    :param input: (rows, columns), of any strides.
    :param part: The rows of a part, a multiple of ``BLOCK_R``.
    :param UNIT: Whether columns are adjacent in memory.
    """
    if UNIT:
        stride_c = 1

    first = tl.program_id(1).to(tl.int64) * part
    stop = tl.minimum(first + part, rows)
    column = tl.program_id(0).to(tl.int64) * BLOCK_C + tl.arange(0, BLOCK_C)
    inside = column < columns
    lanes = tl.arange(0, BLOCK_R)
    total = tl.zeros((BLOCK_R, BLOCK_C), DTYPE)

    for start in range(first, stop, BLOCK_R):
        row = start + lanes
        taken = (row < stop)[:, None] & inside[None, :]
        places = row[:, None] * stride_r + column[None, :] * stride_c
        total += tl.load(input + places, mask=taken, other=0).to(DTYPE)

    sums = tl.sum(total, 0) * scale.to(DTYPE)
    tl.store(output + tl.program_id(1).to(tl.int64) * columns + column, sums.to(output.dtype.element_ty), mask=inside)
