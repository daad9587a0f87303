"""``max(input, 0)``, elementwise, keeping NaN."""

import functools

import ninetoothed.language as ntl

from ntops.kernels import element_wise
from ntops.kernels.element_wise import arrangement


def application(output, input):
    # A comparison with NaN is false, so NaN stays; Triton's maximum may drop it.
    output = ntl.cast(ntl.where(input <= 0, 0, input), output.dtype)


def premake(ndim, dtype=None, block_size=None):
    """Return the arrangement, application and tensors of ``relu``."""
    tensors = element_wise.tensors(ndim, "input", dtype=dtype)

    return functools.partial(arrangement, block_size=block_size), application, tensors
