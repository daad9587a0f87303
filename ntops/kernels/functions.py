"""Functions that kernels share, inlined into each: exact where Triton's own are fast and loose.

Call them on the right-hand side of an assignment of their own; NineToothed inlines them there alone.
"""

import ninetoothed.language as ntl
from ninetoothed.language import libdevice


def divide(dividend, divisor, compute_dtype):
    """The quotient, rounded to nearest: Triton's plain "/" of float32 is approximate, div_rn is float32's alone."""
    if compute_dtype == ntl.float32:
        quotient = ntl.div_rn(dividend, divisor)
    else:
        quotient = dividend / divisor

    return quotient


def reciprocal(divisor, compute_dtype):
    """1 / divisor, of float32 within an ulp or two, 0 for divisors from 2^126 on: half the instructions of "/".

    An application that calls it imports libdevice, too.
    """
    if compute_dtype == ntl.float32:
        quotient = libdevice.fast_dividef(1.0, divisor)
    else:
        quotient = 1 / divisor

    return quotient
