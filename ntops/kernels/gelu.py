"""``input * Phi(input)``, elementwise: the Gaussian error linear unit."""

import functools

import ninetoothed.language as ntl
from ninetoothed.language import libdevice

from ntops.kernels import element_wise


def application(output, input, compute_dtype):
    value = ntl.cast(input, compute_dtype)
    output = ntl.cast(value * 0.5 * (1 + ntl.erf(value * 0.7071067811865476)), output.dtype)


def application_tanh(output, input, compute_dtype):
    value = ntl.cast(input, compute_dtype)
    inner = 0.7978845608028654 * (value + 0.044715 * value * value * value)
    output = ntl.cast(value * 0.5 * (1 + libdevice.tanh(inner)), output.dtype)


APPLICATIONS = {"none": application, "tanh": application_tanh}


def premake(ndim, approximate="none", dtype=None, output_dtype=None, compute_dtype=None, block_size=None):
    """Arrangement, application and tensors of ``gelu``; ``approximate`` is "none" or "tanh"."""
    tensors = (
        *element_wise.tensors(ndim, "input", dtype=dtype, output_dtype=output_dtype),
        element_wise.constant("compute_dtype", compute_dtype),
    )

    return functools.partial(element_wise.arrangement, block_size=block_size), APPLICATIONS[approximate], tensors
