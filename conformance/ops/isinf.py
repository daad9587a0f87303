"""``torch.isinf(input)``: no integer is."""

from conformance.ops import _unary

SPEC = _unary.question_spec("isinf")
