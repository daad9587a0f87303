"""``torch.bitwise_or(input, other, *, out=None)``: logical on bools; floats are refused."""

from conformance.ops import _bitwise

SPEC = _bitwise.spec("bitwise_or")
