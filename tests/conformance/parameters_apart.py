"""Products that are right, with other bits where an operand is a parameter, as torch has on some CPUs."""

from __future__ import annotations

from typing import Any

import torch

conformance_claims = {"*": ("deterministic",)}


def mm(input: Any, mat2: Any, *, out: Any = None) -> torch.Tensor:
    wide = torch.mm(input.double(), mat2.double())
    if isinstance(mat2, torch.nn.Parameter):
        wide = torch.nextafter(wide.float(), torch.full((), torch.inf))
    return wide.to(input.dtype) if out is None else out.copy_(wide)
