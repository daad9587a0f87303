"""``input @ mat2`` of two matrices, or of each pair of a batch."""

import functools

import ninetoothed.language as ntl
from ninetoothed import Tensor, block_size

from ntops.kernels import constants


def arrangement(output, input, mat2, *others, block_size_m=None, block_size_n=None, block_size_k=None):
    """Tile the output; each program takes a row of tiles of ``input`` and a column of tiles of ``mat2``.

    All but the last two dims are batch dims, of which a program takes one element. ``others`` that have dims are tiled
    as the output is.
    """
    if block_size_m is None:
        block_size_m = block_size()

    if block_size_n is None:
        block_size_n = block_size()

    if block_size_k is None:
        block_size_k = block_size()

    batch = output.ndim - 2
    ones = (1,) * batch
    kept = (-1,) * batch

    def tile(tensor):
        return _squeeze(tensor.tile((*ones, block_size_m, block_size_n)), batch)

    output_tiled = tile(output)

    input_tiled = input.tile((*ones, block_size_m, block_size_k)).tile((*ones, 1, -1))
    input_tiled = _squeeze(input_tiled.expand((*kept, -1, output_tiled.shape[-1])), batch, (batch,))

    mat2_tiled = mat2.tile((*ones, block_size_k, block_size_n)).tile((*ones, -1, 1))
    mat2_tiled = _squeeze(mat2_tiled.expand((*kept, output_tiled.shape[-2], -1)), batch, (batch + 1,))

    return output_tiled, input_tiled, mat2_tiled, *(tile(other) if other.ndim else other for other in others)


def _squeeze(tensor, batch, walked=()):
    """Drop the batch dims of the tiles, and the dim along which a row or column of tiles is not walked."""
    level = tensor

    if walked:
        level.dtype = level.dtype.squeeze((*range(batch), *walked))
        level = level.dtype

    if batch:
        level.dtype = level.dtype.squeeze(tuple(range(batch)))

    return tensor


def application(output, input, mat2, compute_dtype, input_precision):
    accumulator = ntl.zeros(output.shape, dtype=compute_dtype)

    for k in range(input.shape[0]):
        accumulator = ntl.dot(
            input[k], mat2[k], acc=accumulator, input_precision=input_precision, out_dtype=compute_dtype
        )

    output = ntl.cast(accumulator, output.dtype)


def bind(application, batch, *others, dtype=None, compute_dtype=None, input_precision=None):
    """Return the application and the tensors of a product with ``batch`` batch dims; IEEE if only ``dtype`` is
    given."""
    tensors = (
        Tensor(batch + 2, dtype=dtype, name="output"),
        # A tile that passes the end of K must add nothing beyond it.
        Tensor(batch + 2, dtype=dtype, other=0, name="input"),
        Tensor(batch + 2, dtype=dtype, other=0, name="mat2"),
        *others,
    )

    return constants.bind(
        application,
        tensors,
        compute_dtype=compute_dtype or constants.accumulated(dtype),
        input_precision=input_precision or (dtype and "ieee"),
    )


def premake(
    batch=0,
    dtype=None,
    compute_dtype=None,
    input_precision=None,
    block_size_m=None,
    block_size_n=None,
    block_size_k=None,
):
    """Return the arrangement, application and tensors of ``mm``; ``input_precision`` is Triton's ("ieee", "tf32")."""
    blocks = {"block_size_m": block_size_m, "block_size_n": block_size_n, "block_size_k": block_size_k}
    types = {"dtype": dtype, "compute_dtype": compute_dtype, "input_precision": input_precision}

    return functools.partial(arrangement, **blocks), *bind(application, batch, **types)
