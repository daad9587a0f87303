"""Copies of matrices into a layout that kernels need: rows that begin at multiples of 16 bytes, or along the other dim.

This is a Triton kernel instead of a copy by torch, so that a call that needs a copy can be recorded. Tiles are read
along the dim in which the source is contiguous, and written along the target's contiguous dim.
"""

import triton
import triton.language as tl


@triton.jit(
    do_not_specialize=[
        *("target_batch", "target_row", "target_column", "source_batch", "source_row", "source_column"),
        *("rows", "columns", "row_tiles", "column_tiles"),
    ]
)
def copy(
    target,
    source,
    target_batch,
    target_row,
    target_column,
    source_batch,
    source_row,
    source_column,
    rows,
    columns,
    row_tiles,
    column_tiles,
    UNIT: tl.constexpr,
    COLUMN_UNIT: tl.constexpr,
    SOURCE_TURNED: tl.constexpr,
    SOURCE_PLAIN: tl.constexpr,
    TARGET_PLAIN: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_COLUMNS: tl.constexpr,
):
    """Copy a tile of one of a batch of matrices.

    :param target: (batch, rows, columns); ``source`` likewise.
    :param UNIT: A divisor of all strides that are not 1; strides are passed divided by it. COLUMN_UNIT likewise divides
        ``columns``.
    :param SOURCE_TURNED: Whether the source has a stride of 1 along the rows; SOURCE_PLAIN: along the columns.
    :param TARGET_PLAIN: Whether the target has a stride of 1 along the columns.
    """
    tile = tl.program_id(0)
    batch = (tile // (row_tiles * column_tiles)).to(tl.int64)
    tile = tile % (row_tiles * column_tiles)
    row = tile // column_tiles * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    column = tile % column_tiles * BLOCK_COLUMNS + tl.arange(0, BLOCK_COLUMNS)
    inside = (row < rows)[:, None] & (column < columns * COLUMN_UNIT)[None, :]
    row_step = (source_row * UNIT).to(tl.int64)
    column_step = (source_column * UNIT).to(tl.int64)

    if SOURCE_PLAIN:
        places = row[:, None] * row_step + column[None, :]
    elif SOURCE_TURNED:
        places = row[:, None] + column[None, :] * column_step
    else:
        places = row[:, None] * row_step + column[None, :] * column_step

    values = tl.load(source + batch * (source_batch * UNIT) + places, mask=inside)
    places = row[:, None] * (target_row * UNIT).to(tl.int64)

    if TARGET_PLAIN:
        places += column[None, :]
    else:
        places += column[None, :] * (target_column * UNIT).to(tl.int64)

    tl.store(target + batch * (target_batch * UNIT) + places, values, mask=inside)
