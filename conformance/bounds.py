"""Bounds of the distance from the oracle: every constant of the bounds table, once, and the formulas that use it.
Those of sums and products are in ``product_bounds``.

A bound is what is added to half an ulp of the output dtype (``compare.compare`` adds that half itself). It is
derived from the roundings that a straightforward implementation makes, evaluated from the data, and holds torch
itself on CPU and CUDA; a constant changes only with a measurement of torch written beside it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import numpy as np
import torch

from conformance.float_formats import FORMATS, Format, compute_dtype, rounding, ulp
from conformance.product_bounds import EQUAL_DRIFT, PRODUCT_DRIFT, TF32_BIAS, TF32_WALK, uses_tf32

# --- elementwise -------------------------------------------------------------------------------------------------

# add, sub: u |alpha other|, the rounding of the product; the sum's own is the half ulp. Torch: 0 of it on random
# data with alpha 1; up to the whole of it with other alphas on the CPU, which rounds the product.
ADD = 1.0
# mul, div: correctly rounded. Torch: 0.
MUL = DIV = 0.0


def add(value: np.ndarray, product: np.ndarray, dtype: torch.dtype, *, exact: bool, wide: bool) -> np.ndarray | float:
    """Bound ``value = input + product`` with ``product = alpha * other``; ``exact``: alpha is 1 or -1, so the product
    is too.

    Where the result is a half type, the float32 sum is rounded once more. That is harmless for the sum of two numbers
    of that type, but not for an inexact product or an operand with more bits (``wide``), and is then counted.
    """
    compute = compute_dtype(dtype)
    bound = 0.0 if exact else ADD * rounding(product, compute)
    return bound if compute == dtype or (exact and not wide) else bound + rounding(value, compute)


def mul(value: np.ndarray, dtype: torch.dtype, *, wide: bool) -> np.ndarray | float:
    """Bound a product; ``wide`` as for ``div``: the product of two numbers of a half type is exact in float32."""
    return rounding(value, compute_dtype(dtype)) if wide and compute_dtype(dtype) != dtype else MUL


def div(value: np.ndarray, dtype: torch.dtype, *, wide: bool) -> np.ndarray | float:
    """Bound a true quotient. ``wide``: an operand has more bits than ``dtype`` (a scalar at float32 with a half
    tensor), so that the rounding to float32 before the one to the half type is not harmless; otherwise 24 >= 2 * 11 + 2
    bits are enough for a quotient (S. A. Figueroa, When is double rounding innocuous?, SIGNUM 1995)."""
    return rounding(value, compute_dtype(dtype)) if wide and compute_dtype(dtype) != dtype else DIV


def trunc(value: np.ndarray, quotient: np.ndarray, dtype: torch.dtype) -> np.ndarray:
    """Bound a truncated quotient. The quotient may be rounded to the compute dtype first, and on CUDA torch rounds that
    of half types to the half type: where this reaches the next whole number, that is allowed too."""
    torch_quotient = torch.from_numpy(np.array(quotient)).to(dtype).double().numpy()
    difference = np.abs(np.trunc(torch_quotient) - value)
    return np.where(np.isfinite(difference) & (np.abs(value) < 2.0 ** FORMATS[dtype].precision), difference, 0.0)


def floor(value: np.ndarray, dtype: torch.dtype) -> np.ndarray:
    """Bound a floored quotient: exact under 2^(p-2), p the precision of ``dtype``. Beyond, an ulp or the next whole
    number: (a - mod) / b makes two roundings, whose errors only then reach half of a whole number. Torch's CPU: all of
    it."""
    large = np.isfinite(value) & (np.abs(value) >= 2.0 ** (FORMATS[dtype].precision - 2))
    return np.where(large, np.maximum(ulp(value, dtype), 1.0), 0.0)


# exp, sin, cos, rsqrt: 2 ulp. Torch: 1.8, 1.4, 0.6, 1.5. tanh: 3 ulp. Torch: 1.8.
ULPS = {"exp": 2.0, "sin": 2.0, "cos": 2.0, "rsqrt": 2.0, "tanh": 3.0}
# sigmoid, silu: 4 ulp and the smallest normal number (silu: times |x|), since 1 / (1 + exp(-x)) underflows to zero
# where exp(-x) overflows. Torch: 3.0.
SIGMOID = 4.0
# pow: 4 + |y ln x| ulp, the rounding of the logarithm being multiplied with y. Torch: 12.5 at x^2.7.
POW = 4.0
# gelu: 8 u |x|, and 4 u |x| with approximate="tanh". Torch: 5.9, 1.8.
GELU = {"none": 8.0, "tanh": 4.0}


def ulps(count: float | str, value: np.ndarray, dtype: torch.dtype) -> np.ndarray:
    """Return the bound of so many ulps of the compute dtype, or of as many as an op of ``ULPS`` has."""
    return (ULPS[count] if isinstance(count, str) else count) * ulp(value, compute_dtype(dtype))


def sigmoid(value: np.ndarray, dtype: torch.dtype, factor: np.ndarray | float = 1.0) -> np.ndarray:
    """Bound ``value = factor * sigmoid(x)``: ``factor`` is 1 for sigmoid and x for silu."""
    compute = compute_dtype(dtype)
    smallest = math.ldexp(1.0, FORMATS[compute].least)
    return SIGMOID * ulp(value, compute) + smallest * np.where(np.isfinite(factor), np.abs(factor), 0.0)


def pow(value: np.ndarray, base: np.ndarray, exponent: np.ndarray, dtype: torch.dtype) -> np.ndarray:
    """Bound ``value = base ** exponent``."""
    logarithm = np.abs(exponent * np.log(np.abs(base)))
    return (POW + np.where(np.isfinite(logarithm), logarithm, 0.0)) * ulp(value, compute_dtype(dtype))


def gelu(x: np.ndarray, approximate: str, dtype: torch.dtype) -> np.ndarray:
    """Bound gelu: ``x`` times a sum of 1 and a number from -1 to 1, whose absolute error is a few u; at least a step of
    the subnormals, half of which ``x / 2`` loses."""
    form = FORMATS[compute_dtype(dtype)]
    return np.maximum(GELU[approximate] * form.unit * np.where(np.isfinite(x), np.abs(x), 0.0), form.subnormal)


# --- softmax -----------------------------------------------------------------------------------------------------

# |r| u (1.5 |x - max| + 2 sqrt(K) + 8): the exponential of a rounded argument, a sum of K terms, a division.
# Torch: 90 % of it without the margins.
SOFTMAX_ARGUMENT, SOFTMAX_SUM, SOFTMAX_REST = 1.5, 2.0, 8.0
# Equal terms are rounded alike while the sum has one exponent: n of one number drift by n / 4 at most (EQUAL_DRIFT),
# and those of several numbers at random, by sqrt(sum n^2) / 2. Torch on the CPU, 16384 whole numbers of 17 values along
# the first dim: 1.65 times what 2 sqrt(K) covers.
REPEATED_DRIFT, REPEATED_TERMS = 1 / 2, 128


def softmax(value: np.ndarray, below: np.ndarray, dtype: torch.dtype) -> np.ndarray:
    """Bound softmax of rows: ``below`` is max - x of each element. An exponential under the smallest normal number of
    the compute dtype is itself off by half a step of the subnormals."""
    form = FORMATS[compute_dtype(dtype)]
    factor = SOFTMAX_ARGUMENT * np.where(value > 0, below, 0.0) + exponentials(below) + SOFTMAX_REST
    return np.abs(value) * form.unit * factor + form.subnormal / 2


def exponentials(below: np.ndarray) -> np.ndarray:
    """Bound the relative error of the sum of exp(-below) over each row, by so many u; of shape (..., 1)."""
    terms = below.shape[-1]
    walk = SOFTMAX_SUM * math.sqrt(terms)
    if terms < REPEATED_TERMS:
        return np.full((*below.shape[:-1], 1), walk)
    rows = np.sort(below.reshape(-1, terms), axis=-1)
    first = np.ones(rows.shape, bool)
    first[:, 1:] = rows[:, 1:] != rows[:, :-1]
    starts = np.flatnonzero(first)
    counts = np.diff(np.append(starts, rows.size)).astype(np.float64)
    # Ones are added without an error, and so is what is left out.
    counts[~((rows.ravel()[starts] > 0) & np.isfinite(rows.ravel()[starts]) & (counts > 1))] = 0.0
    sums, squares = (np.bincount(starts // terms, one, len(rows)) for one in (counts, counts**2))
    drift = np.minimum(EQUAL_DRIFT * sums, REPEATED_DRIFT * np.sqrt(squares))
    return walk + drift.reshape(*below.shape[:-1], 1)


# u (1.5 sum p (max - x) + 2 sqrt(K) + 8 + 2 |log s| + 2 |r|): of a sum s of exponentials relative to the largest
# element, of which p are the shares, the relative error is an absolute one of its logarithm, which is itself off by an
# ulp or two; and the logarithm of each part of a long row is rounded.


def logsumexp(
    value: np.ndarray, below: np.ndarray, logarithm: np.ndarray, summing: np.ndarray, dtype: torch.dtype
) -> np.ndarray:
    """Bound log(sum(exp(x))): ``below`` is the mean of max - x, weighted by the exponentials; ``logarithm`` that of
    their sum relative to the largest one; ``summing`` the result of ``exponentials``."""
    sums = SOFTMAX_ARGUMENT * below + summing + SOFTMAX_REST
    bound = FORMATS[compute_dtype(dtype)].unit * (sums + 2 * np.abs(logarithm) + 2 * np.abs(value))
    return np.where(np.isfinite(value), bound, 0.0)


# The same, and u |max - x|, the rounding of the difference from the largest element.


def log_softmax(
    value: np.ndarray, below: np.ndarray, weighted: np.ndarray, logarithm: np.ndarray, dtype: torch.dtype
) -> np.ndarray:
    """Bound log(softmax(x)): ``below`` is max - x of each element, ``weighted`` its mean over the row, weighted by the
    exponentials, and ``logarithm`` that of the sum of these, both broadcastable."""
    sums = logsumexp(logarithm, weighted, logarithm, exponentials(below), dtype)
    return np.where(np.isfinite(value), sums + FORMATS[compute_dtype(dtype)].unit * below, 0.0)


# The minima of silu, gelu and its approximation by tanh; on either side they are monotonic.
LEAST_ACTIVATED = {"silu": -1.2784645427610738, "gelu": -0.7517915246935645, "gelu_tanh": -0.7524614220710162}


def activated(
    function: Callable[[np.ndarray], np.ndarray],
    activation: str,
    x: np.ndarray,
    value: np.ndarray,
    error: np.ndarray,
    dtype: torch.dtype,
) -> np.ndarray:
    """Bound the error of ``value = function(x)`` for an ``x`` that is off by ``error``.

    It is the range of the function over [x - error, x + error], which the ends and its one minimum give, since it is
    monotonic elsewhere; plus the function's own bound, at its largest there."""
    below, above, least = x - error, x + error, LEAST_ACTIVATED[activation]
    off = np.maximum(np.abs(function(below) - value), np.abs(function(above) - value))
    minimum = np.abs(function(np.array(least)) - value)
    off = np.where((below < least) & (least < above), np.maximum(off, minimum), off)
    largest = np.maximum(np.abs(below), np.abs(above))
    if activation == "silu":
        return off + sigmoid(np.abs(value) + off, dtype, largest)
    return off + gelu(largest, "tanh" if activation == "gelu_tanh" else "none", dtype)


