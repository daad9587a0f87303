"""``abs(input)``, elementwise; the lowest integer stays itself."""

import functools

import ninetoothed.language as ntl

from ntops.kernels import element_wise


def application(output, input):
    output = ntl.abs(input)


def premake(ndim, dtype=None, block_size=None):
    """Arrangement, application and tensors of ``abs``."""
    tensors = element_wise.tensors(ndim, "input", dtype=dtype)

    return functools.partial(element_wise.arrangement, block_size=block_size), application, tensors
