"""``torch.amin(input, dim=(), keepdim=False, *, out=None)``."""

from __future__ import annotations

import torch

from conformance.ops import _extremes as extremes

SPEC = extremes.spec("amin", torch.amin)