def fused_gated_mlp(
    value: np.ndarray,
    activated: np.ndarray,
    factor: np.ndarray,
    activated_error: np.ndarray,
    factor_error: np.ndarray,
    dtype: torch.dtype,
) -> np.ndarray:
    """Bound ``value = activated * factor`` by the errors of both: (a + e) (f + d) - a f is at most |a| d + e |f| + e d.
    The product is rounded in the compute dtype. Products are not rounded to a half type before they meet, which would
    add 3h |value|: no fused kernel does that."""
    error = (np.abs(activated) + activated_error) * factor_error + activated_error * np.abs(factor)
    return error + rounding(value, compute_dtype(dtype))


# --- norms -------------------------------------------------------------------------------------------------------

# layer_norm: 6u ((|x| + mean|x|) rstd |w| + |b| + |r|). Torch: 3.6 of the 6; 5.1 with a few elements of up to 10^8
# beside normal ones in rows of 2^k (other rows are a deviation of its CPU). rms_norm: 6u |r|. Torch: 2.5 of the 6.
NORM = 6.0


def layer_norm(
    value: np.ndarray, size: np.ndarray, rstd: np.ndarray, weight: np.ndarray, bias: np.ndarray, dtype: torch.dtype
) -> np.ndarray:
    """Bound layer_norm: ``size`` is |x| + mean|x|, since the error of a difference is one of its operands; ``rstd`` 1 /
    sqrt(variance + eps). What underflows on the way, a mean or a normalized element, is off by a step of the
    subnormals, times what it is multiplied with."""
    form = FORMATS[compute_dtype(dtype)]
    error = difference(size, dtype) * rstd * np.abs(weight) + NORM * form.unit * (np.abs(bias) + np.abs(value))
    return error + _underflow(weight, form)


