"""``input / other``, elementwise, with torch's three rounding modes."""

import functools

import ninetoothed.language as ntl
from ninetoothed.language import libdevice

from ntops.kernels import constants, element_wise
from ntops.kernels.element_wise import arrangement
from ntops.kernels.functions import divide


def application(output, input, other, compute_dtype):
    if (input.dtype == ntl.bfloat16) & (other.dtype == ntl.bfloat16):
        # Quotients of 8-bit numbers are at least 2^-17 away from a rounding boundary of 8 bits, so Triton's approximate
        # "/" is good enough. Dividing by a row of 8192, 64M take 66.4 us on an H200, else 69.4; a copy 63.7.
        quotient = ntl.cast(input, compute_dtype) / ntl.cast(other, compute_dtype)
    else:
        quotient = divide(ntl.cast(input, compute_dtype), ntl.cast(other, compute_dtype), compute_dtype)

    output = ntl.cast(quotient, output.dtype)


def application_trunc(output, input, other, compute_dtype):
    quotient = divide(ntl.cast(input, compute_dtype), ntl.cast(other, compute_dtype), compute_dtype)
    output = ntl.cast(ntl.where(quotient < 0, ntl.ceil(quotient), ntl.floor(quotient)), output.dtype)


def application_floor(output, input, other, compute_dtype):
    dividend = ntl.cast(input, compute_dtype)
    divisor = ntl.cast(other, compute_dtype)
    plain = divide(dividend, divisor, compute_dtype)
    # The floor of a rounded quotient is one too large if rounding reached the next integer, so divide the dividend less
    # its remainder, which is exact.
    remainder = libdevice.fmod(dividend, divisor)
    quotient = divide(dividend - remainder, divisor, compute_dtype)
    quotient = ntl.where((remainder != 0) & ((remainder < 0) != (divisor < 0)), quotient - 1, quotient)
    nearest = ntl.floor(quotient)
    nearest = ntl.where(quotient - nearest > 0.5, nearest + 1, nearest)
    # A zero takes the sign of the plain quotient; a division by zero gives the plain quotient.
    result = ntl.where(quotient == 0, plain * 0, nearest)
    output = ntl.cast(ntl.where(divisor == 0, plain, result), output.dtype)


def application_trunc_integer(output, input, other, compute_dtype):
    dividend = ntl.cast(input, compute_dtype)
    divisor = ntl.cast(other, compute_dtype)
    # The hardware traps or gives a wrong result for x / 0 and for the lowest integer / -1, which wraps to itself.
    negated = divisor == -1
    quotient = dividend // ntl.where(negated | (divisor == 0), 1, divisor)
    output = ntl.cast(ntl.where(negated, 0 - dividend, quotient), output.dtype)


def application_floor_integer(output, input, other, compute_dtype):
    dividend = ntl.cast(input, compute_dtype)
    divisor = ntl.cast(other, compute_dtype)
    negated = divisor == -1
    safe = ntl.where(negated | (divisor == 0), 1, divisor)
    quotient = dividend // safe
    remainder = dividend - quotient * safe
    below = (remainder != 0) & ((remainder < 0) != (safe < 0))
    output = ntl.cast(ntl.where(negated, 0 - dividend, ntl.where(below, quotient - 1, quotient)), output.dtype)


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
    """Return the arrangement, application and tensors of ``div``; ``integer`` when integers are divided to integers."""
    if dtype:
        output_dtype = output_dtype or (dtype if rounding_mode else constants.floating(dtype))
        integer = not constants.is_floating(output_dtype)
        compute_dtype = compute_dtype or _compute_dtype(output_dtype, rounding_mode)

    tensors = element_wise.tensors(ndim, "input", "other", dtype=dtype, output_dtype=output_dtype, scalars=scalars)
    arranged = functools.partial(arrangement, block_size=block_size)
    application = APPLICATIONS[rounding_mode, integer]

    return arranged, *constants.bind(application, tensors, compute_dtype=compute_dtype)


def _compute_dtype(dtype, rounding_mode):
    if dtype in ("i8", "i16", "u8"):
        return "i32"  # in which no quotient overflows, and -1 can be told from 255

    if rounding_mode == "floor" and constants.is_floating(dtype):
        return "fp64"  # libdevice's remainder of float32 takes subnormal numbers for zeros

    return constants.accumulated(dtype)
