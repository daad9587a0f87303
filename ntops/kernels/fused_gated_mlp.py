"""``act(x @ gate.T) * (x @ up.T)``: two products with one matrix, of which only the result is written."""

import functools

import ninetoothed.language as ntl
from ninetoothed import Tensor, block_size
from ninetoothed.language import libdevice

from ntops.kernels import constants

ACTIVATIONS = ("silu", "gelu", "gelu_tanh")


def arrangement(output, x, gate, up, *constants, block_size_m=None, block_size_n=None, block_size_k=None, group=1):
    """Tile the output; each program takes a row of tiles of ``x``, and a column of tiles of ``gate`` and of ``up``.

    :param group: The number of rows of tiles that go together: programs that run at a time take the same columns of
        each, which then come from the cache. Rows of tiles past the end of ``x`` compute nothing.
    """
    block_m, block_n, block_k = (size or block_size() for size in (block_size_m, block_size_n, block_size_k))

    def grouped(tensor, columns, block):
        # Groups, columns of the grid, tiles of a group, columns of a tile.
        return tensor.tile((group * block_m, columns)).ravel().tile((1, 1, block_m, block))

    output_tiled = grouped(output, block_n, block_n)
    output_tiled.dtype = output_tiled.dtype.squeeze((0, 1))
    groups, columns, tiles, _ = output_tiled.shape

    rows = grouped(x, -1, block_k).tile((1, 1, 1, -1)).expand((-1, columns, -1, -1))
    rows.dtype = rows.dtype.squeeze((0, 1, 2))
    rows.dtype.dtype = rows.dtype.dtype.squeeze((0, 1))

    def walked(weight):
        tiled = weight.permute((1, 0)).tile((block_k, block_n)).tile((-1, 1)).unsqueeze(2).unsqueeze(3)
        tiled = tiled.expand((groups, -1, tiles, -1))
        tiled.dtype = tiled.dtype.squeeze(1)
        return tiled

    return output_tiled, rows, walked(gate), walked(up), *constants


def application(output, x, gate, up, compute_dtype, input_precision, activation):
    gated = ntl.zeros(output.shape, dtype=compute_dtype)
    factor = ntl.zeros(output.shape, dtype=compute_dtype)

    for k in range(x.shape[0]):
        rows = x[k]
        gated = ntl.dot(rows, gate[k], acc=gated, input_precision=input_precision, out_dtype=compute_dtype)
        factor = ntl.dot(rows, up[k], acc=factor, input_precision=input_precision, out_dtype=compute_dtype)

    if activation == "silu":
        activated = gated / (1 + libdevice.exp(gated * -1.0))
    elif activation == "gelu":
        activated = gated * 0.5 * (1 + ntl.erf(gated * 0.7071067811865476))
    else:
        inner = 0.7978845608028654 * (gated + 0.044715 * gated * gated * gated)
        activated = gated * 0.5 * (1 + libdevice.tanh(inner))

    output = ntl.cast(activated * factor, output.dtype)


def premake(
    dtype=None,
    compute_dtype=None,
    input_precision=None,
    activation=None,
    block_size_m=None,
    block_size_n=None,
    block_size_k=None,
    group=1,
):
    """Return the arrangement, application and tensors of ``fused_gated_mlp``; ``gate`` and ``up`` are (intermediate,
    hidden).

    :param activation: "silu", "gelu" or "gelu_tanh"; silu where only ``dtype`` is given.
    """
    tensors = (
        Tensor(2, dtype=dtype, name="output"),
        # A tile that passes the last column of x must add nothing beyond it.
        *(Tensor(2, dtype=dtype, other=0, name=name) for name in ("x", "gate", "up")),
    )
    blocks = {"block_size_m": block_size_m, "block_size_n": block_size_n, "block_size_k": block_size_k}
    arranged = functools.partial(arrangement, group=group, **blocks)

    return arranged, *constants.bind(
        application,
        tensors,
        compute_dtype=compute_dtype or constants.accumulated(dtype),
        input_precision=input_precision or (dtype and "ieee"),
        activation=activation or (dtype and "silu"),
    )
