"""Elementary functions whose bits depend on their operands only, not on the place in an array, strides or the CPU.

NumPy chooses its loops by the CPU, by strides and by the remainder at the end of an array, and the loops differ in the
last bit: exp of float64 in one element of twenty, np.fmax in which of two zeros it returns.
"""

import numpy as np

# The error of a function in the wider format is so small that all of NumPy's loops round to one number in the narrower
# format, except for ties that are nearer. x86 computes the widest format without vectors, and so the same everywhere.
_WIDER = {np.dtype(np.float16): np.float64, np.dtype(np.float32): np.float64, np.dtype(np.float64): np.longdouble}


def rounded_once(function, widest=np.longdouble):
    """Compute ``function`` of float arrays in a wider format, up to ``widest``, and round to the format of the
    first."""

    def call(*arrays):
        dtype = arrays[0].dtype
        wider = widest if dtype == np.float64 else _WIDER[dtype]
        # NumPy's pow has shortcuts for an exponent of stride 0, which round differently.
        operands = [np.array(array, dtype=wider, order="C") for array in np.broadcast_arrays(*arrays)]
        result = function(*operands).astype(dtype)

        if wider is np.longdouble:
            # The C library's widest functions are wrong for some infinities (glibc: powl(-inf, -2^63) is inf), and for
            # infinities float64 needs no wider format.
            finite = np.logical_and.reduce([np.isfinite(operand) for operand in operands])

            if not finite.all():
                result = np.where(finite, result, function(*(operand.astype(dtype) for operand in operands)))

        return result

    return call


def _flushed(array):
    return np.where(np.abs(array) < np.float32(2.0**-126), np.copysign(np.float32(0), array), array)


def flushing(function, operands=False, results=False):
    """Take subnormal operands of float32, or results, for zeros: as a function does that is compiled for NVIDIA GPUs.

    Which do so was read from an H100 with Triton 3.6: the approximate instructions, and those of libdevice's functions
    that ask whether to flush, which Triton tells to.
    """

    def call(*arrays):
        if arrays[0].dtype != np.float32:
            return function(*arrays)

        result = function(*(map(_flushed, arrays) if operands else arrays))

        return _flushed(result) if results else result

    return call


_exp2, _exp = rounded_once(np.exp2), rounded_once(np.exp)
exp2 = flushing(_exp2, results=True)
sin = flushing(rounded_once(np.sin), operands=True)
sqrt = flushing(np.sqrt, operands=True)
rsqrt = flushing(lambda x: 1 / np.sqrt(x), operands=True)


def exp(array):
    """Compute Triton's exp: of float32 2 to the power of the rounded product with log2(e), as Triton 3.6 to 3.9 lower
    it for NVIDIA GPUs, which is tens of ulps off far below 0."""
    return _exp2(array * np.float32(1.4426950408889634)) if array.dtype == np.float32 else _exp(array)


def _of_two(function, zero):
    def call(a, b):
        data = function(a, b)

        if data.dtype.kind == "f" and not data.all():
            data = np.where((a == 0) & (b == 0), zero(a, b), data)

        return data

    return call


def _of_many(function, negative):
    def call(array, axis):
        data = function.reduce(array, axis=axis)

        if data.dtype.kind == "f" and not data.all():
            preferred = ((array == 0) & (np.signbit(array) == negative)).any(axis=axis)
            zeros = np.where(preferred == negative, data.dtype.type(-0.0), data.dtype.type(0))
            data = np.where(data == 0, zeros, data)

        return data

    return call


def _less(a, b):
    return -(-a - b)


# +0 is greater than -0, as compiled (PTX ISA, max and min).
maximum, maxnum = (_of_two(function, np.add) for function in (np.maximum, np.fmax))
minimum, minnum = (_of_two(function, _less) for function in (np.minimum, np.fmin))
# Along an axis, these drop a NaN.
largest, smallest = _of_many(np.fmax, negative=False), _of_many(np.fmin, negative=True)
