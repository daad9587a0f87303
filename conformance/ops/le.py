"""``torch.le(input, other, *, out=None)``."""

from conformance.ops import _comparison

SPEC = _comparison.spec("le")
