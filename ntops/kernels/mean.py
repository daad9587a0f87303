"""The mean over dims: the sum divided by the number of elements."""

import ninetoothed.language as ntl

from ntops.kernels import constants, dim_reduction

arrangement = dim_reduction.arrangement


def application(output, input, count, compute_dtype):
    total = ntl.cast(input[0], compute_dtype)

    for i in range(1, input.shape[0]):
        total += ntl.cast(input[i], compute_dtype)

    output = ntl.cast(ntl.sum(total, axis=1) / ntl.cast(count, compute_dtype), output.dtype)


premake = dim_reduction.premaker(application, result=constants.floating, numbers=("count",))