def difference(size: np.ndarray, dtype: torch.dtype) -> np.ndarray:
    """Bound the error of x - mean: the part of ``layer_norm`` before any multiplication."""
    form = FORMATS[compute_dtype(dtype)]
    return NORM * form.unit * size + form.subnormal


def rms_norm(value: np.ndarray, weight: np.ndarray, dtype: torch.dtype) -> np.ndarray:
    """Bound rms_norm: products and a quotient of numbers of one sign, and what underflows before the weight, as for
    layer_norm."""
    form = FORMATS[compute_dtype(dtype)]
    return NORM * form.unit * np.abs(value) + _underflow(weight, form)


def _underflow(weight: np.ndarray, form: Format) -> np.ndarray:
    """Return half a step of the subnormals before the weight, times the weight, and half a step after it; for float64,
    which has no half steps, at least a whole one."""
    return np.maximum(form.subnormal * ((1 + np.abs(weight)) / 2), FORMATS[torch.float64].subnormal)


# --- dropout and rotations ---------------------------------------------------------------------------------------

# Survivors of dropout: 1 ulp, since 1 / (1 - p) is rounded and then multiplied with; 1 more where 1 - p is rounded
# before, as torch's CUDA does it.
DROPOUT = 1.0
# RoPE: 2u (|x0 c| + |x1 s|): a product is rounded, and before it an element of a table of another dtype.
ROPE = 2.0


