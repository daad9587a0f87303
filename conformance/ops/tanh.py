"""``torch.tanh(input, *, out=None)``: the hyperbolic tangent."""

from conformance.ops import _gradients as gradients
from conformance.ops import _unary

SPEC = _unary.spec("tanh", gradients.tanh)
