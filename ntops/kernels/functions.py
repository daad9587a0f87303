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