def dropout(value: np.ndarray, kept: float, dtype: torch.dtype) -> np.ndarray:
    """Bound an element that is kept, input / ``kept``, which is 1 - p."""
    is_rounded = compute_dtype(dtype) == torch.float32 and float(np.float32(kept)) != kept
    return (DROPOUT + is_rounded) * ulp(value, compute_dtype(dtype))


def rope(first: np.ndarray, second: np.ndarray, dtype: torch.dtype) -> np.ndarray:
    """Bound the sum of two products."""
    compute = compute_dtype(dtype)
    return ROPE * (rounding(first, compute) + rounding(second, compute))


def fused_rmsnorm_rope(
    own: np.ndarray,
    other: np.ndarray,
    weights: tuple[np.ndarray, np.ndarray],
    table: tuple[np.ndarray, np.ndarray],
    dtype: torch.dtype,
) -> np.ndarray:
    """Bound the sum of two products ``own = n c`` and ``other = n' s`` of normalized elements, with ``weights`` in
    them.

    It rotates the result of rms_norm, kept in the compute dtype ``dtype``: the bound of each element is multiplied with
    its sine or cosine, and the bound of the rotation is added. So (6u + 2u) (|n c| + |n' s|), and the steps of the
    subnormals. The composition of torch's operators on the CPU: 3.1 of the 8.
    """
    form = FORMATS[dtype]
    errors = (
        # The step is multiplied last: times a sine alone it would underflow.
        NORM * form.unit * np.abs(term) + form.subnormal * (np.abs(factor) * ((1 + np.abs(weight)) / 2))
        for term, weight, factor in zip((own, other), weights, table, strict=True)
    )
    return sum(errors) + rope(own, other, dtype)


# --- attention ---------------------------------------------------------------------------------------------------

