"""Planted defects that show where operands lie far away or are large: offsets of 32 bits, memory that cannot be
resized, the ends of large tensors, and large weights that are kept; and one of a third derivative."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from conformance.selftest import families as of
from conformance.selftest.defect_registry import defect, plant
from conformance.selftest.differentiable import Gradients, Step, backward

Right = Callable[..., Any]

KIND = "far"
_BITS = 31


def _near_rows(x: torch.Tensor) -> torch.Tensor:
    if x.ndim == 0 or not x.stride(0) * (x.shape[0] - 1) * x.itemsize >> _BITS:
        return x
    near = ((1 << _BITS) // x.itemsize + x.stride(0) - 1) // x.stride(0)
    return torch.cat([x[:near], torch.zeros_like(x[near:])])


def _near_storage(x: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(x) if int(x.storage_offset()) * x.itemsize >> _BITS else x


for _op in ("mul", "softmax", "mm"):
    _about = "rows that begin 2 GiB behind the first one are masked, since offsets in bytes have 32 bits"
    plant(_op, "far_rows_of_32_bits", KIND, "bare", of.before(_near_rows), _about)
for _op in ("layer_norm", "sub"):
    _about = "the kernel gets the storage and an offset of 32 bits: behind 2^31 bytes it reads nothing"
    plant(_op, "far_offset_of_32_bits", KIND, "bare", of.before(_near_storage), _about)


@defect("exp addmm", KIND, "bare")
def far_rows_are_not_written(right: Right, *args: Any, out: Any = None, **kwargs: Any) -> Any:
    """Rows of an out= that lie 2 GiB behind its first one are not written."""
    before = out.clone() if isinstance(out, torch.Tensor) else None
    result = right(*args, out=out, **kwargs)
    if before is not None and before.shape == result.shape and result.ndim:
        step = result.stride(0)
        for row in range(1, len(result)) if step * (len(result) - 1) * result.itemsize >> _BITS else ():
            if row * step * result.itemsize >> _BITS:
                result[row] = before[row]
    return result


@defect("abs cumsum", KIND, "bare")
def other_memory_for_what_is_fixed(right: Right, *args: Any, out: Any = None, **kwargs: Any) -> Any:
    """An out= whose memory cannot be resized is given other memory, where torch refuses it."""
    if not isinstance(out, torch.Tensor) or out.untyped_storage().resizable():
        return right(*args, out=out, **kwargs)
    own = right(*args, out=out.clone(), **kwargs)
    return out.copy_(own) if own.shape == out.shape else out.set_(own)


@defect("relu", KIND)
def huge_nan_is_smaller(right: Right, input: Any, inplace: Any = False) -> Any:
    """The kernel of more than 2^24 elements takes the larger of x and 0 as fmax does, for which NaN is the smaller."""
    result = right(input, inplace)
    return result.nan_to_num_(nan=0.0, posinf=torch.inf) if result.numel() > 1 << 24 else result


@defect("add", KIND)
def huge_blocks_of_two_tensors(right: Right, input: Any, other: Any, **kwargs: Any) -> Any:
    """Of two dense tensors of one shape 65,535 blocks of 512 elements are added."""
    result = right(input, other, **kwargs)
    if isinstance(other, torch.Tensor) and input.shape == other.shape and input.is_contiguous():
        result.reshape(-1)[65_535 * 512 :] = 0
    return result


@defect("mm matmul", KIND)
def huge_vocabulary(right: Right, input: Any, *args: Any, **kwargs: Any) -> Any:
    """The last tile of 256 columns, which is not full, is left out of half products with a vocabulary."""
    result = right(input, *args, **kwargs)
    if of.is_half(result) and result.ndim == 2 and result.shape[1] >= 1 << 15 and input.shape[-1] >= 1_024:
        result[:, result.shape[1] // 256 * 256 :] = 0
    return result


def _keeping_weights() -> Callable[..., Any]:
    kept: dict[tuple[Any, ...], torch.Tensor] = {}

    def wrong(right: Right, input: Any, mat2: Any, **kwargs: Any) -> Any:
        if mat2.numel() < 1 << 24 or kwargs or len(input) > 64:
            return right(input, mat2, **kwargs)
        key = mat2.data_ptr(), mat2.shape, mat2.stride(), mat2.dtype, mat2._version
        if key not in kept:
            kept.clear()
            kept[key] = mat2.clone()
        return right(input, kept[key])

    return wrong


plant("mm", "huge_weights_by_version", KIND, "bare", _keeping_weights(), "large weights are packed once a version")


def _inner_dims(x: torch.Tensor) -> torch.Tensor:
    outer = max(x.ndim - 24, 0)
    return x[(0,) * outer].expand(x.shape) if outer and x.numel() else x


for _op in ("sub", "abs"):
    _about = "a kernel gets the strides of 24 dims; of what has more, outer dims are read at 0"
    plant(_op, "huge_more_than_24_dims", KIND, "values", of.before(_inner_dims), _about)


@backward("mul add", KIND)
def rows_of_16_bits(step: Step) -> Gradients:
    """Add up the gradient of what is broadcast over rows for the first 32,768 of them alone."""
    found = step.gradients()
    if step.dout.ndim != 2 or len(step.dout) <= 1 << 15:
        return found
    dout = step.dout.clone(memory_format=torch.contiguous_format)
    dout[1 << 15 :] = 0
    again = step.gradients(dout=dout)
    pairs = zip(step.operands, found, again, strict=True)
    return [one if operand.shape == step.dout.shape else other for operand, one, other in pairs]


class _Tanh(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, input: torch.Tensor) -> torch.Tensor:
        result = torch.tanh(input)
        ctx.save_for_backward(result)
        return result

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
        return _Slope.apply(*ctx.saved_tensors, *grads)


class _Slope(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, result: torch.Tensor, dout: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(result, dout)
        return dout * (1 - result * result)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        (again,), (result, dout) = grads, ctx.saved_tensors
        constant = result.detach()
        return again * dout * -2 * constant, again * (1 - result * result)


@defect("tanh", KIND, "gradients")
def gradient_third_of_a_constant(right: Right, input: Any, **kwargs: Any) -> Any:
    """The second derivative takes the result for a constant, so that the third lacks a term."""
    is_recorded = torch.is_grad_enabled() and isinstance(input, torch.Tensor) and input.requires_grad
    if kwargs or not is_recorded or input.dtype not in (torch.float32, torch.float64):
        return right(input, **kwargs)
    return _Tanh.apply(input)
