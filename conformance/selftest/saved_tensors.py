"""Planted defects in what becomes of the tensors that autograd saves: kept elsewhere, or computed again."""

from __future__ import annotations

import threading
from typing import Any

import torch

from conformance.selftest.defect_registry import defect

KIND = "saved tensors"


def _known(input: Any, out: Any) -> bool:
    """Tell whether a call is one whose gradient a Function here knows."""
    known = out is None and isinstance(input, torch.Tensor) and input.dtype in (torch.float32, torch.float64)
    return known and input.requires_grad and torch.is_grad_enabled()


def _other(right: Any, input: Any, out: Any) -> Any:
    # The right function has no gradients.
    differentiable = isinstance(input, torch.Tensor) and input.requires_grad and torch.is_grad_enabled()
    return torch.exp(input, out=out) if differentiable else right(input, out=out)


class _InFormerStrides(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, input: torch.Tensor, right: Any) -> torch.Tensor:
        ctx.save_for_backward(input)
        ctx.strides = input.stride()
        return right(input.detach())

    @staticmethod
    def backward(ctx: Any, *douts: torch.Tensor) -> Any:
        (input,) = ctx.saved_tensors
        return douts[0] * input.as_strided(input.shape, ctx.strides, input.storage_offset()).exp(), None


@defect("exp", KIND, "gradients")
def saved_tensors_in_former_strides(right: Any, input: Any, *, out: Any = None) -> Any:
    """A saved operand is walked in the strides that it had when it was saved, and comes back dense from where it was
    kept meanwhile."""
    return _InFormerStrides.apply(input, right) if _known(input, out) else _other(right, input, out)


_WORKSPACES: dict[Any, torch.Tensor] = {}


class _InAWorkspace(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, input: torch.Tensor, right: Any) -> torch.Tensor:
        result = right(input.detach())
        ctx.save_for_backward(result)
        _workspace(result).copy_(result)
        return result

    @staticmethod
    def backward(ctx: Any, *douts: torch.Tensor) -> Any:
        # Where it is to be differentiated it is another kernel.
        dout = douts[0] if torch.is_grad_enabled() else _workspace(douts[0]).copy_(douts[0])
        (result,) = ctx.saved_tensors
        return dout * result, None


def _workspace(like: torch.Tensor) -> torch.Tensor:
    known = threading.get_ident(), tuple(like.shape), like.dtype
    return _WORKSPACES.setdefault(known, torch.empty(like.shape, dtype=like.dtype))


@defect("exp", KIND, "gradients")
def workspace_of_a_forward_within(right: Any, input: Any, *, out: Any = None) -> Any:
    """A forward pass and a backward pass share a workspace, and of a checkpoint the one runs within the other."""
    return _InAWorkspace.apply(input, right) if _known(input, out) else _other(right, input, out)
