"""``input & other``, elementwise; logical on bools."""

import functools

import ninetoothed.language as ntl

from ntops.kernels import constants, element_wise
from ntops.kernels.element_wise import arrangement


def application(output, input, other, compute_dtype):
    output = ntl.cast(input, compute_dtype) & ntl.cast(other, compute_dtype)


def premake(ndim, dtype=None, output_dtype=None, compute_dtype=None, scalars=None, block_size=None):
    """Return the arrangement, application and tensors of ``bitwise_and``; both are promoted to ``compute_dtype``."""
    compute_dtype = compute_dtype or output_dtype or dtype
    tensors = element_wise.tensors(ndim, "input", "other", dtype=dtype, output_dtype=output_dtype, scalars=scalars)
    arranged = functools.partial(arrangement, block_size=block_size)

    return arranged, *constants.bind(application, tensors, compute_dtype=compute_dtype)
