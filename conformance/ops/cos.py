"""``torch.cos(input, *, out=None)``, of radians."""

from __future__ import annotations

from functools import partial

import mpmath
import numpy as np
import torch

from conformance import bounds
from conformance.ops import _gradients as gradients
from conformance.ops import _unary

SPEC = _unary.spec("cos", torch.cos, np.cos, mpmath.cos, partial(bounds.ulps, "cos"), gradients.cosine)
