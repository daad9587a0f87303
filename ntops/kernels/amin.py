"""The smallest element over dims; NaN if there is one."""

import ninetoothed.language as ntl

from ntops.kernels import constants, dim_reduction

arrangement = dim_reduction.arrangement


def application(output, input, compute_dtype):
    smallest = ntl.cast(input[0], compute_dtype)

    for i in range(1, input.shape[0]):
        values = ntl.cast(input[i], compute_dtype)
        smallest = ntl.where((values < smallest) | (values != values), values, smallest)

    # Triton's own minimum loses NaN where it is compiled.
    nan = ntl.sum(ntl.where(smallest != smallest, smallest, 0), axis=1)
    output = ntl.cast(ntl.where(nan != nan, nan, ntl.min(smallest, axis=1)), output.dtype)


premake = dim_reduction.premaker(application, other=lambda dtype: constants.limits(dtype)[1])
