"""``torch.rsqrt(input, *, out=None)``: 1 / sqrt(input)."""

import mpmath
import numpy as np

from conformance.ops import _gradients as gradients
from conformance.ops import _unary

SPEC = _unary.spec("rsqrt", gradients.rsqrt, formula=lambda x: 1 / np.sqrt(x), precise=lambda x: 1 / mpmath.sqrt(x))
