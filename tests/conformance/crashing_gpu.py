"""Implementations whose kernel ends the GPU's context, never ends, or writes where nothing of the call lies. Each is
right for small operands."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import hanging
import torch
import triton
import triton.language as tl

SMALL = 400


@triton.jit
def _store(place, offset):
    tl.store(place + offset, 1.0)


@triton.jit
def _spin(flag):
    turns = 0
    while tl.load(flag, volatile=True) == 0:
        turns += 1
    tl.store(flag, turns)


def _beyond(input: torch.Tensor) -> None:
    """One element past the memory of the input."""
    last = input.untyped_storage().nbytes() // input.itemsize - input.storage_offset()
    _store[(1,)](input, last)


def _endless(input: torch.Tensor) -> None:
    _spin[(1,)](torch.zeros(1, dtype=torch.int32, device=input.device))
    hanging.begins()


def _library(harm: Callable[[torch.Tensor], object]) -> SimpleNamespace:
    def relu(input: torch.Tensor, inplace: bool = False) -> torch.Tensor:
        result = torch.nn.functional.relu(input, inplace)
        if input.numel() > SMALL and input.dtype == torch.float32:
            harm(input)
        return result

    return SimpleNamespace(relu=relu)


illegal = _library(lambda input: _store[(1,)](input, 2**40))
endless = _library(_endless)
beyond = _library(_beyond)
