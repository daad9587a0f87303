"""The bits of numbers in the formats of the dtypes."""

from __future__ import annotations

import numpy as np

from strategies.dtypes import Format

Bits = np.ndarray  # unsigned, of the element's width


def encode(values: np.ndarray, form: Format) -> Bits:
    """The bits of float64 ``values`` in a float format, rounded to nearest even.

    Beyond the largest finite value that is infinity, as IEEE 754 rounds, or NaN where the format has none (torch's
    own casts to float8_e4m3fn saturate in some versions). NaN keeps its sign and becomes quiet. torch rounds a
    float64 to float32 on the way to the narrow types, so it is off where that makes a tie of what was none.
    """
    if form.bits == 64:
        return values.view(np.uint64)
    if form.bits == 32:
        with np.errstate(over="ignore"):
            return values.astype(np.float32).view(np.uint32)
    wide = values.view(np.uint64)
    sign = (wide >> np.uint64(64 - form.bits)).astype(form.carrier) & form.carrier.type(form.sign_bit)
    wide = wide & np.uint64(2**63 - 1)
    # Normal numbers: add just under half of the last kept bit (and one more if that bit is odd), cut, rebias.
    # A carry out of the mantissa moves to the next exponent by itself.
    cut = np.uint64(52 - form.mantissa)
    odd = (wide >> cut) & np.uint64(1)
    rounded = (wide + (odd + np.uint64(2 ** (51 - form.mantissa) - 1))) >> cut
    rebias = (1023 - form.bias) << form.mantissa
    smallest_normal = np.uint64((1024 - form.bias) << 52)
    # Below, the format is fixed point: whole multiples of the smallest subnormal.
    small = wide < smallest_normal
    bits = np.minimum(np.maximum(rounded, np.uint64(rebias)) - np.uint64(rebias), np.uint64(form.inf_bits))
    if small.any():
        magnitude = wide[small].view(np.float64)
        bits[small] = np.rint(np.ldexp(magnitude, form.bias - 1 + form.mantissa)).astype(np.uint64)
    bits[wide > np.uint64(0x7FF << 52)] = np.uint64(form.nan_bits)
    return bits.astype(form.carrier) | sign
