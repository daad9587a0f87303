"""``input < other``, elementwise."""

import ninetoothed.language as ntl

from ntops.kernels import element_wise

arrangement = element_wise.arrangement


def application(output, input, other, compute_dtype):
    output = ntl.cast(input, compute_dtype) < ntl.cast(other, compute_dtype)


premake = element_wise.comparison_premaker(application)
