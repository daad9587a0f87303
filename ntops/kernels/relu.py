"""``max(input, 0)``, elementwise, keeping NaN."""

import ninetoothed.language as ntl

from ntops.kernels import element_wise

arrangement = element_wise.arrangement


def application(output, input):
    # A comparison with NaN is false, so NaN stays; Triton's maximum may drop it.
    output = ntl.cast(ntl.where(input <= 0, 0, input), output.dtype)


premake = element_wise.plain_premaker(application, "input")
