"""``isinf(input)``, elementwise."""

from ntops.kernels import constants
from ntops.kernels.expressions import kernel, ntl

arrangement, application, premake = kernel(
    lambda input: ntl.abs(input) == float("inf"),
    result=constants.boolean,
    computed=lambda dtype, output_dtype: dtype and ("fp64" if dtype == "fp64" else "fp32"),
)
