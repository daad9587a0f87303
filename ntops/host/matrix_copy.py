"""Copies of matrices, made so that a recorded call can repeat them."""

import math

from ntops.host.dim_order import contiguous_strides
from ntops.kernels import matrix_copy as kernels
from ntops.launch import recorder
from ntops.launch.devices import next_power_of_2, on_device


def aligned(matrices):
    """Return a copy of (B, R, C) matrices with C innermost, whose rows begin at multiples of 16 bytes."""
    return write(empty(matrices, matrices.shape), matrices)


def empty(like, shape):
    """Allocate (B, R, C) matrices whose rows begin at multiples of 16 bytes, of the dtype and device of
    ``matrices``."""
    batch, rows, columns = shape
    unit = 16 // like.element_size()
    whole = (batch, rows, -(-columns // unit) * unit)
    return recorder.empty(whole, contiguous_strides(whole), like.dtype, like.device)[..., :columns]


def write(target, source):
    """Copy (B, R, C) matrices into others of the same dtype, and return the target."""
    batch, rows, columns = target.shape
    target_plain = target.stride(2) == 1 or columns == 1

    if not target_plain and target.stride(1) == 1:
        write(target.mT, source.mT)
        return target

    plain = source.stride(2) == 1 or columns == 1
    turned = not plain and source.stride(1) == 1
    steps = [target.stride(0), target.stride(1), 0 if target_plain else target.stride(2)]
    steps += [source.stride(0), 0 if turned else source.stride(1), 0 if plain else source.stride(2)]
    # Vectors of at most 16 bytes, such that all rows begin at multiples of a vector.
    unit = math.gcd(8, *steps)
    column_unit = math.gcd(8, columns)
    # A tile has 4 KiB of half types: of short rows there are more.
    wide = min(max(next_power_of_2(columns), 16), 256)
    block_rows, block_columns = (64, 64) if turned else (2048 // wide, wide)
    row_tiles, column_tiles = -(-rows // block_rows), -(-columns // block_columns)

    with on_device(target.device):
        recorder.launch(
            kernels.copy,
            (batch * row_tiles * column_tiles,),
            {"num_warps": 4},
            target,
            source,
            *(step // unit for step in steps),
            rows,
            columns // column_unit,
            row_tiles,
            column_tiles,
            unit,
            column_unit,
            turned,
            plain,
            target_plain,
            block_rows,
            block_columns,
        )

    return target
