"""``input @ mat2`` of two matrices."""

import functools

import ninetoothed.language as ntl
from ninetoothed import Tensor, block_size

from ntops.kernels import element_wise


def arrangement(output, input, mat2, *constants, block_size_m=None, block_size_n=None, block_size_k=None):
    """Tile the output; each program takes a row of tiles of ``input`` and a column of tiles of ``mat2``."""
    if block_size_m is None:
        block_size_m = block_size()

    if block_size_n is None:
        block_size_n = block_size()

    if block_size_k is None:
        block_size_k = block_size()

    output_tiled = output.tile((block_size_m, block_size_n))

    input_tiled = input.tile((block_size_m, block_size_k)).tile((1, -1)).expand((-1, output_tiled.shape[1]))
    input_tiled.dtype = input_tiled.dtype.squeeze(0)

    mat2_tiled = mat2.tile((block_size_k, block_size_n)).tile((-1, 1)).expand((output_tiled.shape[0], -1))
    mat2_tiled.dtype = mat2_tiled.dtype.squeeze(1)

    return output_tiled, input_tiled, mat2_tiled, *constants


def application(output, input, mat2, compute_dtype, input_precision):
    accumulator = ntl.zeros(output.shape, dtype=compute_dtype)

    for k in range(input.shape[0]):
        accumulator = ntl.dot(
            input[k], mat2[k], acc=accumulator, input_precision=input_precision, out_dtype=compute_dtype
        )

    output = ntl.cast(accumulator, output.dtype)


def premake(
    dtype=None,
    compute_dtype=None,
    input_precision=None,
    block_size_m=None,
    block_size_n=None,
    block_size_k=None,
):
    """Arrangement, application and tensors of ``mm``; ``input_precision`` is Triton's ("ieee", "tf32")."""
    # Where a tile passes the end of K it must add nothing.
    tensors = (
        Tensor(2, dtype=dtype, name="output"),
        Tensor(2, dtype=dtype, other=0, name="input"),
        Tensor(2, dtype=dtype, other=0, name="mat2"),
        element_wise.constant("compute_dtype", compute_dtype),
        element_wise.constant("input_precision", input_precision),
    )
    blocks = {"block_size_m": block_size_m, "block_size_n": block_size_n, "block_size_k": block_size_k}

    return functools.partial(arrangement, **blocks), application, tensors
