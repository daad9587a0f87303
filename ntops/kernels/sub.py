"""``input - alpha * other``, elementwise."""

import ninetoothed.language as ntl

from ntops.kernels import element_wise, functions

arrangement = element_wise.arrangement


def application(output, input, other, alpha, compute_dtype):
    factor = ntl.cast(alpha, compute_dtype)
    total = functions.multiply_subtract(
        factor, ntl.cast(other, compute_dtype), ntl.cast(input, compute_dtype), compute_dtype
    )
    output = ntl.cast(total, output.dtype)


premake = element_wise.premaker(application, "input", "other", numbers=("alpha",))
