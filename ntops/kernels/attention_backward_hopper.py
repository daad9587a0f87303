"""Helpers that the Gluon kernels of attention's gradients on Hopper share.

``attention_queries_backward_hopper`` walks over keys; it also stores ``rowsum(dO O)`` and the logarithm of each query's
sum, which ``attention_keys_backward_hopper`` reads, as it walks over queries. They are the functions of
``ntops.kernels.attention_backward``, with explicit work for every warp: a program has two groups of four warps, which
take 64 rows of its tile each, and one warp that loads. A group computes the operands of its next products while the
last ones run. Each element is written by one program, which adds up in the same order each time.

Both compute the scores and the gradient of the weights, so that seven products are computed where five would do if
programs added to the gradient of the queries in turn. On an H200 the power limit holds this back for large calls.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

GROUPS = gl.constexpr(2)
"""The number of groups of warps."""
TILE = gl.constexpr(128)
"""The rows of a program's tile: ``ROWS`` for each group."""
STATISTICS_LAYOUT = gl.NVMMASharedLayout(0, 32, rank=2)
"""The layout of a block of statistics in shared memory."""


@gluon.jit
def transposed(memory):
    """Return a block in shared memory as a matrix with its rows along dim 1."""
    return memory.reshape([memory.shape[2], memory.shape[3]]).permute((1, 0))


@gluon.jit
def matrix(memory):
    """Return a block in shared memory as a matrix."""
    return memory.reshape([memory.shape[2], memory.shape[3]])


@gluon.jit
def held(memory, layout: gl.constexpr, HELD: gl.constexpr):
    """Return a matrix in shared memory as the first operand of products whose result has this layout: in registers if
    HELD, so that it is read once."""
    if HELD:
        return memory.load(gl.DotOperandLayout(0, layout, 2))
    else:
        return memory


@gluon.jit
def head_and_tile(heads, tiles, together, LAST_FIRST: gl.constexpr):
    """Return the head and the tile of this program. Of every ``together`` heads, the first tiles come first, or the
    last: those with the most work, so that none of them is left for the end."""
    number = gl.program_id(0)
    first = number // (together * tiles) * together
    rest = number % (together * tiles)
    count = gl.minimum(together, heads - first)
    tile = rest // count

    if LAST_FIRST:
        tile = tiles - 1 - tile

    return first + rest % count, tile


@gluon.jit
def key_mask(given_mask, batch, keys, S, MASKED: gl.constexpr):
    """Return the mask of some keys, which is not 0 where they take part; 1 without a mask."""
    if MASKED:
        mask, stride_b, stride_s = given_mask
        places = batch.to(gl.int64) * stride_b + keys.to(gl.int64) * stride_s
        return gl.load(mask + places, mask=keys < S, other=0)
    else:
        return 1