# u sum(p |v|) (4 + 2 sqrt(S) + (2 sqrt(E) + 10) max sum|q k| scale): an exponential, a quotient, two sums of S terms,
# and what a score that is off does to its weight and, through the normaliser, to all others. Half types also
# 3h sqrt(sum (p v)^2), since weights may be rounded before the second product; float16 also 2^-25 sum|v|, where they
# underflow; all types 2^-125 sum|v|, as exponentials do that are flushed to zero below the normal numbers, or, on
# torch's CPU, already where their exponent rounds to -126 (1.37 times 2^-126 seen). Torch: 1.9h.
# Scores have 10 more beside the 2 sqrt(E), since where E is small nothing averages: with E = 1 torch rounds each of two
# scores five times (sqrt(scale), its product with the query and with the key, and theirs) and then their difference,
# which may be twice as large: 12. Torch 2.13 on the CPU, two keys whose scores are far apart: 6.5 with E = 1, 4.05 with
# 2, 5.02 with 3 (where 2 sqrt(E) is 3.5), 4.6 with 5, 3.9 with 16.
# Values of one sign drift as in any product, by (S / 8) u |r|: torch 2.13 on an AMD EPYC is off by 0.24 S u |r| where
# up to 155 float32 values are equal (34 for 140 of them, of which 4 + 2 sqrt(S) covers 28); by (S / 4) u |r| from 256
# equal terms on: 0.24 S for 985 of them.
ATTENTION_EQUAL = 256
ATTENTION_REST, ATTENTION_SUM, ATTENTION_SCORE, ATTENTION_SCALE = 4.0, 2.0, 2.0, 10.0
ATTENTION_HALF, ATTENTION_UNDERFLOW = 3.0, 2.0**-25
SCORE_FAR = 2.0
"""Above this error of a score weights change by more than three times the error: exp(x) - 1 > 3 x."""


@dataclasses.dataclass(frozen=True)
class Attended:
    """Sums over the keys that take part, float64: (..., L, Ev), those of scores (..., L, 1); p are the weights."""

    value: np.ndarray
    weighted: np.ndarray
    """sum(p |v|)."""
    spread: np.ndarray
    """sqrt(sum (p v)^2), equal weights of half types being one."""
    total: np.ndarray
    """sum |v|."""
    largest: np.ndarray
    """max of sum|q k| |scale|."""
    masked: np.ndarray
    """sum(p |v| |m|) + sum(p |v|) sum(p |m|), m the mask that is added to scores."""
    walk: np.ndarray
    """max of 2^-10 |score| + 2^-9 sqrt(sum (q k)^2) |scale|; read with TF32 only."""
    equal: np.ndarray | bool = False
    """Tells where the terms p v are equal: ``equal_terms``."""


def _score_steps(dim: int) -> float:
    return ATTENTION_SCORE * math.sqrt(dim) + ATTENTION_SCALE


def score_error(size: np.ndarray, masked: np.ndarray, dim: int, dtype: torch.dtype) -> np.ndarray:
    """Bound the error of a score: ``size`` is sum|q k| |scale|, ``masked`` the size of what is added to it."""
    return FORMATS[compute_dtype(dtype)].unit * (_score_steps(dim) * size + 2 * masked)


def least_exponent(dtype: torch.dtype) -> float:
    """Return the number below which an exponential is zero in the compute dtype."""
    return math.log(FORMATS[compute_dtype(dtype)].subnormal)


def attention(sums: Attended, keys: int, dim: int, dtype: torch.dtype) -> np.ndarray:
    """Bound softmax(q k scale + m) v over ``keys`` keys of ``dim`` elements. Adding the mask rounds the sum, which may
    be larger than the score, once, and once more where scores are kept in units of log 2."""
    form = FORMATS[compute_dtype(dtype)]
    factor = ATTENTION_REST + ATTENTION_SUM * math.sqrt(keys) + _score_steps(dim) * sums.largest
    drift = np.where(sums.equal, EQUAL_DRIFT, PRODUCT_DRIFT) * keys * np.abs(sums.value)
    bound = form.unit * (sums.weighted * factor + 2 * sums.masked + drift) + (keys + 1) * form.subnormal
    bound = bound + math.ldexp(2.0, form.least) * sums.total
    if dtype in (torch.float16, torch.bfloat16):
        bound = bound + ATTENTION_HALF * FORMATS[dtype].unit * sums.spread
    if dtype == torch.float16:
        bound = bound + ATTENTION_UNDERFLOW * sums.total
    if uses_tf32(dtype):
        bound = bound + 2 * sums.weighted * sums.walk + TF32_BIAS * np.abs(sums.value) + TF32_WALK * sums.spread
    return bound
