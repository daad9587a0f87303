"""``tanh(input)``, elementwise."""

import ninetoothed.language as ntl
from ninetoothed.language import libdevice

from ntops.kernels import constants, element_wise, functions

arrangement = element_wise.arrangement


def application(output, input, compute_dtype):
    value = ntl.cast(input, compute_dtype)

    if compute_dtype == ntl.float64:
        result = libdevice.tanh(value)
    else:
        # Both branches of libdevice's tanh, computed without branching: 1 - 2 / (1 + exp(2x)) cancels for small x. The
        # coefficients are a minimax fit of tanh(x) / x, off by at most 3.8e-8.
        size = ntl.abs(value)
        square = size * size
        series = 0.13320599108950176 + square * (-0.05266347474697672 + square * 0.016421247743019497)
        near = size + size * square * (-0.33332941372945474 + square * series)
        far = 1 - 2 * functions.reciprocal(1 + ntl.exp2(2.8853900817779268 * size), compute_dtype)
        sign = ntl.cast(value, ntl.int32, bitcast=True) & -2147483648
        bits = ntl.cast(ntl.where(size < 0.55, near, far), ntl.int32, bitcast=True) | sign
        result = ntl.cast(bits, ntl.float32, bitcast=True)

    output = ntl.cast(result, output.dtype)


premake = element_wise.premaker(application, "input", result=constants.floating)
