"""``input + alpha * other``, elementwise."""

import functools

import ninetoothed.language as ntl

from ntops.kernels import constants, element_wise, functions
from ntops.kernels.element_wise import arrangement


def application(output, input, other, alpha, compute_dtype):
    factor = ntl.cast(alpha, compute_dtype)
    total = functions.multiply_add(
        factor, ntl.cast(other, compute_dtype), ntl.cast(input, compute_dtype), compute_dtype
    )
    output = ntl.cast(total, output.dtype)


def premake(ndim, dtype=None, output_dtype=None, compute_dtype=None, scalars=None, block_size=None):
    """Return the arrangement, application and tensors of ``add``; ``scalars`` has the type of ``alpha`` and of number
    operands."""
    result_dtype = output_dtype or dtype
    compute_dtype = compute_dtype or constants.accumulated(result_dtype)
    scalars = scalars or constants.numbers(result_dtype, "alpha")
    tensors = element_wise.tensors(
        ndim, "input", "other", "alpha", dtype=dtype, output_dtype=output_dtype, scalars=scalars
    )
    arranged = functools.partial(arrangement, block_size=block_size)

    return arranged, *constants.bind(application, tensors, compute_dtype=compute_dtype)
