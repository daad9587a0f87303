"""``torch.sigmoid(input, *, out=None)``: 1 / (1 + exp(-input))."""

from __future__ import annotations

import mpmath
import numpy as np
import torch

from conformance import bounds
from conformance.ops import _gradients as gradients
from conformance.ops import _unary

SPEC = _unary.spec(
    "sigmoid",
    torch.sigmoid,
    lambda x: 1 / (1 + np.exp(-x)),
    lambda x: 1 / (1 + mpmath.exp(-x)),
    bounds.sigmoid,
    gradients.sigmoid,
)
