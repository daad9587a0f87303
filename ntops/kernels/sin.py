"""``sin(input)``, elementwise, in radians."""

import ninetoothed.language as ntl

from ntops.kernels import constants, element_wise, functions

arrangement = element_wise.arrangement


def application(output, input, compute_dtype):
    value = ntl.cast(input, compute_dtype)

    if compute_dtype == ntl.float64:
        output = ntl.cast(ntl.sin(value), output.dtype)
    else:
        short = (input.dtype == ntl.float16) | (input.dtype == ntl.bfloat16)
        size = ntl.abs(value)
        # Adding 1.5 * 2^23 rounds to an integer, which is in the last bits.
        shifted = ntl.fma(size, 0.3183098861837907, 12582912.0)
        sign = ntl.cast(value, ntl.int32, bitcast=True)
        result = functions.sine(size, shifted, shifted - 12582912.0, sign, short)
        output = ntl.cast(result, output.dtype)

        # Up to 2^16, which exceeds float16, this is enough; larger numbers use libdevice's sine. The check comes after
        # the tile is written, since before it would wait for all loads; and nothing of the written tile is kept, since
        # libdevice's sine leaves few registers. On an H200 64M bfloat16 take 70 us, cosines 71; with the check before,
        # 72 and 76, without a check 66 and 66.5 (a copy 65). Each thread reads back what it wrote: the tile has one
        # layout if input and output have one size, and smaller inputs, integers, are never so large.
        if input.dtype != ntl.float16:  # noqa: SIM102  (the compiler settles this one, the program the next)
            if ntl.max(ntl.cast(size, ntl.int32, bitcast=True)) > 1199570944:
                far = ntl.cast(ntl.sin(value), output.dtype)
                output = ntl.where(size > 65536.0, far, output)


premake = element_wise.premaker(application, "input", result=constants.floating)
