"""``input ** exponent``, elementwise."""

import functools

import ninetoothed.language as ntl
from ninetoothed.language import libdevice

from ntops.kernels import constants, element_wise
from ntops.kernels.element_wise import arrangement


def application(output, input, exponent, compute_dtype, ordinary):
    base = ntl.cast(input, compute_dtype)
    power = ntl.cast(exponent, compute_dtype)

    if compute_dtype == ntl.float64:
        result = libdevice.pow(base, power)
    else:
        # Replace infinity by a large power, which gives the same except for zeros.
        power = ntl.where(power == float("inf"), 1.7014118346046923e38, power)
        power = ntl.where(power == float("-inf"), -1.7014118346046923e38, power)
        # 2^(power log2(size)), where the logarithm and its product with the power are each the sum of two numbers: the
        # error of a single number would be multiplied by the power. A negative number has integer powers only.
        is_whole = ntl.floor(power) == power
        size = ntl.where(is_whole | (base == float("-inf")), ntl.abs(base), base)
        tiny = size < 1.1754943508222875e-38
        size = ntl.where(tiny, size * 16777216.0, size)
        bits = ntl.cast(size, ntl.int32, bitcast=True)
        # The size is m 2^n with m from sqrt(1/2) to sqrt(2), and the logarithm of m is 2 atanh((m - 1) / (m + 1)),
        # whose coefficients are a minimax fit, off by at most 8.2e-10. 2 / ln(2) is 2.88539004 + 3.85e-8.
        binade = (bits - 1060439283) & -8388608
        above = ntl.cast(bits - binade, ntl.float32, bitcast=True) - 1
        # Values are negated here and below where a difference would otherwise need another negation.
        inverse = libdevice.fast_dividef(-1.0, above + 2)
        quotient = above * inverse
        rest = inverse * ntl.fma(quotient, above, ntl.fma(quotient, 2.0, above))
        square = quotient * quotient
        series = 0.9617982864795396 + square * (0.5767526801297578 + square * 0.4309968117466395)
        whole = ntl.cast(binade, compute_dtype) * 1.1920928955078125e-07 - ntl.where(tiny, 24.0, 0.0)
        logarithm = ntl.fma(quotient, -2.885390043258667, whole)
        low = ntl.fma(quotient, -2.885390043258667, whole - logarithm) - rest * 2.885390043258667
        low = low - quotient * (square * series + 3.851925982253235e-08)
        # Zeros, infinity, NaN and negative numbers need no logarithm: two roots give -inf, inf and NaN.
        special = ntl.cast(bits - 1, ntl.uint32, bitcast=True) >= 2139095039
        inverse = ntl.rsqrt(size)
        logarithm = ntl.where(special, ntl.sqrt(size) - inverse * inverse, logarithm)
        # Powers are 0 or infinite well within these limits.
        negated = ntl.minimum(ntl.maximum(power * -1.0 * logarithm, -252.0), 252.0)
        low = ntl.fma(power, logarithm, negated) + power * low
        # Adding 1.5 * 2^24 rounds to an even number, whose half is in the last bits.
        shifted = 25165824.0 - negated
        result = ntl.exp2(low - (negated + (shifted - 25165824.0)))
        # 2^n is the square of 2^(n / 2): of the two products only the second can round.
        root = ntl.cast((ntl.cast(shifted, ntl.int32, bitcast=True) << 23) + 1065353216, ntl.float32, bitcast=True)
        result = result * root * root
        # Odd powers have the sign of the number.
        is_odd = is_whole & (ntl.floor(power * 0.5) != power * 0.5)
        sign = ntl.cast(base, ntl.int32, bitcast=True) & ntl.where(is_odd, -2147483648, 0)
        result = ntl.cast(ntl.cast(result, ntl.int32, bitcast=True) ^ sign, ntl.float32, bitcast=True)

        if not ordinary:
            one = (power == 0) | (base == 1)
            result = ntl.where(one, 1.0, result)

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
