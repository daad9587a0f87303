"""``log(sum(exp(input)))`` over dims; of the results of parts too."""

import ninetoothed.language as ntl
from ninetoothed.language import libdevice

from ntops.kernels import constants, dim_reduction

arrangement = dim_reduction.arrangement


def application(output, input, compute_dtype):
    # Each lane has the maximum of its elements, and the sum of their exponentials relative to it. Equal infinities
    # differ by 0; NaN makes the sum NaN.
    maximum = ntl.cast(input[0], compute_dtype)
    total = ntl.where(maximum == maximum, 1, maximum)

    for i in range(1, input.shape[0]):
        values = ntl.cast(input[i], compute_dtype)
        power = ntl.exp(ntl.abs(ntl.where(values == maximum, 0, values - maximum)) * -1.0)
        total = ntl.where(values > maximum, total * power + 1, total + power)
        maximum = ntl.where(values > maximum, values, maximum)

    largest = ntl.max(maximum, axis=1)
    below = ntl.where(maximum == largest[:, None], 0, maximum - largest[:, None])
    logarithm = libdevice.log(ntl.sum(total * ntl.exp(below), axis=1))
    output = ntl.cast(logarithm + largest, output.dtype)


premake = dim_reduction.premaker(application, result=constants.floating, other=lambda dtype: float("-inf"))
