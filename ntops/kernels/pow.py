"""``input ** exponent``, elementwise."""

import functools

import ninetoothed.language as ntl
from ninetoothed.language import libdevice  # noqa: F401  (functions.power is inlined here)

from ntops.kernels import constants, element_wise, functions
from ntops.kernels.element_wise import arrangement


def application(output, input, exponent, compute_dtype, ordinary):
    base = ntl.cast(input, compute_dtype)
    power = ntl.cast(exponent, compute_dtype)

    result = functions.power(base, power, compute_dtype, ordinary)
    output = ntl.cast(result, output.dtype)


def application_square(output, input, exponent, compute_dtype):
    value = ntl.cast(input, compute_dtype)
    output = ntl.cast(value * value, output.dtype)


def application_integer(output, input, exponent, compute_dtype):
    base = ntl.cast(input, compute_dtype)
    rest = ntl.cast(exponent, compute_dtype)
    # A negative power of an integer is 0, except for powers of 1 and -1.
    unit = ntl.where(base == 1, 1, ntl.where(base == -1, ntl.where((rest & 1) == 0, 1, -1), 0))
    negative = rest < 0
    rest = ntl.where(negative, 0, rest)
    power = (base + rest) * 0 + 1

    # Squaring and multiplying wrap as torch's integer powers do.
    for _ in range(63):
        power = ntl.where((rest & 1) == 1, power * base, power)
        base = base * base
        rest = rest >> 1

    output = ntl.cast(ntl.where(negative, unit, power), output.dtype)


APPLICATIONS = {"square": application_square, "integer": application_integer}


def premake(ndim, kind=None, dtype=None, output_dtype=None, compute_dtype=None, scalars=None, block_size=None):
    """Return the arrangement, application and tensors of ``pow``.

    ``kind`` is "integer" for integer powers of integers, in int64; "square" if ``exponent``, then not read, is known to
    be 2; "ordinary" if it is known to be finite and not 0.
    """
    if dtype:
        floating = constants.is_floating(output_dtype or dtype)
        kind = kind or (None if floating else "integer")
        compute_dtype = compute_dtype or (constants.accumulated(output_dtype or dtype) if floating else "i64")

    tensors = element_wise.tensors(ndim, "input", "exponent", dtype=dtype, output_dtype=output_dtype, scalars=scalars)
    arranged = functools.partial(arrangement, block_size=block_size)

    if kind in APPLICATIONS:
        return arranged, *constants.bind(APPLICATIONS[kind], tensors, compute_dtype=compute_dtype)

    bound = constants.bind(application, tensors, compute_dtype=compute_dtype, ordinary=kind == "ordinary")

    return arranged, *bound
