"""``-input``, elementwise; integers wrap."""

import functools

import ninetoothed.language as ntl

from ntops.kernels import constants, element_wise


def application(output, input):
    output = -input


def application_float(output, input):
    # Triton's "-x" is 0 - x, which makes 0 of 0 and not -0.
    output = ntl.cast(input * -1.0, output.dtype)


def premake(ndim, floating=False, dtype=None, block_size=None):
    """Arrangement, application and tensors of ``neg``; ``floating`` for numbers whose zeros have signs."""
    tensors = element_wise.tensors(ndim, "input", dtype=dtype)
    arrangement = functools.partial(element_wise.arrangement, block_size=block_size)
    floating = floating or constants.is_floating(dtype)

    return arrangement, application_float if floating else application, tensors
