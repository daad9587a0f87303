"""Root mean square norm of a row of heads, then rotation of each head, in one pass over memory."""

import functools

import ninetoothed.language as ntl
from ninetoothed import Tensor, block_size

from ntops.kernels import constants


def arrangement(*tensors, block_rows=None, block_heads=None, block_pairs=None, interleaved=False, looped=False):
    """Tile tensors of (batch, positions, heads, columns): a program takes ``block_rows`` positions of a sequence.

    After them come the two tables, which have one row for all heads, (batch, positions, 1, pairs), and numbers.

    :param block_rows: The number of positions that a program takes.
    :param block_heads: The number of heads in a tile; all of them unless ``looped``.
    :param block_pairs: The number of pairs in a tile; it must hold all pairs of a head.
    :param interleaved: Whether heads are whole, so that their tiles have two columns for each pair.
    :param looped: Whether a program walks over the heads of its rows; then each tensor with heads is a row of tiles.
    """
    *rows, cos, sin = (tensor for tensor in tensors if tensor.ndim)
    numbers = (tensor for tensor in tensors if not tensor.ndim)
    block_rows, block_heads, block_pairs = (b or block_size() for b in (block_rows, block_heads, block_pairs))
    block_columns = 2 * block_pairs if interleaved else block_pairs

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


def application(output, rotated, x0, x1, w0, w1, cos, sin, count, eps, compute_dtype):
    n0 = ntl.cast(x0, compute_dtype)
    n1 = ntl.cast(x1, compute_dtype)
    squares = ntl.sum(ntl.sum(ntl.fma(n0, n0, n1 * n1), axis=2), axis=1)
    scale = 1 / ntl.sqrt(squares / ntl.cast(count, compute_dtype) + ntl.cast(eps, compute_dtype))
    n0 = n0 * scale[:, None, None] * ntl.cast(w0, compute_dtype)
    n1 = n1 * scale[:, None, None] * ntl.cast(w1, compute_dtype)
    cosine = ntl.cast(cos, compute_dtype)
    sine = ntl.cast(sin, compute_dtype)
    # The fused product is chosen explicitly, since compilers choose by layout.
    output = ntl.cast(ntl.fma(n0, cosine, n1 * sine * -1.0), output.dtype)
    rotated = ntl.cast(ntl.fma(n0, sine, n1 * cosine), rotated.dtype)


def application_looped(output, rotated, x0, x1, w0, w1, cos, sin, count, eps, compute_dtype):
    n0 = ntl.cast(x0[0], compute_dtype)
    n1 = ntl.cast(x1[0], compute_dtype)
    squares = ntl.fma(n0, n0, n1 * n1)

    for i in range(1, x0.shape[0]):
        n0 = ntl.cast(x0[i], compute_dtype)
        n1 = ntl.cast(x1[i], compute_dtype)
        squares += ntl.fma(n0, n0, n1 * n1)

    mean = ntl.sum(ntl.sum(squares, axis=2), axis=1) / ntl.cast(count, compute_dtype)
    scale = 1 / ntl.sqrt(mean + ntl.cast(eps, compute_dtype))
    cosine = ntl.cast(cos, compute_dtype)
    sine = ntl.cast(sin, compute_dtype)

    for i in range(output.shape[0]):
        n0 = ntl.cast(x0[i], compute_dtype) * scale[:, None, None] * ntl.cast(w0[i], compute_dtype)
        n1 = ntl.cast(x1[i], compute_dtype) * scale[:, None, None] * ntl.cast(w1[i], compute_dtype)
        output[i] = ntl.cast(ntl.fma(n0, cosine, n1 * sine * -1.0), output.dtype.dtype)
        rotated[i] = ntl.cast(ntl.fma(n0, sine, n1 * cosine), rotated.dtype.dtype)


def application_interleaved(output, input, weight, cos, sin, count, eps, compute_dtype):
    values = ntl.cast(input, compute_dtype)
    squares = ntl.sum(ntl.sum(values * values, axis=2), axis=1)
    scale = 1 / ntl.sqrt(squares / ntl.cast(count, compute_dtype) + ntl.cast(eps, compute_dtype))
    values = values * scale[:, None, None] * ntl.cast(weight, compute_dtype)
    pairs = ntl.reshape(values, (values.shape[0], values.shape[1], values.shape[2] // 2, 2))
    n0, n1 = ntl.split(pairs)
    cosine = ntl.cast(cos, compute_dtype)
    sine = ntl.cast(sin, compute_dtype)
    # Load and store in memory order, 16 bytes at a time: elements two apart would be loaded one by one.
    turned = ntl.interleave(ntl.fma(n0, cosine, n1 * sine * -1.0), ntl.fma(n0, sine, n1 * cosine))
    output = ntl.cast(turned, output.dtype)


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
    block_pairs=None,
):
    """Return the arrangement, application and tensors of ``fused_rmsnorm_rope``; ``count`` is the number of elements of
    a row.

    :param interleaved: Whether heads are whole and neighbours are pairs; else the first and the second elements of all
        pairs are separate tensors of any strides.
    :param looped: Whether a row is longer than a tile; not with ``interleaved``.
    """
    compute_dtype = compute_dtype or constants.accumulated(dtype)
    scalars = scalars or constants.numbers(dtype, "count", "eps")
    output = Tensor(4, dtype=dtype, name="output")

    def like(dtype, *names):
        # Elements loaded beyond a row must add nothing.
        return (Tensor(shape=output.shape, dtype=dtype, other=0, name=name) for name in names)

    outputs = () if interleaved else ("rotated",)
    inputs = ("input",) if interleaved else ("x0", "x1")
    weights = ("weight",) if interleaved else ("w0", "w1")
    tensors = (
        output,
        *like(dtype, *outputs, *inputs),
        *like(weight_dtype or dtype, *weights),
        *(Tensor(4, dtype=table_dtype or dtype, other=0, name=name) for name in ("cos", "sin")),
        *(Tensor(0, dtype=scalars.get(name), name=name) for name in ("count", "eps")),
    )
    variant = application_interleaved if interleaved else application_looped if looped else application
    blocks = {"block_rows": block_rows, "block_heads": block_heads, "block_pairs": block_pairs}
    arranged = functools.partial(arrangement, interleaved=interleaved, looped=looped, **blocks)

    return arranged, *constants.bind(variant, tensors, compute_dtype=compute_dtype)
