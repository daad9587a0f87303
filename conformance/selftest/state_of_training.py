"""Planted defects of what a library keeps between calls that are differentiated, under too small a key: each call and
its backward pass alone are right; and of a dtype that is kept for a shape."""

from __future__ import annotations

import weakref
from collections import Counter
from typing import Any

import torch

from conformance.selftest import families as of
from conformance.selftest.defect_registry import plant_state
from conformance.selftest.differentiable import differentiable
from conformance.selftest.state import Function, tensors


def slots_of_rows(right: Function) -> Function:
    """It saves for the backward pass in slots of a number of rows, which it counts by shape: of two widths the second
    call takes the slot of the first."""
    slots: dict[tuple[int, int], object] = {}
    calls = Counter[torch.Size]()

    def call(*args: Any, **kwargs: Any) -> Any:
        result = right(*args, **kwargs)
        if not isinstance(result, torch.Tensor) or not result.requires_grad or not result.ndim:
            return result
        calls[result.shape] += 1
        slot, own = (result.shape[0], calls[result.shape] % 256), object()
        slots[slot] = own
        result.register_hook(lambda gradient: gradient if slots[slot] is own else gradient / 2)
        return result

    return call


def workspace_of_largest(right: Function) -> Function:
    """The gradient of a weight is added up from parts in a workspace that the weight keeps, as large as its largest
    batch: those of a larger batch before are added, too."""
    kept: dict[int, tuple[weakref.ref[torch.Tensor], int]] = {}

    def call(*args: Any, **kwargs: Any) -> Any:
        result, weights = right(*args, **kwargs), tensors(args, kwargs)[1:]
        if not isinstance(result, torch.Tensor) or not result.requires_grad or not weights:
            return result
        weight, rows = weakref.ref(weights[-1]), result.numel() // max(weights[-1].numel(), 1)

        def summed(gradient: torch.Tensor) -> torch.Tensor:
            own = weight()
            if own is None:
                return gradient
            known, most = kept.get(id(own), (weight, 0))
            most = most if known() is own else 0
            kept[id(own)] = weight, max(rows, most)
            return gradient * 2 if most > rows else gradient

        result.register_hook(summed)
        return result

    return call


def result_as_first_out(right: Function) -> Function:
    """The dtype of the result is kept for a shape, and was that of an out, if the first call had one."""
    known: dict[Any, torch.dtype] = {}

    def call(*args: Any, **kwargs: Any) -> Any:
        result = right(*args, **kwargs)
        given = tensors(args, kwargs)
        if not isinstance(result, torch.Tensor) or not given:
            return result
        dtype = known.setdefault(tuple((one.shape, one.dtype) for one in given), result.dtype)
        return result if of.written(args, kwargs) else result.to(dtype)

    return call


for _make, _ops in (
    (slots_of_rows, "layer_norm softmax log_softmax mm gelu"),
    (workspace_of_largest, "layer_norm rms_norm mm mul"),
):
    _about = " ".join((_make.__doc__ or "").split())
    plant_state(_ops, f"gradient_{_make.__name__}", "state: training", _make, _about, differentiable)
plant_state(
    "exp add clamp",
    result_as_first_out.__name__,
    "state: plans",
    result_as_first_out,
    " ".join((result_as_first_out.__doc__ or "").split()),
)
