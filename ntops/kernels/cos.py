"""``cos(input)``, elementwise, in radians."""

import ninetoothed.language as ntl

from ntops.kernels import constants, element_wise, functions

arrangement = element_wise.arrangement


def application(output, input, compute_dtype):
    value = ntl.cast(input, compute_dtype)

    if compute_dtype == ntl.float64:
        output = ntl.cast(ntl.cos(value), output.dtype)
    else:
        short = (input.dtype == ntl.float16) | (input.dtype == ntl.bfloat16)
        size = ntl.abs(value)
        # As in sin: cos(x) is sin(x + pi / 2).
        shifted = ntl.fma(size, 0.3183098861837907, -0.5) + 12582912.0
        result = functions.sine(size, shifted, (shifted - 12582912.0) + 0.5, -2147483648, short)
        output = ntl.cast(result, output.dtype)

        # As in sin.
        if input.dtype != ntl.float16:  # noqa: SIM102  (the compiler settles this one, the program the next)
            if ntl.max(ntl.cast(size, ntl.int32, bitcast=True)) > 1199570944:
                far = ntl.cast(ntl.cos(value), output.dtype)
                output = ntl.where(size > 65536.0, far, output)


premake = element_wise.premaker(application, "input", result=constants.floating)
