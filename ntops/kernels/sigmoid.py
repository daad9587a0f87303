"""``1 / (1 + exp(-input))``, elementwise."""

import functools

import ninetoothed.language as ntl

from ntops.kernels import element_wise
from ntops.kernels.functions import divide, exp


def application(output, input, compute_dtype):
    power = exp(-ntl.cast(input, compute_dtype), compute_dtype)
    result = divide(1, 1 + power, compute_dtype)
    output = ntl.cast(result, output.dtype)


def premake(ndim, dtype=None, output_dtype=None, compute_dtype=None, block_size=None):
    """Arrangement, application and tensors of ``sigmoid``."""
    tensors = (
        *element_wise.tensors(ndim, "input", dtype=dtype, output_dtype=output_dtype),
        element_wise.constant("compute_dtype", compute_dtype),
    )

    return functools.partial(element_wise.arrangement, block_size=block_size), application, tensors
