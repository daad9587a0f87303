"""``torch.abs(input, *, out=None)``: the least integer stays itself, bools are taken as on CUDA."""

from conformance.ops import _gradients as gradients
from conformance.ops import _unary

SPEC = _unary.exact_spec("abs", gradient=gradients.of(gradients.magnitude, "input"))
