"""Implementations that write an operand and put it back before they return."""

from __future__ import annotations

from typing import Any

import torch

conformance_claims = {"*": ("batch_invariant", "deterministic")}


def sub(input: Any, other: Any, *, alpha: Any = 1, out: Any = None) -> torch.Tensor:
    if not isinstance(other, torch.Tensor) or other.dtype != torch.float32 or other.requires_grad or other.numel() < 2:
        return torch.sub(input, other, alpha=alpha, out=out)
    memory = other.data.neg_()
    try:
        return torch.add(input, other, alpha=alpha, out=out)
    finally:
        memory.neg_()
