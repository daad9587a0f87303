"""``torch.rsqrt(input, *, out=None)``: 1 / sqrt(input)."""

from __future__ import annotations

from functools import partial

import mpmath
import numpy as np
import torch

from conformance import bounds
from conformance.ops import _gradients as gradients
from conformance.ops import _unary

SPEC = _unary.spec(
    "rsqrt",
    torch.rsqrt,
    lambda x: 1 / np.sqrt(x),
    lambda x: 1 / mpmath.sqrt(x),
    partial(bounds.ulps, "rsqrt"),
    gradients.rsqrt,
)
