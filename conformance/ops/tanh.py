"""``torch.tanh(input, *, out=None)``: the hyperbolic tangent."""

from __future__ import annotations

from functools import partial

import mpmath
import numpy as np
import torch

from conformance import bounds
from conformance.ops import _gradients as gradients
from conformance.ops import _unary

SPEC = _unary.spec("tanh", torch.tanh, np.tanh, mpmath.tanh, partial(bounds.ulps, "tanh"), gradients.tanh)
