"""``input / (1 + exp(-input))``, elementwise."""

import ninetoothed.language as ntl
from ninetoothed.language import libdevice

from ntops.kernels import constants, element_wise, functions

arrangement = element_wise.arrangement


def application(output, input, compute_dtype):
    value = ntl.cast(input, compute_dtype)
    power = 1 + libdevice.exp(value * -1.0)
    # If the reciprocal is 0, exp(-value) is 2^126 or more.
    sigmoid = functions.reciprocal(power, compute_dtype)
    output = ntl.cast(value * sigmoid, output.dtype)


premake = element_wise.premaker(application, "input", result=constants.floating)
