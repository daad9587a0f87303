"""``1 / (1 + exp(-input))``, elementwise."""

import functools

import ninetoothed.language as ntl
from ninetoothed.language import libdevice

from ntops.kernels import constants, element_wise, functions
from ntops.kernels.element_wise import arrangement


def application(output, input, compute_dtype):
    power = 1 + libdevice.exp(-ntl.cast(input, compute_dtype))
    sigmoid = functions.reciprocal(power, compute_dtype)
    output = ntl.cast(sigmoid, output.dtype)


def premake(ndim, dtype=None, output_dtype=None, compute_dtype=None, block_size=None):
    """Return the arrangement, application and tensors of ``sigmoid``."""
    output_dtype = output_dtype or constants.floating(dtype)
    compute_dtype = compute_dtype or constants.accumulated(output_dtype)
    tensors = element_wise.tensors(ndim, "input", dtype=dtype, output_dtype=output_dtype)
    arranged = functools.partial(arrangement, block_size=block_size)

    return arranged, *constants.bind(application, tensors, compute_dtype=compute_dtype)
