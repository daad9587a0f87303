"""``exp(input)``, elementwise."""

import ninetoothed.language as ntl
from ninetoothed.language import libdevice

from ntops.kernels import constants, element_wise

arrangement = element_wise.arrangement


def application(output, input, compute_dtype):
    # Triton's own exp of float32 multiplies by log2(e) in one rounding: tens of ulps where the input is large.
    output = ntl.cast(libdevice.exp(ntl.cast(input, compute_dtype)), output.dtype)


premake = element_wise.premaker(application, "input", result=constants.floating)
