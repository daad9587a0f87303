"""``torch.sigmoid(input, *, out=None)``: 1 / (1 + exp(-input))."""

import mpmath
import numpy as np

from conformance import bounds
from conformance.ops import _gradients as gradients
from conformance.ops import _unary

SPEC = _unary.spec(
    "sigmoid",
    gradients.sigmoid,
    formula=lambda x: 1 / (1 + np.exp(-x)),
    precise=lambda x: 1 / (1 + mpmath.exp(-x)),
    bound=bounds.sigmoid,
)
