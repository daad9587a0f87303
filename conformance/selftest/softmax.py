"""Planted defects of softmax and log_softmax."""

from __future__ import annotations

import math

import torch

from conformance.selftest import families as of
from conformance.selftest.defect_registry import defect, plant

INF = math.inf
BLOCKS = (16, 32, 64, 128, 256, 512, 1024, 2048)


def _row_tail(block):
    def softmax(right, input, dim, dtype=None):
        """What lies past the last full block of a row takes no part in the sum."""
        result = right(input, dim, dtype)
        if result.ndim and result.shape[dim] > block and result.shape[dim] % block:
            kept = result.narrow(dim, 0, result.shape[dim] // block * block)
            result /= kept.sum(dim, keepdim=True)
        return result

    return softmax


for _block in BLOCKS:
    plant("softmax", f"row_tail_{_block}", "tail", "values", _row_tail(_block))


def _cast(input, dtype):
    return input if dtype is None else input.to(dtype)


@defect("softmax", "maximum")
def no_maximum(right, input, dim, dtype=None):
    """The maximum is not subtracted."""
    result = right(input, dim, dtype)
    powers = _cast(input, dtype).float().exp()
    return result if result.dtype == torch.float64 else result.copy_(powers / powers.sum(dim, keepdim=True))


@defect("softmax", "maximum")
def maximum_of_block(right, input, dim, dtype=None):
    """The maximum is that of the first 16 elements."""
    result = right(input, dim, dtype)
    if result.dtype == torch.float64 or not result.ndim or not result.numel():
        return result
    x = _cast(input, dtype).float()
    powers = (x - x.narrow(dim, 0, min(16, x.shape[dim])).amax(dim, keepdim=True)).exp()
    return result.copy_(powers / powers.sum(dim, keepdim=True))


@defect("softmax", "maximum")
def not_rescaled(right, input, dim, dtype=None):
    """An online softmax in blocks of 16 that does not rescale its sum where a later block has a larger maximum."""
    result = right(input, dim, dtype)
    if not result.ndim or not result.numel() or result.dtype == torch.float64:
        return result
    x = _cast(input, dtype).double()
    total = sum((b - b.amax(dim, keepdim=True)).exp().sum(dim, keepdim=True) for b in x.split(16, dim))
    return result.copy_((x - x.amax(dim, keepdim=True)).exp() / total)


@defect("softmax", "trap")
def leading_block_masked(right, input, dim, dtype=None):
    """An online softmax for which a first block of -inf gives NaN."""
    result = right(input, dim, dtype)
    if not result.ndim or result.shape[dim] < 17:
        return result
    masked = (input.narrow(dim, 0, 16) == -INF).all(dim, keepdim=True)
    return result.masked_fill_(masked.expand(result.shape), math.nan)


@defect("softmax", "trap")
def masked_row_is_0(right, input, dim, dtype=None):
    """A row that is all -inf gives zeros."""
    result = right(input, dim, dtype)
    return result.masked_fill_((input == -INF).all(dim, keepdim=True), 0.0) if result.ndim else result


@defect("softmax", "trap")
def infinity_takes_all(right, input, dim, dtype=None):
    """An element that is inf gets 1 and the others 0."""
    result = right(input, dim, dtype)
    if not result.ndim or input.dtype not in (torch.float32, torch.float16):
        return result
    infinite = input == INF
    row = infinite.any(dim, keepdim=True) & ~input.isnan().any(dim, keepdim=True)
    return result.copy_(torch.where(row, infinite.to(result.dtype), result))


@defect("softmax", "precision")
def half_sum(right, input, dim, dtype=None):
    """The normaliser is accumulated in the half type."""
    result = right(input, dim, dtype)
    if result.dtype not in of.HALF or not result.ndim or not result.numel():
        return result
    x = _cast(input, dtype)
    powers = (x - x.amax(dim, keepdim=True)).exp()
    return result.copy_(powers / powers.cumsum(dim).narrow(dim, -1 % powers.shape[dim], 1))


@defect("softmax", "dims")
def last_dim(right, input, dim, dtype=None):
    """Always over the last dim."""
    right(input, dim, dtype)
    return right(input, -1, dtype)


@defect("softmax", "dims", "errors")
def no_negative_dim(right, input, dim, dtype=None):
    """Negative dims other than -1 are refused."""
    if isinstance(dim, int) and dim < -1:
        raise IndexError("dim must be positive or -1")
    return right(input, dim, dtype)


@defect("softmax", "dtype")
def cast_last(right, input, dim, dtype=None):
    """dtype= casts the result and not the input."""
    result = right(input, dim, dtype)
    narrow = dtype is not None and input.dtype in of.HALF
    return result.copy_(right(input, dim)) if narrow else result


@defect("softmax", "dtype", "metadata")
def dtype_ignored(right, input, dim, dtype=None):
    result = right(input, dim, dtype)
    return result.to(input.dtype) if input.is_floating_point() else result


@defect("softmax", "refusals", "errors", "takes_integers")
def softmax_of_integers(right, input, dim, dtype=None):
    """Integers are taken, as float32."""
    whole = isinstance(input, torch.Tensor) and not input.is_floating_point()
    return right(input, dim, torch.float32 if whole and dtype is None else dtype)


@defect("softmax", "dims", "errors")
def dim_wraps(right, input, dim, dtype=None):
    """A dim out of range is taken modulo the rank."""
    if isinstance(dim, int) and isinstance(input, torch.Tensor) and input.ndim:
        dim = dim % input.ndim
    return right(input, dim, dtype)


# --- log_softmax -------------------------------------------------------------------------------------------------


@defect("log_softmax", "maximum")
def log_of_softmax(right, input, dim, dtype=None):
    """The logarithm of softmax, which loses elements far below the maximum."""
    result = right(input, dim, dtype)
    return result.copy_(torch.softmax(_cast(input, dtype), dim).log())


@defect("log_softmax", "tail")
def log_of_first_elements(right, input, dim, dtype=None):
    """The sum takes in the first 1024 elements of a row only."""
    result = right(input, dim, dtype)
    if result.ndim and result.shape[dim] > 1024:
        result -= result.narrow(dim, 0, 1024).logsumexp(dim, keepdim=True)
    return result


@defect("log_softmax", "dims")
def log_over_last_dim(right, input, dim, dtype=None):
    """The sum goes over the last dim, whatever the dim."""
    result = right(input, dim, dtype)
    return result.copy_(torch.log_softmax(_cast(input, dtype), -1)) if result.ndim else result


@defect("softmax log_softmax", "padding")
def room_for_filtered(right, input, dim, dtype=None):
    """Of a row of which more than half is -inf, what is left is packed, and there is room for 1024 elements."""
    result = right(input, dim, dtype)
    if not result.ndim or result.shape[dim] <= 1024:
        return result
    left = input != -math.inf
    behind = left & (left.cumsum(dim) > 1024) & (2 * left.sum(dim, keepdim=True) < input.shape[dim])
    return result.copy_(right(input.masked_fill(behind, -math.inf), dim, dtype))
