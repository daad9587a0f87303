"""Root mean square norm of a row of heads, then rotation of each head, in Triton: rows of a power of two.

NineToothed's form of it is ``fused_rmsnorm_rope.premake``, which takes rows of any heads. There each of eight tensors
has a place and masks of its own to be computed, and on an H200 that, not memory, is what takes the time.
"""

import triton
import triton.language as tl


@triton.jit
def _pairs(row, HEADS: tl.constexpr, PAIRS: tl.constexpr, INTERLEAVED: tl.constexpr, DTYPE: tl.constexpr):
    """The first and the second elements of all pairs, (HEADS, PAIRS)."""
    head = tl.arange(0, HEADS)[:, None]

    if INTERLEAVED:
        # Loaded as they lie, 16 bytes at a time.
        places = head * (2 * PAIRS) + tl.arange(0, 2 * PAIRS)[None, :]
        first, second = tl.load(row + places).to(DTYPE).reshape(HEADS, PAIRS, 2).split()
    else:
        places = head * (2 * PAIRS) + tl.arange(0, PAIRS)[None, :]
        first = tl.load(row + places).to(DTYPE)
        second = tl.load(row + places + PAIRS).to(DTYPE)

    return first, second


@triton.jit(do_not_specialize=["rows", "length", "step_b", "step_t", "step_cos", "step_sin"])
def norm_and_rotate(
    output,
    x,
    weight,
    cos,
    sin,
    rows,
    length,
    step_b,
    step_t,
    step_cos,
    step_sin,
    eps: tl.float64,
    HEADS: tl.constexpr,
    PAIRS: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    DTYPE: tl.constexpr,
    STAGES: tl.constexpr,
):
    """A row of ``x``, of HEADS heads of PAIRS pairs, to ``output``, contiguous.

    :param step_b: The stride of ``x`` along the batch, ``step_t`` that along positions, and ``step_cos`` and
        ``step_sin`` those of the tables, in 16 elements.
    :param DTYPE: What is computed in.
    """
    columns: tl.constexpr = 2 * HEADS * PAIRS
    pair = tl.arange(0, PAIRS)[None, :]
    head = tl.arange(0, HEADS)[:, None] * (2 * PAIRS)
    w0, w1 = _pairs(weight, HEADS, PAIRS, INTERLEAVED, DTYPE)

    for number in tl.range(tl.program_id(0), rows, tl.num_programs(0), num_stages=STAGES):
        batch = (number // length).to(tl.int64)
        position = (number % length).to(tl.int64)
        x0, x1 = _pairs(x + batch * step_b * 16 + position * step_t * 16, HEADS, PAIRS, INTERLEAVED, DTYPE)
        cosine = tl.load(cos + position * step_cos * 16 + pair).to(DTYPE)
        sine = tl.load(sin + position * step_sin * 16 + pair).to(DTYPE)
        mean = tl.sum(tl.sum(x0 * x0 + x1 * x1, 1), 0) / columns
        scale = 1 / tl.sqrt_rn(mean + eps.to(DTYPE))
        n0 = x0 * scale * w0
        n1 = x1 * scale * w1
        first = (n0 * cosine - n1 * sine).to(output.dtype.element_ty)
        second = (n0 * sine + n1 * cosine).to(output.dtype.element_ty)
        row = output + number.to(tl.int64) * columns

        if INTERLEAVED:
            tl.store(row + head + tl.arange(0, 2 * PAIRS)[None, :], tl.interleave(first, second))
        else:
            tl.store(row + head + pair, first)
            tl.store(row + head + pair + PAIRS, second)
