"""``1 / sqrt(input)``, elementwise."""

import functools

import ninetoothed.language as ntl

from ntops.kernels import constants, element_wise
from ntops.kernels.element_wise import arrangement


def application(output, input, compute_dtype):
    value = ntl.cast(input, compute_dtype)
    # The hardware's float32 estimate flushes subnormal numbers to zero, so they are scaled to normal ones.
    tiny = ntl.abs(value) < 1.1754943508222875e-38
    root = ntl.rsqrt(ntl.where(tiny, value * 16777216.0, value))
    output = ntl.cast(ntl.where(tiny, root * 4096.0, root), output.dtype)


def premake(ndim, dtype=None, output_dtype=None, compute_dtype=None, block_size=None):
    """Return the arrangement, application and tensors of ``rsqrt``."""
    output_dtype = output_dtype or constants.floating(dtype)
    compute_dtype = compute_dtype or constants.accumulated(output_dtype)
    tensors = element_wise.tensors(ndim, "input", dtype=dtype, output_dtype=output_dtype)
    arranged = functools.partial(arrangement, block_size=block_size)

    return arranged, *constants.bind(application, tensors, compute_dtype=compute_dtype)
