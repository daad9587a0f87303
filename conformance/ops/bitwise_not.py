"""``torch.bitwise_not(input, *, out=None)``: logical on bools; floats are refused."""

from conformance.ops import _unary
from strategies import dtypes as dtype_names

SPEC = _unary.exact_spec("bitwise_not", dtype_names.INTEGRAL + dtype_names.BOOL, benchmark="int32")
