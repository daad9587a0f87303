"""``torch.ge(input, other, *, out=None)``."""

from conformance.ops import _comparison

SPEC = _comparison.spec("ge")
