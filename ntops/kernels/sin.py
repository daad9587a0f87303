"""``sin(input)``, elementwise, in radians."""

import functools

import ninetoothed.language as ntl

from ntops.kernels import constants, element_wise, functions


def application(output, input, compute_dtype):
    value = ntl.cast(input, compute_dtype)

    if compute_dtype == ntl.float64:
        result = ntl.sin(value)
    else:
        # Three constants of pi are enough up to 2^16. For more there is libdevice's sine, which tiles without such
        # elements pass by. It comes first, and all else after: what is there beside it takes registers, 76 of a thread
        # instead of 48.
        if ntl.max(ntl.cast(ntl.abs(value), ntl.int32, bitcast=True)) > 1199570944:
            far = ntl.sin(value)
            size = ntl.abs(value)
            shifted = ntl.fma(size, 0.3183098861837907, 12582912.0)
            sign = ntl.cast(value, ntl.int32, bitcast=True)
            result = functions.sine(size, shifted, shifted - 12582912.0, sign)
            result = ntl.where(size > 65536.0, far, result)
        else:
            size = ntl.abs(value)
            # Adding 1.5 * 2^23 rounds to a whole number, which is in the last bits.
            shifted = ntl.fma(size, 0.3183098861837907, 12582912.0)
            sign = ntl.cast(value, ntl.int32, bitcast=True)
            result = functions.sine(size, shifted, shifted - 12582912.0, sign)

    output = ntl.cast(result, output.dtype)


def premake(ndim, dtype=None, output_dtype=None, compute_dtype=None, block_size=None):
    """Arrangement, application and tensors of ``sin``."""
    output_dtype = output_dtype or constants.floating(dtype)
    compute_dtype = compute_dtype or constants.accumulated(output_dtype)
    tensors = element_wise.tensors(ndim, "input", dtype=dtype, output_dtype=output_dtype)
    arrangement = functools.partial(element_wise.arrangement, block_size=block_size)

    return arrangement, *constants.bind(application, tensors, compute_dtype=compute_dtype)
