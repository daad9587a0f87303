"""Planted defects of layouts: misaligned starts, columns with room between them, no unit stride, one batch for all,
more dims than a kernel has strides for; and of operands that lie as kernels like it best."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from conformance.selftest import families as of
from conformance.selftest.defect_registry import defect, plant


def _vectors(x: torch.Tensor) -> torch.Tensor:
    """A contiguous tensor read from the last multiple of 16 bytes before its first element on."""
    vector = max(16 // x.itemsize, 1)
    if not x.is_contiguous() or not x.storage_offset() % vector or x.numel() < vector:
        return x
    return of.dense(x, int(x.storage_offset()) // vector * vector)


def _dense_columns(x: torch.Tensor) -> torch.Tensor:
    """Columns with room between them are read as if they followed each other."""
    if x.ndim < 2 or x.stride(-2) != 1 or not 1 < x.size(-2) < x.stride(-1):
        return x
    return x.as_strided(x.shape, (*x.stride()[:-1], x.size(-2)))


def _unit_stride(x: torch.Tensor) -> torch.Tensor:
    """A last dim whose elements lie two apart, in a tensor without a unit stride, is read as if it had one."""
    if not x.ndim or x.size(-1) < 2 or x.stride(-1) != 2 or 1 in x.stride():
        return x
    return x.as_strided(x.shape, (*x.stride()[:-1], 1))


def _one_batch(x: torch.Tensor) -> torch.Tensor:
    """Of a batch whose stride is 0 the first is read alone, and zeros for others."""
    if x.ndim < 3 or x.size(0) < 2 or x.stride(0):
        return x
    read = x.clone()
    read[1:] = 0
    return read


def _whole_videos(x: torch.Tensor) -> torch.Tensor:
    """Videos with channels last that are a part of longer ones are read as whole ones."""
    if x.ndim != 5 or x.stride(1) != 1 or not x.permute(0, 2, 3, 4, 1)[:1].is_contiguous():
        return x
    return x.as_strided(x.shape, (x[0].numel(), *x.stride()[1:]))


def _six_dims(x: torch.Tensor) -> torch.Tensor:
    """More than six strided dims are read as if they were contiguous."""
    return of.dense(x) if x.ndim > 6 and not x.is_contiguous() else x


for _name, _change, _ops in (
    ("vectors_from_multiples", _vectors, "add mul exp sigmoid relu neg lt softmax layer_norm rms_norm mm"),
    ("columns_without_room", _dense_columns, "mm bmm addmm matmul add exp softmax silu"),
    ("unit_stride_assumed", _unit_stride, "mul tanh abs eq rms_norm bmm"),
    ("one_batch_alone", _one_batch, "bmm matmul add gelu"),
    ("whole_videos", _whole_videos, "gelu silu exp"),
    ("six_dims", _six_dims, "add sub exp relu eq bitwise_and isnan cos"),
):
    for _op in _ops.split():
        plant(_op, _name, "lie", "layouts", of.before(_change), (_change.__doc__ or "").rstrip("."))


@defect("add layer_norm mm addmm fused_gated_mlp scaled_dot_product_attention", "lie", "plain_operands")
def short_way_without_a_mask(right: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """A short way for contiguous and finite operands writes whole blocks of 64 results alone."""
    result = right(*args, **kwargs)
    operands = [x for x in (*args, *kwargs.values()) if isinstance(x, torch.Tensor)]
    if of.written(args, kwargs) or not all(x.is_contiguous() and x.isfinite().all() for x in operands):
        return result
    flat = result.flatten()
    flat[flat.numel() // 64 * 64 :] = 0
    return result.copy_(flat.view(result.shape))


def _has_channels_last(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and x.ndim == 4 and x.stride(1) == 1 and not x.is_contiguous()


@defect("add mul sub lt", "lie", "layouts")
def row_for_channels(right: Callable[..., Any], input: Any, other: Any, *, out: Any = None, **kwargs: Any) -> Any:
    """Beside images with channels last a row of as many elements as there are channels is taken for those of the
    channels."""
    is_row = isinstance(other, torch.Tensor) and other.ndim == 1 and other.numel() > 1
    if out is None and is_row and _has_channels_last(input) and len(other) == input.shape[1]:
        return right(input, other.view(-1, 1, 1), **kwargs)
    return right(input, other, out=out, **kwargs)


@defect("div mul eq", "lie", "layouts")
def image_by_its_pixels(right: Callable[..., Any], input: Any, other: Any, *, out: Any = None, **kwargs: Any) -> Any:
    """The number of an image with channels last is found by its place in memory and the pixels, not the channels."""
    result = right(input, other, out=out, **kwargs)
    if out is not None or not _has_channels_last(input) or not isinstance(other, torch.Tensor):
        return result
    count, channels, *pixels = input.shape
    if tuple(other.shape) != (count, 1, 1, 1):
        return result
    place = torch.arange(input.numel()).view(count, *pixels, channels).permute(0, 3, 1, 2)
    each = other.flatten()[place // (pixels[0] * pixels[1]) % count]
    return result.copy_(right(input, each, **kwargs))


@defect("add mul sub le", "lie", "layouts")
def turned_matrix_beside_more(
    right: Callable[..., Any], input: Any, other: Any, *, out: Any = None, **kwargs: Any
) -> Any:
    """A matrix that lies turned, beside an operand of more dims, is read as if it did not."""
    is_turned = isinstance(other, torch.Tensor) and other.ndim == 2 and other.stride() == (1, other.shape[0])
    if out is None and is_turned and min(other.shape) > 1 and isinstance(input, torch.Tensor) and input.ndim > 2:
        return right(input, other.as_strided(other.shape, (other.shape[1], 1)), **kwargs)
    return right(input, other, out=out, **kwargs)
