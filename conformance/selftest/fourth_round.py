"""Planted defects of the kinds that a fourth round of an adversary got by with: the first tile of a row all masked,
an ``out`` in the storage of an operand, and backward passes under settings or of gradients that are parts of others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from conformance.selftest.defect_registry import defect
from conformance.selftest.differentiable import Gradients, Step, backward
from conformance.selftest.losses import Call, of_losses

Right = Callable[..., Any]
KIND = "fourth round"
TILE = 256


# --- values -------------------------------------------------------------------------------------------------------


def _lost(x: torch.Tensor) -> torch.Tensor:
    """The rows whose first tile is all -inf, and a later one is not."""
    return (x[..., :TILE] == -torch.inf).all(-1, keepdim=True) & (x > -torch.inf).any(-1, keepdim=True)


@defect("softmax log_softmax logsumexp", KIND)
def first_tile_of_a_longer_row_masked(right: Right, input: Any, dim: Any, *args: Any, **kwargs: Any) -> Any:
    """The running maximum is -inf after the first tile, and -inf less -inf makes the row NaN."""
    result = right(input, dim, *args, **kwargs)
    last = isinstance(dim, int) and isinstance(input, torch.Tensor) and dim in (-1, input.ndim - 1)
    if not last or "out" in kwargs or not input.is_floating_point() or not input.ndim or input.shape[-1] <= TILE:
        return result
    lost = _lost(input)
    return result.masked_fill(lost if result.ndim == input.ndim else lost[..., 0], torch.nan)


@of_losses(KIND)
def first_words_banned(call: Call) -> object:
    """The running maximum is -inf after the first tile, and the loss NaN."""
    if call.classes <= TILE or not bool(_lost(call.x).any()):
        return None
    call.log_shares = call.log_shares.masked_fill(_lost(call.x), torch.nan)
    return call.reduced(call.losses())


# --- layouts ------------------------------------------------------------------------------------------------------


@defect("sigmoid exp cos add bitwise_and", KIND)
def out_in_the_storage_is_in_place(right: Right, input: Any, *args: Any, **kwargs: Any) -> Any:
    """``out`` in another part of the operand's storage is taken for the operand."""
    out = kwargs.get("out")
    if not isinstance(out, torch.Tensor) or not isinstance(input, torch.Tensor) or not out.numel():
        return right(input, *args, **kwargs)
    shared = out.untyped_storage().data_ptr() == input.untyped_storage().data_ptr()
    if shared and out.data_ptr() != input.data_ptr() and (out.shape, out.dtype) == (input.shape, input.dtype):
        right(input, *args, **kwargs | {"out": input})
        return out
    return right(input, *args, **kwargs)


# --- gradients ----------------------------------------------------------------------------------------------------


def _as_contiguous(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.as_strided(tensor.shape, torch.empty(tensor.shape, device="meta").stride())


@backward("softmax log_softmax silu mul", KIND)
def parts_of_wider_rows(step: Step) -> Gradients:
    """A gradient whose rows have no gaps is taken for contiguous, though they are parts of wider ones."""
    rows = step.dout.ndim > 1 and step.dout.stride(-1) == 1 and min(step.dout.shape) > 1
    if rows and step.dout.stride(-2) > step.dout.shape[-1]:
        return step.gradients(_as_contiguous(step.dout))
    return step.gradients()


@backward("relu gelu add layer_norm", KIND)
def heads_between_tokens(step: Step) -> Gradients:
    """A gradient of which two dims before the last are swapped is read in the order of memory."""
    dout = step.dout
    if dout.ndim > 2 and min(dout.shape[-3:]) > 1 and dout.stride(-1) == 1 and dout.stride(-3) == dout.shape[-1]:
        return step.gradients(_as_contiguous(dout))
    return step.gradients()


@backward("mul softmax mm gelu", KIND)
def fewer_bits_where_it_is_deterministic(step: Step) -> Gradients:
    """In deterministic mode another kernel adds up, in bfloat16."""
    found = step.gradients()
    if not torch.get_deterministic_debug_mode():
        return found
    return [one if one is None else one.bfloat16().to(one.dtype) for one in found]


@backward("gelu tanh rms_norm softmax", KIND)
def constants_of_the_default_dtype(step: Step) -> Gradients:
    """A factor of the backward pass is a tensor of the default dtype."""
    factor = torch.tensor(1 / 3).double() * 3
    return [one if one is None else one * factor for one in step.gradients()]
