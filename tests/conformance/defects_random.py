"""Planted defects of dropout: each element is right, and the mask is not. ``--implementation defects_random:NAME``."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import torch

DEFECTS: dict[str, SimpleNamespace] = {}


def defect(mask: Callable[..., torch.Tensor]) -> SimpleNamespace:
    """An implementation whose mask comes from ``mask(shape, p)``, True where an element is kept."""

    def dropout(input, p=0.5, training=True, inplace=False):
        if not isinstance(input, torch.Tensor) or not input.is_floating_point():
            return torch.nn.functional.dropout(input, p, training, inplace)
        result = torch.nn.functional.dropout(input, p, training, inplace=False)
        if not training or p in (0, 1):
            return torch.nn.functional.dropout(input, p, training, inplace)
        kept = mask(tuple(input.shape), float(p))
        found = torch.where(kept, input.double() / (1 - p), input.double() * 0).to(input.dtype)
        return input.copy_(found) if inplace else result.copy_(found)

    entry = SimpleNamespace(dropout=dropout)
    DEFECTS[mask.__name__] = entry
    return entry


right = defect(lambda shape, p: torch.rand(shape) >= p)
del DEFECTS["<lambda>"]


@defect
def biased(shape, p):
    """Keeps with the probability p ** 1.2."""
    return torch.rand(shape) < (1 - p) ** 1.2


@defect
def swapped(shape, p):
    """Keeps with the probability p, which does not show at 0.5."""
    return torch.rand(shape) < p


@defect
def one_row(shape, p):
    """All rows have one mask."""
    return (torch.rand(shape[-1:]) >= p).expand(shape)


@defect
def repeating(shape, p):
    """Every block of 128 elements draws the same numbers."""
    total = torch.Size(shape).numel()
    return (torch.rand(128) >= p).repeat(total // 128 + 1)[:total].view(shape)


@defect
def coupled(shape, p):
    """Neighbours are treated alike."""
    total = torch.Size(shape).numel()
    return (torch.rand(total // 2 + 1) >= p).repeat_interleave(2)[1 : total + 1].view(shape)


@defect
def alternating(shape, p):
    """As many as there should be, but one of each two."""
    total = torch.Size(shape).numel()
    first = (torch.rand(total // 2 + 1) >= p)[:, None]
    return torch.cat([first, ~first], 1).flatten()[:total].view(shape)


@defect
def frozen(shape, p):
    """Every call draws the same numbers."""
    return torch.rand(shape, generator=torch.Generator().manual_seed(5)) >= p


@defect
def nothing_dropped(shape, p):
    return torch.ones(shape, dtype=torch.bool)


@defect
def everything_dropped(shape, p):
    return torch.zeros(shape, dtype=torch.bool)
