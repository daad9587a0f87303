"""``1 / sqrt(input)``, elementwise."""

import ninetoothed.language as ntl

from ntops.kernels import constants, element_wise

arrangement = element_wise.arrangement


def application(output, input, compute_dtype):
    value = ntl.cast(input, compute_dtype)
    # The hardware's float32 estimate flushes subnormal numbers to zero, so they are scaled to normal ones.
    tiny = ntl.abs(value) < 1.1754943508222875e-38
    root = ntl.rsqrt(ntl.where(tiny, value * 16777216.0, value))
    output = ntl.cast(ntl.where(tiny, root * 4096.0, root), output.dtype)


premake = element_wise.premaker(application, "input", result=constants.floating)
