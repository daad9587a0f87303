"""``-input``, elementwise; integers wrap."""

import functools

import ninetoothed.language as ntl

from ntops.kernels import constants, element_wise
from ntops.kernels.element_wise import arrangement


def application(output, input):
    output = 0 - input


def application_float(output, input):
    # 0 - 0 is 0, and not -0.
    output = ntl.cast(input * -1.0, output.dtype)


def premake(ndim, floating=False, dtype=None, block_size=None):
    """Return the arrangement, application and tensors of ``neg``; ``floating`` for numbers whose zeros have signs."""
    tensors = element_wise.tensors(ndim, "input", dtype=dtype)
    arranged = functools.partial(arrangement, block_size=block_size)
    floating = floating or constants.is_floating(dtype)

    return arranged, application_float if floating else application, tensors
