"""Helpers that the Gluon kernels for Hopper share."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier
from triton.language.extra import libdevice

TALL = gl.constexpr(8)
"""The number of tiles below each other that are computed together."""


@gluon.jit
def place_of(tile, tiles_m, tiles_n):
    """Return the batch, row and column of a tile. Tiles that are computed together share rows of ``a`` and columns of
    ``b``: TALL tiles down, then one to the right."""
    each = tiles_m * tiles_n
    batch = tile // each
    tile = tile % each
    first = tile // (TALL * tiles_n) * TALL
    rows = gl.minimum(tiles_m - first, TALL)
    inside = tile % (TALL * tiles_n)
    return batch, first + inside % rows, inside // rows


@gluon.jit
def make_barriers(NUMBER: gl.constexpr, ARRIVALS: gl.constexpr):
    """Return NUMBER barriers that each wait for ARRIVALS arrivals."""
    barriers = gl.allocate_shared_memory(gl.int64, [NUMBER, 1], mbarrier.MBarrierLayout())

    for i in gl.static_range(NUMBER):
        mbarrier.init(barriers.index(i), count=ARRIVALS)

    return barriers


@gluon.jit
def activated(gate, ACTIVATION: gl.constexpr):
    """Compute silu, or gelu by the error function or by tanh, in float32."""
    if ACTIVATION == "silu":
        activated = gate / (1 + libdevice.exp(gate * -1.0))
    elif ACTIVATION == "gelu":
        activated = gate * 0.5 * (1 + gl.erf(gate * 0.7071067811865476))
    else:
        inner = 0.7978845608028654 * (gate + 0.044715 * gate * gate * gate)
        activated = gate * 0.5 * (1 + libdevice.tanh(inner))

    return activated
