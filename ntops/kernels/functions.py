"""Functions that kernels share, inlined into each: exact where Triton's own are fast and loose.

Call them on the right-hand side of an assignment of their own; NineToothed inlines them there alone.
"""

import ninetoothed.language as ntl


def divide(dividend, divisor, compute_dtype):
    """The quotient, rounded to nearest: Triton's plain "/" of float32 is approximate, div_rn is float32's alone."""
    if compute_dtype == ntl.float32:
        quotient = ntl.div_rn(dividend, divisor)
    else:
        quotient = dividend / divisor

    return quotient


def exp(value, compute_dtype):
    """exp(value) to 2 ulp, subnormal results included.

    Triton's exp of float32 multiplies by log2(e) in one rounding, which costs tens of ulps where ``value`` is large.
    Here log2(e) has two parts, and the power of two is split off, so that what is left is small: exp(x) = 2^k 2^f.
    """
    if compute_dtype == ntl.float32:
        bounded = ntl.minimum(ntl.maximum(value, -110.0), 110.0)
        whole = ntl.floor(bounded * 1.4426950408889634 + 0.5)
        fraction = ntl.fma(bounded, 1.925963033500932e-08, ntl.fma(bounded, 1.4426950216293335, -whole))
        half = ntl.floor(whole * 0.5)
        power = ntl.exp2(fraction) * ntl.exp2(half) * ntl.exp2(whole - half)
        result = ntl.where(value == value, power, value)
    else:
        result = ntl.exp(value)

    return result
