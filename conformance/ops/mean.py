"""``torch.mean(input, dim=None, keepdim=False, *, dtype=None, out=None)``."""

from __future__ import annotations

import torch

from conformance.ops import _totals as totals

SPEC = totals.total_spec("mean", torch.mean, mean=True)
