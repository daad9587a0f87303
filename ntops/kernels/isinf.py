"""``isinf(input)``, elementwise."""

import functools

import ninetoothed.language as ntl

from ntops.kernels import constants, element_wise
from ntops.kernels.element_wise import arrangement


def application(output, input, compute_dtype):
    output = ntl.abs(ntl.cast(input, compute_dtype)) == float("inf")


def premake(ndim, dtype=None, output_dtype=None, compute_dtype=None, block_size=None):
    """Return the arrangement, application and tensors of ``isinf``."""
    if dtype:
        output_dtype = output_dtype or "i1"
        compute_dtype = compute_dtype or ("fp64" if dtype == "fp64" else "fp32")

    tensors = element_wise.tensors(ndim, "input", dtype=dtype, output_dtype=output_dtype)
    arranged = functools.partial(arrangement, block_size=block_size)

    return arranged, *constants.bind(application, tensors, compute_dtype=compute_dtype)
