"""``torch.neg(input, *, out=None)``: integers wrap, bools are refused."""

from conformance.ops import _gradients as gradients
from conformance.ops import _unary
from strategies import dtypes as dtype_names

SPEC = _unary.exact_spec(
    "neg", dtype_names.FLOATING + dtype_names.INTEGRAL, gradient=gradients.of_input(lambda g, x: -g)
)
