"""Compute the right answer: in float64 from the exact inputs, and in double-double or mpmath for float64 operands.

A double-double is an unevaluated sum of two float64, high = the nearest float64 to the sum, good for about 106 bits.
The error-free transforms are Dekker's and Knuth's (T. J. Dekker, A floating-point technique for extending the
available precision, Numer. Math. 18, 1971; D. E. Knuth, The Art of Computer Programming 2, 4.2.2).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import mpmath
import numpy as np
import torch

from conformance.float_formats import FORMATS, compute_dtype

Double = tuple[np.ndarray, np.ndarray]
"""High and low part of a double-double array."""

_SPLITTER = 2.0**27 + 1
_CHUNK = 1 << 18
"""The products that ``matmul`` holds at once: few enough for a processor's cache."""


# --- exact inputs ------------------------------------------------------------------------------------------------


def operand(value: torch.Tensor | bool | int | float, dtype: torch.dtype) -> np.ndarray:
    """Return the float64 values that enter an operation whose common dtype is ``dtype``.

    As torch on CUDA does it: tensors, 0-d ones too, are converted to ``dtype``; a Python scalar is converted to the
    compute dtype, which has more bits than a half ``dtype``.
    """
    if isinstance(value, torch.Tensor):
        return value.detach().cpu().to(dtype).double().numpy()
    return torch.tensor(value, dtype=torch.float64).to(compute_dtype(dtype)).double().numpy()


def exact_scalar(value: torch.Tensor | bool | int | float, dtype: torch.dtype) -> bool:
    """Tell whether ``value`` as ``operand`` gives it fits in ``dtype`` itself."""
    if isinstance(value, torch.Tensor):
        return True
    wide = torch.tensor(float(value), dtype=torch.float64).to(compute_dtype(dtype))
    return bool(wide.to(dtype).to(wide.dtype) == wide) or math.isnan(value)


def in_range(value: np.ndarray, dtype: torch.dtype) -> np.ndarray:
    """Return False where a finite ``value`` is beyond the largest number of ``dtype``'s compute dtype."""
    return ~(np.isfinite(value) & (np.abs(value) > FORMATS[compute_dtype(dtype)].max))


# --- double-double -----------------------------------------------------------------------------------------------


def two_sum(a: np.ndarray, b: np.ndarray) -> Double:
    """Return a + b exactly, as its rounding and the rest; the rest is 0 where the sum is not finite."""
    high = a + b
    # The larger one first (Dekker): no step overflows where the sum itself does not.
    ordered = np.abs(a) >= np.abs(b)
    large, small = np.where(ordered, a, b), np.where(ordered, b, a)
    low = small - (high - large)
    return high, np.where(np.isfinite(high), low, 0.0)


def _split(a: np.ndarray) -> Double:
    big = _SPLITTER * a
    high = big - (big - a)
    return high, a - high


def two_product(a: np.ndarray, b: np.ndarray) -> Double:
    """Return a * b exactly, for magnitudes between 2^-400 and 2^400 (and zero)."""
    high = a * b
    ah, al = _split(a)
    bh, bl = _split(b)
    return high, ((ah * bh - high) + ah * bl + al * bh) + al * bl


def _scale(high: np.ndarray, low: np.ndarray, exponent: np.ndarray) -> Double:
    """Return (high + low) 2^exponent rounded correctly, subnormal results and overflow included, and the rest of it."""
    value = np.ldexp(high, exponent)
    steps = np.ldexp(high, exponent + 1074)
    subnormal = np.abs(steps) < 2.0**52
    if subnormal.any():
        # high was rounded to 53 bits already; rounding it again goes wrong exactly at ties.
        nearest = np.rint(steps)
        tied = np.abs(steps - nearest) == 0.5
        nearest = np.where(tied & (low < 0), np.floor(steps), np.where(tied & (low > 0), np.ceil(steps), nearest))
        value = np.where(subnormal, np.copysign(np.ldexp(nearest, -1074), high), value)
    rest = np.where(subnormal | ~np.isfinite(value), 0.0, np.ldexp(low, exponent))
    return value, rest


def multiply(a: np.ndarray, b: np.ndarray) -> Double:
    """Return a * b of float64 arrays, correctly rounded, and the rest; infinities and NaN as IEEE 754 has them."""
    with np.errstate(all="ignore"):
        ma, ea = np.frexp(a)
        mb, eb = np.frexp(b)
        value, rest = _scale(*two_product(ma, mb), ea + eb)
        plain = ~(np.isfinite(a) & np.isfinite(b))
        return np.where(plain, a * b, value), np.where(plain, 0.0, rest)


def divide(a: np.ndarray, b: np.ndarray) -> Double:
    """Return a / b of float64 arrays, correctly rounded, and the rest; zeros, infinities and NaN as IEEE 754 has
    them."""
    with np.errstate(all="ignore"):
        ma, ea = np.frexp(a)
        mb, eb = np.frexp(b)
        quotient = ma / mb
        product, error = two_product(quotient, mb)
        value, rest = _scale(quotient, ((ma - product) - error) / mb, ea - eb)
        plain = ~(np.isfinite(a) & np.isfinite(b)) | (b == 0)
        return np.where(plain, a / b, value), np.where(plain, 0.0, rest)


