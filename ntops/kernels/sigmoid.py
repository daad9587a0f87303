"""``1 / (1 + exp(-input))``, elementwise."""

import ninetoothed.language as ntl
from ninetoothed.language import libdevice

from ntops.kernels import constants, element_wise, functions

arrangement = element_wise.arrangement


def application(output, input, compute_dtype):
    power = 1 + libdevice.exp(ntl.cast(input, compute_dtype) * -1.0)
    sigmoid = functions.reciprocal(power, compute_dtype)
    output = ntl.cast(sigmoid, output.dtype)


premake = element_wise.premaker(application, "input", result=constants.floating)
