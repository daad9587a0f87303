"""``min(max(input, low), high)``, elementwise, keeping NaN of any operand."""

import functools

import ninetoothed.language as ntl

from ntops.kernels import constants, element_wise
from ntops.kernels.element_wise import arrangement


def application(output, input, low, high, compute_dtype):
    value = ntl.cast(input, compute_dtype)
    bound = ntl.cast(low, compute_dtype)
    raised = ntl.where((value < bound) | (bound != bound), bound, value)
    bound = ntl.cast(high, compute_dtype)
    output = ntl.cast(ntl.where((raised > bound) | (bound != bound), bound, raised), output.dtype)


def application_low(output, input, low, compute_dtype):
    value = ntl.cast(input, compute_dtype)
    bound = ntl.cast(low, compute_dtype)
    output = ntl.cast(ntl.where((value < bound) | (bound != bound), bound, value), output.dtype)


def application_high(output, input, high, compute_dtype):
    value = ntl.cast(input, compute_dtype)
    bound = ntl.cast(high, compute_dtype)
    output = ntl.cast(ntl.where((value > bound) | (bound != bound), bound, value), output.dtype)


APPLICATIONS = {None: application, "low": application_low, "high": application_high}


def premake(
    ndim,
    bound=None,
    dtype=None,
    output_dtype=None,
    compute_dtype=None,
    scalars=None,
    block_size=None,
):
    """Return the arrangement, application and tensors of ``clamp``; ``bound`` is "low" or "high" where there is no
    other."""
    compute_dtype = compute_dtype or constants.accumulated(output_dtype or dtype)
    bounds = (bound,) if bound else ("low", "high")
    tensors = element_wise.tensors(ndim, "input", *bounds, dtype=dtype, output_dtype=output_dtype, scalars=scalars)
    arranged = functools.partial(arrangement, block_size=block_size)

    return arranged, *constants.bind(APPLICATIONS[bound], tensors, compute_dtype=compute_dtype)
