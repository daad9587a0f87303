"""``torch.exp(input, *, out=None)``: e to the power of input."""

from conformance.ops import _gradients as gradients
from conformance.ops import _unary

SPEC = _unary.spec("exp", gradients.exponential)
