"""Add up the partial products of a split K."""

import triton
import triton.language as tl

from ntops.kernels.pairwise_sum import pairwise_sum


@triton.jit
def _part(sums, stored, BLOCK: tl.constexpr, CLASSES: tl.constexpr):
    """Load the sums of the classes of a part of a product, and sum them."""
    values = tl.load(sums, mask=stored[None, :, None], other=0)
    return pairwise_sum(values, 1, BLOCK, CLASSES).reshape(BLOCK)


@triton.jit(do_not_specialize=["stride_om", "stride_on", "stride_am", "stride_an", "N", "count", "splits"])
def add_up(
    output,
    partial,
    added,
    stride_om,
    stride_on,
    stride_am,
    stride_an,
    N,
    count,
    splits,
    alpha: tl.float64,
    beta: tl.float64,
    SCALED: tl.constexpr,
    ADDED: tl.constexpr,
    CLASSES: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Add up the parts, always in the same order, and then do what ``addmm`` does to a product.

    :param output: (M, N).
    :param partial: (splits, CLASSES, M, N), contiguous, in the compute dtype: the classes of terms of
        ``few_rows.multiply``.
    :param added: With ADDED, (M, N).
    :param count: M * N.
    :param alpha: With SCALED, the factor of the product; ``beta`` is, with ADDED, the factor of ``added``.
    """
    dtype = partial.dtype.element_ty
    places = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    stored = places < count
    sums = partial + tl.arange(0, CLASSES)[None, None, :] * count.to(tl.int64) + places[None, :, None]
    total = _part(sums, stored, BLOCK, CLASSES)

    for split in range(1, splits):
        total += _part(sums + split.to(tl.int64) * CLASSES * count, stored, BLOCK, CLASSES)

    row, column = places // N, places % N

    if SCALED:
        total = alpha.to(dtype) * total

    if ADDED:
        values = tl.load(added + row * stride_am + column * stride_an, mask=stored, other=0)
        total = tl.fma(beta.to(dtype), values.to(dtype), total)

    tl.store(output + row * stride_om + column * stride_on, total.to(output.dtype.element_ty), mask=stored)