def add_product(a: np.ndarray, alpha: np.ndarray, b: np.ndarray) -> tuple[Double, np.ndarray]:
    """Return a + alpha * b of float64 arrays, rounded, and the rest; beside it the product alpha * b, rounded."""
    with np.errstate(all="ignore"):
        product, product_rest = multiply(alpha, b)
        high, low = two_sum(a, product)
        low = low + product_rest
        value, rest = two_sum(high, low)
        # -0 has no rest, and -0 + 0 would be 0.
        return (np.where(low == 0, high, value), rest), product


def matmul(a: np.ndarray, b: np.ndarray) -> Double:
    """Return (M, K) @ (K, N) of float64 arrays of finite numbers in double-double; about 10 Mi products a second.

    Rows of ``a`` and columns of ``b`` are scaled to a largest element near 2^300, so that products neither overflow
    nor, down to 2^-1250 of the largest, underflow. Elements of the result that lie lower are left to mpmath.
    """
    rows, terms = a.shape
    columns = b.shape[1]
    if not (rows and columns and terms):
        return np.zeros((rows, columns)), np.zeros((rows, columns))
    ea = np.frexp(np.abs(a).max(axis=1, keepdims=True))[1] - 300
    eb = np.frexp(np.abs(b).max(axis=0, keepdims=True))[1] - 300
    with np.errstate(all="ignore"):
        scaled_a, scaled_b = np.ldexp(a, -ea), np.ldexp(b, -eb)
        high, low = np.empty((rows, columns)), np.empty((rows, columns))
        step = max(1, _CHUNK // (terms * columns))
        for first in range(0, rows, step):
            part = slice(first, first + step)
            # Terms lie along the first axis, so that halving it keeps memory contiguous.
            high[part], low[part] = _sum(*two_product(scaled_a[part].T[:, :, None], scaled_b[:, None, :]))
        faint = np.abs(scaled_a) @ np.abs(scaled_b) < 2.0**-650
        high, low = _scale(high, low, ea + eb)
    for row, column in np.argwhere(faint):
        high[row, column], low[row, column] = _dot(a[row], b[:, column])
    return high, low


def _dot(a: np.ndarray, b: np.ndarray) -> tuple[float, float]:
    pairs = [(mpmath.mpf(x), mpmath.mpf(y)) for x, y in zip(a.tolist(), b.tolist(), strict=True) if x and y]
    with mpmath.workprec(PRECISION):
        return to_double(mpmath.fdot(pairs)) if pairs else (0.0, 0.0)


def _sum(high: np.ndarray, low: np.ndarray) -> Double:
    """Sum over the first axis in double-double, by halves."""
    while len(high) > 1:
        half = len(high) // 2
        total, rest = two_sum(high[:half], high[half : 2 * half])
        rest += low[:half] + low[half : 2 * half]
        if len(high) % 2:
            total, rest = np.concatenate([total, high[-1:]]), np.concatenate([rest, low[-1:]])
        high, low = total, rest
    return two_sum(high[0], low[0])


def cumulate(terms: np.ndarray) -> Double:
    """Return the cumulative sums of finite float64 numbers along the last axis, in double-double."""
    high, low, step = terms, np.zeros(terms.shape), 1
    # Each sum takes in the one ``step`` places before it, which has as many terms (W. D. Hillis and G. L. Steele, Data
    # parallel algorithms, CACM 29(12), 1986).
    while step < terms.shape[-1]:
        total, rest = two_sum(high[..., step:], high[..., :-step])
        rest = rest + (low[..., step:] + low[..., :-step])
        high, low = (np.concatenate([old[..., :step], new], -1) for old, new in ((high, total), (low, rest)))
        step *= 2
    return two_sum(high, low)


# --- mpmath ------------------------------------------------------------------------------------------------------

PRECISION = 120
"""Bits of an mpmath evaluation: two float64 hold 106."""


def to_double(value: mpmath.mpf) -> tuple[float, float]:
    """Return the nearest float64 to an mpmath number, and the rest; the rest is 0 where the first is not finite."""
    if isinstance(value, mpmath.mpc):
        # The root of a negative number, say.
        return math.nan, 0.0
    high = float(value)
    return (high, float(value - high)) if math.isfinite(high) else (high, 0.0)


def by_mpmath(function: Callable[..., list[mpmath.mpf]], *rows: np.ndarray) -> Double:
    """Apply ``function``, which takes lists of mpmath numbers, to each row (last axis) of ``rows``, all of one shape.

    About 10 us an element: keep float64 cases small.
    """
    shape = rows[0].shape
    high, low = np.empty(shape), np.empty(shape)
    with mpmath.workprec(PRECISION):
        for index in np.ndindex(shape[:-1]):
            numbers = [[mpmath.mpf(float(x)) for x in array[index]] for array in rows]
            for place, value in enumerate(function(*numbers)):
                high[*index, place], low[*index, place] = to_double(value)
    return high, low


def refine(value: np.ndarray, function: Callable[..., mpmath.mpf], *operands: np.ndarray) -> Double:
    """Refine an elementwise ``value`` of float64 operands by mpmath where all of them are finite and not zero and it is
    not NaN; elsewhere, where signs of zeros and infinities are at stake, as it is."""
    operands = tuple(np.broadcast_arrays(*operands))
    plain = ~np.isnan(value)
    for operand_ in operands:
        plain &= np.isfinite(operand_) & (operand_ != 0)
    high, low = np.array(value), np.zeros(value.shape)
    if plain.any():
        rows = (operand_[plain] for operand_ in operands)
        high[plain], low[plain] = by_mpmath(lambda *row: [function(*x) for x in zip(*row, strict=True)], *rows)
    return high, low
