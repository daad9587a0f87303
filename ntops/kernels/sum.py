"""The sum over dims."""

import ninetoothed.language as ntl

from ntops.kernels import constants, dim_reduction

arrangement = dim_reduction.arrangement


def application(output, input, compute_dtype):
    # Each lane adds up its own elements, so that few roundings follow each other.
    total = ntl.cast(input[0], compute_dtype)

    for i in range(1, input.shape[0]):
        total += ntl.cast(input[i], compute_dtype)

    output = ntl.cast(ntl.sum(total, axis=1), output.dtype)


premake = dim_reduction.premaker(application, result=constants.summed)
