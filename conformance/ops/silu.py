"""``torch.nn.functional.silu(input, inplace=False)``: input / (1 + exp(-input))."""

import mpmath
import numpy as np

from conformance import bounds
from conformance.ops import _activation
from conformance.ops import _gradients as gradients

SPEC = _activation.spec(
    "silu",
    # At -inf this is -inf / inf, NaN.
    _activation.rounded(lambda x: x / (1 + np.exp(-x)), lambda x: x / (1 + mpmath.exp(-x)), bound=bounds.sigmoid),
    gradients.of_input(gradients.silu, "inplace"),
    # A negation, an exponential, an addition and a division.
    flops=4,
)
