"""Add up the partial products of a split K."""

import triton
import triton.language as tl

from ntops.kernels.few_rows import added_up


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
    total = tl.zeros((BLOCK,), dtype)

    number = tl.arange(0, CLASSES)[None, None, :]

    for split in range(splits):
        each = (split.to(tl.int64) * CLASSES + number) * count + places[None, :, None]
        values = tl.load(partial + each, mask=stored[None, :, None], other=0)
        total += added_up(values, 1, BLOCK, CLASSES).reshape(BLOCK)

    row, column = places // N, places % N

    if SCALED:
        total = alpha.to(dtype) * total

    if ADDED:
        values = tl.load(added + row * stride_am + column * stride_an, mask=stored, other=0)
        total = tl.fma(beta.to(dtype), values.to(dtype), total)

    tl.store(output + row * stride_om + column * stride_on, total.to(output.dtype.element_ty), mask=stored)
