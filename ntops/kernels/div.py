"""``input / other``, elementwise, with torch's three rounding modes."""

import functools

import ninetoothed.language as ntl
from ninetoothed.language import libdevice

from ntops.kernels import element_wise
from ntops.kernels.functions import divide


def application(output, input, other, compute_dtype):
    quotient = divide(ntl.cast(input, compute_dtype), ntl.cast(other, compute_dtype), compute_dtype)
    output = ntl.cast(quotient, output.dtype)


def application_trunc(output, input, other, compute_dtype):
    quotient = divide(ntl.cast(input, compute_dtype), ntl.cast(other, compute_dtype), compute_dtype)
    output = ntl.cast(ntl.where(quotient < 0, ntl.ceil(quotient), ntl.floor(quotient)), output.dtype)


def application_floor(output, input, other, compute_dtype):
    dividend = ntl.cast(input, compute_dtype)
    divisor = ntl.cast(other, compute_dtype)
    plain = divide(dividend, divisor, compute_dtype)
    # The floor of a rounded quotient is one too large where rounding reached the next integer, so what is divided
    # is the dividend less its remainder, which is exact.
    remainder = libdevice.fmod(dividend, divisor)
    quotient = divide(dividend - remainder, divisor, compute_dtype)
    quotient = ntl.where((remainder != 0) & ((remainder < 0) != (divisor < 0)), quotient - 1, quotient)
    nearest = ntl.floor(quotient)
    nearest = ntl.where(quotient - nearest > 0.5, nearest + 1, nearest)
    # A zero has the sign of the plain quotient; a division by zero is the plain quotient.
    result = ntl.where(quotient == 0, plain * 0, nearest)
    output = ntl.cast(ntl.where(divisor == 0, plain, result), output.dtype)


def application_trunc_integer(output, input, other, compute_dtype):
    dividend = ntl.cast(input, compute_dtype)
    divisor = ntl.cast(other, compute_dtype)
    # The hardware traps or lies for x / 0 and for the lowest integer / -1, which wraps to itself.
    negated = divisor == -1
    quotient = dividend // ntl.where(negated | (divisor == 0), 1, divisor)
    output = ntl.cast(ntl.where(negated, -dividend, quotient), output.dtype)


def application_floor_integer(output, input, other, compute_dtype):
    dividend = ntl.cast(input, compute_dtype)
    divisor = ntl.cast(other, compute_dtype)
    negated = divisor == -1
    safe = ntl.where(negated | (divisor == 0), 1, divisor)
    quotient = dividend // safe
    remainder = dividend - quotient * safe
    below = (remainder != 0) & ((remainder < 0) != (safe < 0))
    output = ntl.cast(ntl.where(negated, -dividend, ntl.where(below, quotient - 1, quotient)), output.dtype)


APPLICATIONS = {
    (None, False): application,
    ("trunc", False): application_trunc,
    ("floor", False): application_floor,
    ("trunc", True): application_trunc_integer,
    ("floor", True): application_floor_integer,
}


def premake(
    ndim,
    rounding_mode=None,
    integer=False,
    dtype=None,
    output_dtype=None,
    compute_dtype=None,
    scalars=None,
    block_size=None,
):
    """Arrangement, application and tensors of ``div``; ``integer`` when integers are divided to integers."""
    tensors = (
        *element_wise.tensors(ndim, "input", "other", dtype=dtype, output_dtype=output_dtype, scalars=scalars),
        element_wise.constant("compute_dtype", compute_dtype),
    )
    arrangement = functools.partial(element_wise.arrangement, block_size=block_size)

    return arrangement, APPLICATIONS[rounding_mode, integer], tensors
