"""Root mean square norm of a row of heads, then rotation of each head, in one pass over memory."""

import functools

import ninetoothed.language as ntl
from ninetoothed import Tensor, block_size

from ntops.kernels import constants


def arrangement(*tensors, block_rows=None, block_heads=None, block_columns=None, block_pairs=None, looped=False):
    """Tile tensors of (batch, positions, heads, columns): a program takes ``block_rows`` positions of a sequence.

    Behind them come the two tables, which have one row for all heads, (batch, positions, 1, pairs), and numbers.

    :param block_rows: How many positions a program takes.
    :param block_heads: How many heads a tile has; all of them unless ``looped``.
    :param block_columns: How many columns a tile has; it must hold all those of a head.
    :param block_pairs: How many columns a tile of a table has, likewise.
    :param looped: Whether a program walks over the heads of its rows; then what has heads is a row of tiles to it.
    """
    *rows, cos, sin = (tensor for tensor in tensors if tensor.ndim)
    numbers = (tensor for tensor in tensors if not tensor.ndim)
    blocks = (block_rows, block_heads, block_columns, block_pairs)
    block_rows, block_heads, block_columns, block_pairs = (block or block_size() for block in blocks)

    def tile(tensor, *blocks):
        tiled = tensor.tile((1, *blocks))
        tiled.dtype = tiled.dtype.squeeze(0)
        return tiled

    def walk(tiled):
        walked = tiled.tile((1, 1, -1, 1))
        walked.dtype = walked.dtype.squeeze((0, 1, 3))
        return walked

    tiled = [tile(tensor, block_rows, block_heads, block_columns) for tensor in rows]
    tables = [tile(table, block_rows, 1, block_pairs) for table in (cos, sin)]

    return *(map(walk, tiled) if looped else tiled), *tables, *numbers


def application(output, rotated, first, second, weight_first, weight_second, cos, sin, count, eps, compute_dtype):
    x0 = ntl.cast(first, compute_dtype)
    x1 = ntl.cast(second, compute_dtype)
    squares = ntl.sum(ntl.sum(x0 * x0 + x1 * x1, axis=2), axis=1)
    scale = 1 / ntl.sqrt(squares / ntl.cast(count, compute_dtype) + ntl.cast(eps, compute_dtype))
    x0 = x0 * scale[:, None, None] * ntl.cast(weight_first, compute_dtype)
    x1 = x1 * scale[:, None, None] * ntl.cast(weight_second, compute_dtype)
    cosine = ntl.cast(cos, compute_dtype)
    sine = ntl.cast(sin, compute_dtype)
    output = ntl.cast(x0 * cosine - x1 * sine, output.dtype)
    rotated = ntl.cast(x0 * sine + x1 * cosine, rotated.dtype)


def application_looped(
    output, rotated, first, second, weight_first, weight_second, cos, sin, count, eps, compute_dtype
):
    x0 = ntl.cast(first[0], compute_dtype)
    x1 = ntl.cast(second[0], compute_dtype)
    squares = x0 * x0 + x1 * x1

    for i in range(1, first.shape[0]):
        x0 = ntl.cast(first[i], compute_dtype)
        x1 = ntl.cast(second[i], compute_dtype)
        squares += x0 * x0 + x1 * x1

    mean = ntl.sum(ntl.sum(squares, axis=2), axis=1) / ntl.cast(count, compute_dtype)
    scale = 1 / ntl.sqrt(mean + ntl.cast(eps, compute_dtype))
    cosine = ntl.cast(cos, compute_dtype)
    sine = ntl.cast(sin, compute_dtype)

    for i in range(output.shape[0]):
        x0 = ntl.cast(first[i], compute_dtype) * scale[:, None, None] * ntl.cast(weight_first[i], compute_dtype)
        x1 = ntl.cast(second[i], compute_dtype) * scale[:, None, None] * ntl.cast(weight_second[i], compute_dtype)
        output[i] = ntl.cast(x0 * cosine - x1 * sine, output.dtype.dtype)
        rotated[i] = ntl.cast(x0 * sine + x1 * cosine, rotated.dtype.dtype)


def application_interleaved(output, input, weight, cos, sin, count, eps, compute_dtype):
    values = ntl.cast(input, compute_dtype)
    squares = ntl.sum(ntl.sum(values * values, axis=2), axis=1)
    scale = 1 / ntl.sqrt(squares / ntl.cast(count, compute_dtype) + ntl.cast(eps, compute_dtype))
    values = values * scale[:, None, None] * ntl.cast(weight, compute_dtype)
    pairs = ntl.reshape(values, (values.shape[0], values.shape[1], values.shape[2] // 2, 2))
    x0, x1 = ntl.split(pairs)
    cosine = ntl.cast(cos, compute_dtype)
    sine = ntl.cast(sin, compute_dtype)
    # Loaded and stored as they lie, 16 bytes at a time: elements two apart would be loaded one by one.
    output = ntl.cast(ntl.interleave(x0 * cosine - x1 * sine, x0 * sine + x1 * cosine), output.dtype)


def premake(
    dtype=None,
    weight_dtype=None,
    table_dtype=None,
    compute_dtype=None,
    scalars=None,
    interleaved=False,
    looped=False,
    block_rows=None,
    block_heads=None,
    block_columns=None,
    block_pairs=None,
):
    """Arrangement, application and tensors of ``fused_rmsnorm_rope``; ``count`` is the number of elements of a row.

    :param interleaved: Whether a head is one tensor, whose neighbours are pairs; else the first and the second
        elements of all pairs are tensors of their own, whatever their strides.
    :param looped: Whether a row is longer than a tile; not with ``interleaved``.
    """
    compute_dtype = compute_dtype or constants.accumulated(dtype)
    scalars = scalars or constants.numbers(dtype, "count", "eps")
    output = Tensor(4, dtype=dtype, name="output")

    def like(dtype, *names):
        # What is loaded beyond a row must add nothing.
        return (Tensor(shape=output.shape, dtype=dtype, other=0, name=name) for name in names)

    outputs = () if interleaved else ("rotated",)
    inputs = ("input",) if interleaved else ("first", "second")
    weights = ("weight",) if interleaved else ("weight_first", "weight_second")
    tensors = (
        output,
        *like(dtype, *outputs, *inputs),
        *like(weight_dtype or dtype, *weights),
        *(Tensor(4, dtype=table_dtype or dtype, other=0, name=name) for name in ("cos", "sin")),
        *(Tensor(0, dtype=scalars.get(name), name=name) for name in ("count", "eps")),
    )
    variant = application_interleaved if interleaved else application_looped if looped else application
    blocks = {
        "block_rows": block_rows,
        "block_heads": block_heads,
        "block_columns": block_columns,
        "block_pairs": block_pairs,
    }
    arranged = functools.partial(arrangement, looped=looped, **blocks)

    return arranged, *constants.bind(variant, tensors, compute_dtype=compute_dtype)
