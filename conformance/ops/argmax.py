"""``torch.argmax(input, dim=None, keepdim=False, *, out=None)``."""

from __future__ import annotations

import torch

from conformance.ops import _extremes as extremes

SPEC = extremes.place_spec("argmax", torch.argmax)
