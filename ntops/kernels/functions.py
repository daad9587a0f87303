"""Functions that kernels share, inlined into each: exact where Triton's own are only approximate.

Call each on the right-hand side of an assignment of its own; NineToothed inlines calls only there.
"""

import ninetoothed.language as ntl
from ninetoothed.language import libdevice


def divide(dividend, divisor, compute_dtype):
    """Return the quotient, rounded to nearest: Triton's "/" of float32 is approximate, and div_rn takes float32
    only."""
    if compute_dtype == ntl.float32:
        quotient = ntl.div_rn(dividend, divisor)
    else:
        quotient = dividend / divisor

    return quotient


def reciprocal(divisor, compute_dtype):
    """Return 1 / divisor for float32, within an ulp or two, 0 for divisors from 2^126 on: half the instructions of "/".

    An application that calls it imports libdevice, too.
    """
    if compute_dtype == ntl.float32:
        quotient = libdevice.fast_dividef(1.0, divisor)
    else:
        quotient = 1 / divisor

    return quotient


def multiply_add(factor, number, addend, compute_dtype):
    """Return factor * number + addend, rounded once where it is floating-point.

    Left to a compiler, "*" and "+" are one operation unless the product has several uses, as that of an operand which
    is broadcast: bits would depend on layouts.
    """
    if (compute_dtype == ntl.float32) | (compute_dtype == ntl.float64):
        total = ntl.fma(factor, number, addend)
    else:
        total = factor * number + addend

    return total


def multiply_subtract(factor, number, minuend, compute_dtype):
    """Return minuend - factor * number, as ``multiply_add`` does; of zeros with the sign that torch's has, which adds
    -factor * number."""
    if (compute_dtype == ntl.float32) | (compute_dtype == ntl.float64):
        total = ntl.fma(factor * -1.0, number, minuend)
    else:
        total = minuend - factor * number

    return total


def power(base, exponent, compute_dtype, ordinary):
    """Return base ** exponent, within an ulp or two, subnormal results included: libdevice's flushes these to zero.

    An application that calls it imports libdevice, too.

    :param ordinary: Whether the exponent is known to be finite and not 0.
    """
    if compute_dtype == ntl.float64:
        result = libdevice.pow(base, exponent)
    else:
        # Replace infinity by a large power, which gives the same except for zeros.
        limited = ntl.where(exponent == float("inf"), 1.7014118346046923e38, exponent)
        limited = ntl.where(limited == float("-inf"), -1.7014118346046923e38, limited)
        # 2^(power log2(size)), where the logarithm and its product with the power are each the sum of two numbers: the
        # error of a single number would be multiplied by the power. A negative number has integer powers only.
        is_whole = ntl.floor(limited) == limited
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
        negated = ntl.minimum(ntl.maximum(limited * -1.0 * logarithm, -252.0), 252.0)
        low = ntl.fma(limited, logarithm, negated) + limited * low
        # Adding 1.5 * 2^24 rounds to an even number, whose half is in the last bits.
        shifted = 25165824.0 - negated
        result = ntl.exp2(low - (negated + (shifted - 25165824.0)))
        # 2^n is the square of 2^(n / 2): of the two products only the second can round.
        root = ntl.cast((ntl.cast(shifted, ntl.int32, bitcast=True) << 23) + 1065353216, ntl.float32, bitcast=True)
        result = result * root * root
        # Odd powers have the sign of the number.
        is_odd = is_whole & (ntl.floor(limited * 0.5) != limited * 0.5)
        sign = ntl.cast(base, ntl.int32, bitcast=True) & ntl.where(is_odd, -2147483648, 0)
        result = ntl.cast(ntl.cast(result, ntl.int32, bitcast=True) ^ sign, ntl.float32, bitcast=True)

        if not ordinary:
            one = (exponent == 0) | (base == 1)
            result = ntl.where(one, 1.0, result)

    return result


def sine(value, shifted, turns, sign, short):
    """Return sin(value - turns * pi) of float32, negated if ``shifted`` is odd, and again if ``sign`` is negative.

    ``turns`` half circles leave an angle within pi / 2 and a hundredth. Pi is the sum of three constants (W. Cody and
    W. Waite, Software Manual for the Elementary Functions, 1980), or of two if ``short``: for numbers of a half type
    the first difference is exact, and none of them is so near to a multiple of pi that the missing third constant would
    matter. The series is a minimax fit, off by at most 6.7e-9.
    """
    if short:
        rest = ntl.fma(turns, -3.1415927410125732, value)
        rest = ntl.fma(turns, 8.742277657347586e-08, rest)
    else:
        rest = ntl.fma(turns, -3.141592502593994, value)
        rest = ntl.fma(turns, -1.5099578831723193e-07, rest)
        rest = ntl.fma(turns, -1.078060505991553e-14, rest)
    square = rest * rest
    # fma is explicit: a compiler could fuse differently in another place, and bits would differ.
    series = ntl.fma(square, 2.6028727277686705e-06, -0.0001980834757360887)
    series = ntl.fma(square, series, 0.008333050065882351)
    series = ntl.fma(square, series, -0.16666658964770487)
    series = ntl.fma(rest * square, series, rest)
    flipped = ntl.cast(series, ntl.int32, bitcast=True) ^ (ntl.cast(shifted, ntl.int32, bitcast=True) << 31)
    flipped = flipped ^ (sign & -2147483648)
    result = ntl.cast(flipped, ntl.float32, bitcast=True)

    return result
