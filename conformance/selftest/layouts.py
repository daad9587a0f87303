"""Planted defects of layouts: misaligned starts, columns with room between them, no unit stride, one batch for all,
more dims than a kernel has strides for."""

from __future__ import annotations

import torch

from conformance.selftest import families as of
from conformance.selftest.defect_registry import plant


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


def _six_dims(x: torch.Tensor) -> torch.Tensor:
    """More than six strided dims are read as if they were contiguous."""
    return of.dense(x) if x.ndim > 6 and not x.is_contiguous() else x


for _name, _change, _ops in (
    ("vectors_from_multiples", _vectors, "add mul exp sigmoid relu neg lt softmax layer_norm rms_norm mm"),
    ("columns_without_room", _dense_columns, "mm bmm addmm matmul add exp softmax silu"),
    ("unit_stride_assumed", _unit_stride, "mul tanh abs eq rms_norm bmm"),
    ("one_batch_alone", _one_batch, "bmm matmul add gelu"),
    ("six_dims", _six_dims, "add sub exp relu eq bitwise_and isnan cos"),
):
    for _op in _ops.split():
        plant(_op, _name, "lie", "layouts", of.before(_change), (_change.__doc__ or "").rstrip("."))
