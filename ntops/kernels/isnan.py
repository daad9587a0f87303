"""``isnan(input)``, elementwise."""

from ntops.kernels import constants, element_wise

arrangement = element_wise.arrangement


def application(output, input):
    output = input != input


premake = element_wise.plain_premaker(application, "input", result=constants.boolean)
