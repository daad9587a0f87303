"""``tanh(input)``, elementwise."""

import functools

import ninetoothed.language as ntl
from ninetoothed.language import libdevice

from ntops.kernels import constants, element_wise


def application(output, input, compute_dtype):
    value = ntl.cast(input, compute_dtype)
    # tanh(x) is x to float64's precision there, where libdevice takes float32's subnormals for zeros.
    output = ntl.cast(ntl.where(ntl.abs(value) < 7.450580596923828e-09, value, libdevice.tanh(value)), output.dtype)


def premake(ndim, dtype=None, output_dtype=None, compute_dtype=None, block_size=None):
    """Arrangement, application and tensors of ``tanh``."""
    output_dtype = output_dtype or constants.floating(dtype)
    compute_dtype = compute_dtype or constants.accumulated(output_dtype)
    tensors = element_wise.tensors(ndim, "input", dtype=dtype, output_dtype=output_dtype)
    arrangement = functools.partial(element_wise.arrangement, block_size=block_size)

    return arrangement, *constants.bind(application, tensors, compute_dtype=compute_dtype)
