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
