"""``isinf(input)``, elementwise."""

import ninetoothed.language as ntl

from ntops.kernels import constants, element_wise

arrangement = element_wise.arrangement


def application(output, input, compute_dtype):
    output = ntl.abs(ntl.cast(input, compute_dtype)) == float("inf")


premake = element_wise.premaker(
    application,
    "input",
    result=constants.boolean,
    computed=lambda dtype, output_dtype: dtype and ("fp64" if dtype == "fp64" else "fp32"),
)
