"""Arithmetic that NumPy lacks: bfloat16 and fp8 formats, fma with one rounding, the high half of a product.

bfloat16 values are held as float32 arrays that are always exactly representable in bfloat16; fp8 values are held as
their bytes and decoded where something is computed.
"""

import functools

import numpy as np
import torch

_FP8 = {
    "fp8e5": torch.float8_e5m2,
    "fp8e4nv": torch.float8_e4m3fn,
    "fp8e5b16": torch.float8_e5m2fnuz,
    "fp8e4b8": torch.float8_e4m3fnuz,
}
# The values to which casts saturate on an NVIDIA GPU (PTX's cvt.rn.satfinite), where torch's casts give NaN or
# infinity.
_FP8_SATURATED = {"fp8e5": 57344.0, "fp8e4nv": 448.0}


def bfloat16_from_bits(bits):
    """Return the values of uint16 ``bits`` as float32, NaN payloads included."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def bits_from_bfloat16(values):
    """Return the uint16 bits of float32 ``values`` that are already representable in bfloat16."""
    return (np.ascontiguousarray(values).view(np.uint32) >> np.uint32(16)).astype(np.uint16)


def round_to_bfloat16(values, toward_zero=False):
    """Round ``values`` to the nearest bfloat16, ties to even, still held as float32."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)

    if toward_zero:
        rounded = bits & np.uint32(0xFFFF0000)
    else:
        rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) & np.uint32(0xFFFF0000)

    is_nan = np.isnan(values)

    if is_nan.any():
        # A carry must not turn NaN into infinity, and a payload in the lower half must not be lost.
        rounded = np.where(is_nan, (bits & np.uint32(0xFFFF0000)) | np.uint32(0x00400000), rounded)

    return rounded.view(np.float32)


@functools.cache
def _fp8_values(name):
    return torch.arange(256, dtype=torch.uint8).view(_fp8_format(name)).float().numpy()


def _fp8_format(name):
    if name not in _FP8:
        raise NotImplementedError(f"the interpreter has no {name}; it has {', '.join(_FP8)}")

    return _FP8[name]


def float32_from_fp8(data, name):
    """Return the float32 values of fp8 bytes ``data`` in Triton's format ``name``."""
    _fp8_format(name)

    return _fp8_values(name)[data]


def fp8_from_float(values, name, toward_zero=False):
    """Return the bytes of ``values`` rounded to fp8 ``name``: to nearest even, saturating as an NVIDIA GPU does."""
    if toward_zero:
        raise NotImplementedError("the interpreter rounds to fp8 to nearest even only")

    format = _fp8_format(name)
    limit = _FP8_SATURATED.get(name)

    if limit is not None:
        values = np.clip(values, -limit, limit)

    return torch.from_numpy(np.ascontiguousarray(values, dtype=np.float32)).to(format).view(torch.uint8).numpy()


def round_toward_zero_to_float16(values):
    """Convert float32 ``values`` to float16, rounding toward zero."""
    nearest = values.astype(np.float16)
    beyond = np.abs(nearest.astype(np.float64)) > np.abs(values.astype(np.float64))

    return np.where(beyond, np.nextafter(nearest, np.float16(0)), nearest)


def fma(x, y, z):
    """Compute ``x * y + z`` with one rounding.

    float16 and float32 go through float64, where the product is exact and the sum is rounded to odd, so that the
    second rounding cannot be off (Boldo and Melquiond, 2008). float64 uses an error-free product and sum (Dekker,
    Knuth), whose error is far below half an ulp.
    """
    if z.dtype != np.float64:
        wide_product = x.astype(np.float64) * y.astype(np.float64)
        total, error = _two_sum(wide_product, z.astype(np.float64))
        inexact = np.isfinite(total) & (error != 0)

        if inexact.any():
            even = (np.ascontiguousarray(total).view(np.int64) & 1) == 0
            odd = np.nextafter(total, np.where(error > 0, np.inf, -np.inf))
            total = np.where(inexact & even, odd, total)

        return total.astype(z.dtype)

    product = x * y
    splitter = 134217729.0  # 2^27 + 1
    x_high = splitter * x - (splitter * x - x)
    y_high = splitter * y - (splitter * y - y)
    x_low = x - x_high
    y_low = y - y_high
    product_error = ((x_high * y_high - product) + x_high * y_low + x_low * y_high) + x_low * y_low
    total, error = _two_sum(product, z)
    correction = error + product_error
    # -0 + 0 is 0.
    exact = np.where(correction == 0, total, total + correction)
    # Splitting overflows near the limits, and the error of a tiny product is no float64: there the plain sum is used,
    # which of subnormal numbers is exact.
    known = np.isfinite(product_error) & np.isfinite(exact) & (np.abs(product) >= 2.0**-960)
    return np.where(known, exact, product + z)


def _two_sum(a, b):
    total = a + b
    part = total - a

    return total, (a - (total - part)) + (b - part)


def multiply_high(a, b):
    """Return the high half of the unsigned product of two integer arrays of one width."""
    unsigned = np.dtype(f"uint{a.dtype.itemsize * 8}")
    x, y = a.view(unsigned), b.view(unsigned)
    bits = unsigned.itemsize * 8

    if bits < 64:
        wide = np.dtype(f"uint{bits * 2}")

        return ((x.astype(wide) * y.astype(wide)) >> wide.type(bits)).astype(unsigned).view(a.dtype)

    half, low = np.uint64(32), np.uint64(0xFFFFFFFF)
    x_high, x_low, y_high, y_low = x >> half, x & low, y >> half, y & low
    middle = x_high * y_low + ((x_low * y_low) >> half)
    other = x_low * y_high + (middle & low)

    return (x_high * y_high + (middle >> half) + (other >> half)).view(a.dtype)


def float_to_integer(values, dtype):
    """Convert ``values`` to NumPy integer ``dtype`` toward zero, as a GPU does: saturating, NaN to 0.

    Types below 32 bits take the low bits of the 32-bit result, as compiled code does.
    """
    wide = dtype if dtype.itemsize >= 4 else np.dtype(f"{dtype.kind}4")
    limits = np.iinfo(wide.type)
    truncated = np.trunc(values.astype(np.float64) if values.dtype.itemsize < 8 else values)
    # float64(2^63 - 1) is 2^63, hence >= and not >.
    above = truncated >= float(limits.max) + (0 if wide.itemsize == 8 else 1)
    below = truncated < float(limits.min)
    odd = above | below | np.isnan(truncated)

    if not odd.any():
        return truncated.astype(wide).astype(dtype)

    converted = np.where(odd, 0, truncated).astype(wide)
    converted = np.where(above, limits.max, converted)

    return np.where(below, limits.min, converted).astype(dtype)
