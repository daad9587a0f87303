"""``~input``, elementwise; logical on bools."""

from ntops.kernels import element_wise

arrangement = element_wise.arrangement


def application(output, input):
    output = ~input


premake = element_wise.plain_premaker(application, "input")
