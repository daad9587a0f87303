"""``sin(input)``, elementwise, in radians."""

import functools

import ninetoothed.language as ntl

from ntops.kernels import constants, element_wise


def application(output, input, compute_dtype):
    value = ntl.cast(input, compute_dtype)
    # sin(x) is x to float32's precision below 2^-13 (float64's: 2^-27), where libdevice takes subnormals for zeros.
    output = ntl.cast(ntl.where(ntl.abs(value) < 7.450580596923828e-09, value, ntl.sin(value)), output.dtype)


def premake(ndim, dtype=None, output_dtype=None, compute_dtype=None, block_size=None):
    """Arrangement, application and tensors of ``sin``."""
    output_dtype = output_dtype or constants.floating(dtype)
    compute_dtype = compute_dtype or constants.accumulated(output_dtype)
    tensors = element_wise.tensors(ndim, "input", dtype=dtype, output_dtype=output_dtype)
    arrangement = functools.partial(element_wise.arrangement, block_size=block_size)

    return arrangement, *constants.bind(application, tensors, compute_dtype=compute_dtype)
