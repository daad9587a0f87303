"""The cumulative sum along a dim.

A program takes ``block_rows`` rows, and walks over ``steps`` tiles of them, from either end. It carries the sum of the
tiles that it has walked in the dtype in which it computes. Where ``steps`` tiles are only a part of the rows, the sums
of all parts are given, and each part starts at the sum of those that come before it.
"""

import functools

import ninetoothed.language as ntl
from ninetoothed import Tensor, block_size

from ntops.kernels import constants


def arrangement(output, input, *others, parts=False, block_rows=None, block_columns=None, block_parts=None, steps=-1):
    """Bring the output and the input to outer x rows x columns, and the sums of parts to outer x rows x parts, and tile
    them.

    :param others: The sums of parts, if there are ``parts``; then constants.
    :param block_rows: The number of rows of a program.
    :param block_columns: The number of columns of a tile.
    :param block_parts: The number of parts whose sums are added up at once.
    :param steps: The number of tiles of a part; -1: all of a row.
    """
    block_rows = block_size() if block_rows is None else block_rows
    block_columns = block_size() if block_columns is None else block_columns

    def walked(tensor, width, count):
        matrix = tensor.flatten(0, tensor.ndim - 2) if tensor.ndim > 2 else tensor.unsqueeze(0)
        tiled = matrix.tile((1, block_rows, width)).tile((1, 1, count))
        tiled.dtype = tiled.dtype.squeeze((0, 1))
        tiled.dtype.dtype = tiled.dtype.dtype.squeeze(0)
        return tiled

    tiled = [walked(tensor, block_columns, steps) for tensor in (output, input)]

    if parts:
        width = block_size() if block_parts is None else block_parts
        tiled.append(walked(others[0], width, -1).expand((-1, -1, tiled[0].shape[2])))

    return *tiled, *others[parts:]


def application(output, input, compute_dtype, reverse):
    # The carry comes from the last sum, not from carry + sum(values): Triton 3.7's pass of thread locality fails for
    # sums that the loop alone uses.
    is_last = ntl.arange(0, input.dtype.shape[1]) == (0 if reverse else input.dtype.shape[1] - 1)
    carry = ntl.zeros((input.dtype.shape[0],), dtype=compute_dtype)

    for i in range(input.shape[0]):
        place = input.shape[0] - 1 - i if reverse else i
        sums = ntl.cumsum(ntl.cast(input[place], compute_dtype), 1, reverse) + carry[:, None]
        output[place] = ntl.cast(sums, output.dtype.dtype)
        # Small integers are summed in 32 bits.
        carry = ntl.cast(ntl.sum(ntl.where(is_last[None, :], sums, 0), axis=1), compute_dtype)


def application_parts(output, input, sums, compute_dtype, reverse):
    part = ntl.min(input[0].offsets(-1), axis=0) // (input.shape[0] * input.dtype.shape[1])
    carry = ntl.zeros((input.dtype.shape[0],), dtype=compute_dtype)

    for i in range(sums.shape[0]):
        other = sums[i].offsets(-1)
        before = other > part if reverse else other < part
        # Not a product with 0: a sum may be infinite.
        carry = ntl.cast(carry + ntl.sum(ntl.where(before[None, :], sums[i], 0), axis=1), compute_dtype)

    is_last = ntl.arange(0, input.dtype.shape[1]) == (0 if reverse else input.dtype.shape[1] - 1)

    for i in range(input.shape[0]):
        place = input.shape[0] - 1 - i if reverse else i
        found = ntl.cumsum(ntl.cast(input[place], compute_dtype), 1, reverse) + carry[:, None]
        output[place] = ntl.cast(found, output.dtype.dtype)
        carry = ntl.cast(ntl.sum(ntl.where(is_last[None, :], found, 0), axis=1), compute_dtype)


def premake(
    ndim,
    dtype=None,
    output_dtype=None,
    compute_dtype=None,
    parts=False,
    reverse=False,
    block_rows=None,
    block_columns=None,
    block_parts=None,
    steps=-1,
):
    """Return the arrangement, application and tensors of ``cumsum``.

    :param ndim: The number of dims of the output and the input, 2 or more, of which the last one is summed along.
    :param dtype: The element type of the input; only ahead-of-time builds need it, and that of the output.
    :param parts: Whether rows are split up; then the sums of parts of ``steps`` tiles follow, in the compute dtype.
    :param reverse: Whether sums run from the last element to the first.
    :param block_rows: See :func:`arrangement`; ``block_columns``, ``block_parts`` and ``steps`` likewise.
    """
    output_dtype = output_dtype or constants.summed(dtype)
    compute_dtype = compute_dtype or constants.accumulated(output_dtype)
    tensors = (Tensor(ndim, dtype=output_dtype, name="output"), Tensor(ndim, dtype=dtype, other=0, name="input"))

    if parts:
        tensors += (Tensor(ndim, dtype=compute_dtype, other=0, name="sums"),)

    arranged = functools.partial(
        arrangement,
        parts=parts,
        block_rows=block_rows,
        block_columns=block_columns,
        block_parts=block_parts,
        steps=steps,
    )
    variant = application_parts if parts else application

    return arranged, *constants.bind(variant, tensors, compute_dtype=compute_dtype, reverse=reverse)
