"""Rotation of pairs of elements by angles given as sines and cosines."""

import functools

import ninetoothed.language as ntl
from ninetoothed import Tensor
from ninetoothed import block_size as searched_block_size

from ntops.kernels import constants


def arrangement(*tensors, block_rows=None, block_heads=None, block_pairs=None, interleaved=False):
    """Tile tensors of (batch, positions, heads, columns) and, after them, the two tables, (batch, positions, 1, pairs),
    whose tile serves all the heads of a program.

    :param interleaved: Whether heads are whole, so that their tiles have two columns for each pair.
    """
    *heads, sin, cos = (tensor for tensor in tensors if tensor.ndim)
    numbers = (tensor for tensor in tensors if not tensor.ndim)
    block_rows, block_heads, block_pairs = (b or searched_block_size() for b in (block_rows, block_heads, block_pairs))

    def tile(tensor, *blocks):
        tiled = tensor.tile((1, *blocks))
        tiled.dtype = tiled.dtype.squeeze(0)
        return tiled

    tiled = [tile(tensor, block_rows, block_heads, block_pairs * (1 + interleaved)) for tensor in heads]
    tables = [tile(table, block_rows, 1, block_pairs).expand((-1, -1, tiled[0].shape[2], -1)) for table in (sin, cos)]

    return *tiled, *tables, *numbers


def application(output, rotated, first, second, sin, cos, compute_dtype):
    x0 = ntl.cast(first, compute_dtype)
    x1 = ntl.cast(second, compute_dtype)
    sine = ntl.cast(sin, compute_dtype)
    cosine = ntl.cast(cos, compute_dtype)
    # In place, both are read before either is written. The product that is fused with the addition is chosen
    # explicitly: a compiler's choice would depend on the layout.
    output = ntl.cast(ntl.fma(x0, cosine, x1 * sine * -1.0), output.dtype)
    rotated = ntl.cast(ntl.fma(x0, sine, x1 * cosine), rotated.dtype)


def application_interleaved(output, input, sin, cos, compute_dtype):
    values = ntl.cast(input, compute_dtype)
    x0, x1 = ntl.split(ntl.reshape(values, (values.shape[0], values.shape[1], values.shape[2] // 2, 2)))
    sine = ntl.cast(sin, compute_dtype)
    cosine = ntl.cast(cos, compute_dtype)
    # Load and store in memory order, 16 bytes at a time: elements two apart would be loaded one by one.
    turned = ntl.interleave(ntl.fma(x0, cosine, x1 * sine * -1.0), ntl.fma(x0, sine, x1 * cosine))
    output = ntl.cast(turned, output.dtype)


def premake(
    dtype=None,
    table_dtype=None,
    compute_dtype=None,
    interleaved=False,
    block_rows=None,
    block_heads=None,
    block_pairs=None,
):
    """Return the arrangement, application and tensors of ``rotary_position_embedding``.

    :param interleaved: Whether heads are whole and neighbours are pairs; else the first and the second elements of all
        pairs are separate tensors of any strides.
    """
    compute_dtype = compute_dtype or constants.accumulated(dtype)
    output = Tensor(4, dtype=dtype, name="output")
    names = ("input",) if interleaved else ("rotated", "first", "second")
    tensors = (
        output,
        *(Tensor(shape=output.shape, dtype=dtype, name=name) for name in names),
        *(Tensor(4, dtype=table_dtype or dtype, name=name) for name in ("sin", "cos")),
    )
    variant = application_interleaved if interleaved else application
    blocks = {"block_rows": block_rows, "block_heads": block_heads, "block_pairs": block_pairs}

    return (
        functools.partial(arrangement, interleaved=interleaved, **blocks),
        *constants.bind(variant, tensors, compute_dtype=compute_dtype),
    )
