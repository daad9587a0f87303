"""``torch.cos(input, *, out=None)``, of radians."""

from conformance.ops import _gradients as gradients
from conformance.ops import _unary

SPEC = _unary.spec("cos", gradients.cosine)
