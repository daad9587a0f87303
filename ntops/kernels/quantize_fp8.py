"""``tensor / scale`` in 8-bit floating point with the scales, for ahead-of-time builds.

``ntops.torch`` runs the kernels of ``ntops.kernels.fp8``. NineToothed has no 8-bit floating-point types: the numbers
are the bytes of a "u8" tensor.
"""

import functools

import ninetoothed.language as ntl
from ninetoothed import Tensor, block_size

from ntops.kernels import constants


def arrangement(output, scale, input, block_rows=None, block_columns=None):
    """Tile the matrices; the columns of a tile share the scale of each of its rows."""
    if block_rows is None:
        block_rows = block_size()

    if block_columns is None:
        block_columns = block_size()

    tile = (block_rows, block_columns)
    return output.tile(tile), scale.tile((block_rows, 1)), input.tile(tile)


def application(output, scale, input, e4m3):
    values = ntl.cast(input, ntl.float32)
    magnitude = ntl.abs(values)
    amax = ntl.max(ntl.where(magnitude < float("inf"), magnitude, 0.0), axis=1)[:, None]
    # At least the smallest normal number, whose reciprocal is finite.
    found = ntl.maximum(ntl.div_rn(amax, 448.0 if e4m3 else 57344.0), 1.1754943508222875e-38)
    found = ntl.where(amax == 0, 1.0, found)
    scale = found
    quotient = values * ntl.div_rn(1.0, found)
    output = ntl.cast(ntl.cast(quotient, ntl.float8e4nv if e4m3 else ntl.float8e5), ntl.uint8, bitcast=True)


def premake(dtype=None, e4m3=True, block_rows=None, block_columns=None):
    """Return the arrangement, application and tensors of ``quantize_fp8`` with computed scales, for GPUs from sm_89 on.

    :param dtype: The element type of the input, (rows, columns).
    :param e4m3: Whether the numbers are float8_e4m3fn, else float8_e5m2.
    :param block_columns: 128 for scales (rows, ceil(columns / 128)); at least the columns for scales (rows, 1).
    """
    tensors = (
        Tensor(2, dtype="u8", name="output"),
        Tensor(2, dtype="fp32", name="scale"),
        Tensor(2, dtype=dtype, other=0, name="input"),
    )
    arranged = functools.partial(arrangement, block_rows=block_rows, block_columns=block_columns)

    return arranged, *constants.bind(application, tensors, e4m3=bool(e4m3))
