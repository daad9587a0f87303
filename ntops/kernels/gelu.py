"""``input * Phi(input)``, elementwise: the Gaussian error linear unit."""

import functools

import ninetoothed.language as ntl
from ninetoothed.language import libdevice

from ntops.kernels import constants, element_wise


def application(output, input, compute_dtype):
    value = ntl.cast(input, compute_dtype)
    output = ntl.cast(value * 0.5 * (1 + ntl.erf(value * 0.7071067811865476)), output.dtype)


def application_tanh(output, input, compute_dtype):
    value = ntl.cast(input, compute_dtype)
    inner = 0.7978845608028654 * (value + 0.044715 * value * value * value)
    output = ntl.cast(value * 0.5 * (1 + libdevice.tanh(inner)), output.dtype)


APPLICATIONS = {None: application, "none": application, "tanh": application_tanh}


def premake(ndim, approximate=None, dtype=None, output_dtype=None, compute_dtype=None, block_size=None):
    """Arrangement, application and tensors of ``gelu``; ``approximate`` is "none" (or ``None``) or "tanh"."""
    compute_dtype = compute_dtype or constants.accumulated(output_dtype or dtype)
    tensors = element_wise.tensors(ndim, "input", dtype=dtype, output_dtype=output_dtype)
    arrangement = functools.partial(element_wise.arrangement, block_size=block_size)

    return arrangement, *constants.bind(APPLICATIONS[approximate], tensors, compute_dtype=compute_dtype)
