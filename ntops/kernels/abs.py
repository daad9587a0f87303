"""``abs(input)``, elementwise; the lowest integer stays itself."""

import ninetoothed.language as ntl

from ntops.kernels import element_wise

arrangement = element_wise.arrangement


def application(output, input):
    output = ntl.abs(input)


premake = element_wise.plain_premaker(application, "input")
