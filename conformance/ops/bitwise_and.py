"""``torch.bitwise_and(input, other, *, out=None)``: logical on bools; floats are refused."""

from __future__ import annotations

import torch

from conformance.ops import _bitwise

SPEC = _bitwise.spec("bitwise_and", torch.bitwise_and)
