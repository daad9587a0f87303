"""``torch.exp(input, *, out=None)``: e to the power of input."""

from __future__ import annotations

from functools import partial

import mpmath
import numpy as np
import torch

from conformance import bounds
from conformance.ops import _gradients as gradients
from conformance.ops import _unary

SPEC = _unary.spec("exp", torch.exp, np.exp, mpmath.exp, partial(bounds.ulps, "exp"), gradients.exponential)
