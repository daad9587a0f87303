"""Whether ``input`` is infinite, elementwise."""

import functools

import ninetoothed.language as ntl

from ntops.kernels import element_wise


def application(output, input, compute_dtype):
    output = ntl.abs(ntl.cast(input, compute_dtype)) == float("inf")


def premake(ndim, dtype=None, output_dtype=None, compute_dtype=None, block_size=None):
    """Arrangement, application and tensors of ``isinf``."""
    tensors = (
        *element_wise.tensors(ndim, "input", dtype=dtype, output_dtype=output_dtype),
        element_wise.constant("compute_dtype", compute_dtype),
    )

    return functools.partial(element_wise.arrangement, block_size=block_size), application, tensors
