"""Bounds of sums and of products of matrices: in IEEE arithmetic, with TF32, and of 8-bit numbers.

What a bound is: see ``bounds``.
"""

from __future__ import annotations

import math

import numpy as np
import torch

from conformance.float_formats import FORMATS, compute_dtype, rounding

# 4 u sqrt(K) sum|terms| + (K / 8) u |r|: rounding errors of a sum of K terms walk at random, those of a sum of one
# sign add up. Torch: 2.1 of the 4 on random data.
PRODUCT_WALK, PRODUCT_DRIFT = 4.0, 1 / 8
# (K / 4) u |r| of equal terms: each is rounded alike while the sum has one exponent, by half an ulp at most, and what
# does not fit the last exponent fits the one before. Torch (cuBLAS on an H200, 2048 x 2048 results): 0.24 K for K =
# 32768 in float64, 0.18 K in float32.
EQUAL_DRIFT, EQUAL_TERMS = 1 / 4, 1024
# K sum terms^2 is at least (sum terms)^2, and at most so many times that where one term in a hundred is 0.
EQUAL_SQUARES = 1.01
# A sum without products: u log2(K) sum|terms| + (K / 8) u |r|. The first bounds pairwise summation (N. J. Higham, The
# accuracy of floating point summation, SIAM J. Sci. Comput. 14, 1993); terms of one sign drift, as those of products
# do. Torch's float32 on the CPU uses of it and half an ulp 0.56 for K = 3, 0.44 for 16, 0.11 for 257, 0.015 for 4096.
# One term after the other: 0.70, or 1.9 if all are equal. At least the lesser of (4 / sqrt(3)) u sqrt(K) |r| and
# (K - 1) u |r|: four standard deviations of K roundings of a sum that one term is nearly all of, for K up to 250. Torch
# adds up the columns of a transposed matrix so, and needed 1.05 times the rest for one of 582 sums of 8 terms.
SUM_WALK = 4 / math.sqrt(3)
# TF32 keeps 11 bits of each operand: 2^-10 |r| + 2^-9 sqrt(sum terms^2), or what these operands lose if the other bits
# are cut off, as Hopper's tensor cores do: where terms are alike, none of that averages. Torch: 1.3 x 2^-10 R.
TF32_BIAS, TF32_WALK, TF32_BITS = 2.0**-10, 2.0**-9, 11


def uses_tf32(dtype: torch.dtype) -> bool:
    """Tell whether torch computes float32 products with TF32 now: any float32 matmul precision but "highest"."""
    return dtype == torch.float32 and torch.get_float32_matmul_precision() != "highest"


def tf32_spread(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return the ``spread`` of a product of float32 matrices: at least so much that the bound holds where both are cut
    off to TF32. With what TF32 loses of subnormal factors: its subnormals are 2^-136 apart, so that up to 2^-136 |b| is
    lost of each term, and of a row of them nothing averages. ntops on an H200 gives 0 for products of 2^-149."""
    lifted = [np.where(x == 0, 0.0, np.maximum(np.abs(x), 2.0**-126)) for x in (a, b)]
    lost = lifted[0] @ lifted[1] - np.abs(a) @ np.abs(b)
    value = a @ b
    alike = (np.abs(value - cut_off(a) @ cut_off(b)) - TF32_BIAS * np.abs(value)) / TF32_WALK
    return np.maximum(np.sqrt(a**2 @ b**2), alike) + TF32_BIAS / TF32_WALK * lost


def cut_off(a: np.ndarray) -> np.ndarray:
    """Return the numbers with the bits that TF32 has."""
    mantissa, exponent = np.frexp(a)
    return np.ldexp(np.trunc(np.ldexp(mantissa, TF32_BITS)), exponent - TF32_BITS)


def aligned(a: np.ndarray, dtype: torch.dtype) -> np.ndarray:
    """Return |a|, where a matrix unit may take subnormal factors of half types for as large as the least normal number.

    It aligns terms by the exponents of their factors before it adds them, and a subnormal number has the exponent of
    the least normal one, so up to 10 of float32's bits are lost. Torch 2.11 on an H200 (cuBLAS): 202 u sqrt(K) sum
    |terms| with one factor 2^-24 throughout and the other of every exponent, float16, K = 17; the same for Triton's
    tl.dot.
    """
    magnitude = np.abs(a)
    if dtype not in (torch.float16, torch.bfloat16):
        return magnitude
    return np.where(magnitude == 0, 0.0, np.maximum(magnitude, torch.finfo(dtype).smallest_normal))


def equal_terms(
    a: np.ndarray, b: np.ndarray, value: np.ndarray, least: int = EQUAL_TERMS, terms: np.ndarray | None = None
) -> np.ndarray:
    """Tell of each sum of products whether its terms are equal but for one in a hundred; by the squares of matrices, so
    never of fewer than ``least``, whose bound has room for that drift.

    :param terms: The number of terms that are not left out; None: all.
    """
    if a.shape[-1] < least:
        return np.zeros((), bool)
    counted = np.asarray(a.shape[-1] if terms is None else terms)
    return (counted >= least) & (counted * (a**2 @ b**2) <= EQUAL_SQUARES * value**2)


# A bound that is infinite judges nothing.
@np.errstate(over="ignore")
def product(
    value: np.ndarray,
    magnitude: np.ndarray,
    spread: np.ndarray,
    terms: int,
    dtype: torch.dtype,
    equal: np.ndarray | bool = False,
) -> np.ndarray:
    """Bound a sum of ``terms`` products: ``magnitude`` is sum |terms|, ``spread`` the result of ``tf32_spread`` (read
    with TF32 only), ``equal`` that of ``equal_terms``.

    Each term that underflows in the compute dtype is off by half a step of its subnormals."""
    form = FORMATS[compute_dtype(dtype)]
    drift = np.where(equal, EQUAL_DRIFT, PRODUCT_DRIFT)
    # Units first, so that what fits the range stays in it.
    bound = form.unit * PRODUCT_WALK * math.sqrt(terms) * magnitude + form.unit * drift * terms * np.abs(value)
    if uses_tf32(dtype):
        bound = bound + TF32_BIAS * np.abs(value) + TF32_WALK * spread
    # float64 has no half steps.
    return bound + np.maximum(terms * form.subnormal / 2, min(terms, 1) * FORMATS[torch.float64].subnormal)


def total(value: np.ndarray, magnitude: np.ndarray, terms: int, dtype: torch.dtype) -> np.ndarray:
    """Bound a sum of ``terms`` terms: ``magnitude`` is sum |terms|. A sum does not underflow."""
    unit = FORMATS[compute_dtype(dtype)].unit
    pairwise = unit * math.log2(max(terms, 1)) * magnitude + unit * PRODUCT_DRIFT * terms * np.abs(value)
    return np.maximum(pairwise, unit * min(max(terms - 1, 0), SUM_WALK * math.sqrt(terms)) * np.abs(value))


# Cumulative sums: 2 u sqrt(k) sum|terms| + (k / 4) u max|sums|, k the additions before an element. The first is for
# roundings that walk at random, over partial sums in any grouping, none of which is larger than sum|terms|. Equal terms
# are rounded alike, and what they have lost stays lost where later terms cancel them: so the largest of the sums so far
# counts. Torch on the CPU adds up one after the other, float32 in float64, and half types in float32. NumPy does it in
# float32 and uses, of this and half an ulp, for 3 to 2^20 terms, 0.33 if they are normal, 0.34 if uniform, and 0.67 if
# all are 0.1; in tiles of 64 with a carry, 0.33, 0.34 and 0.31.
CUMULATIVE_WALK = 2.0


def cumulative(value: np.ndarray, magnitude: np.ndarray, dtype: torch.dtype) -> np.ndarray:
    """Bound cumulative sums along the last dim: ``magnitude`` is sum |terms|. The first one is exact."""
    additions = np.arange(value.shape[-1])
    unit = FORMATS[compute_dtype(dtype)].unit
    largest = np.maximum.accumulate(np.abs(value), axis=-1) if value.size else value
    return unit * CUMULATIVE_WALK * np.sqrt(additions) * magnitude + unit * EQUAL_DRIFT * additions * largest


def addmm(
    value: np.ndarray,
    added: np.ndarray,
    scaled: np.ndarray,
    alpha: float,
    magnitude: np.ndarray,
    spread: np.ndarray,
    terms: int,
    dtype: torch.dtype,
    equal: np.ndarray | bool = False,
) -> np.ndarray:
    """Bound ``value = added + scaled``: ``added`` is beta * input, ``scaled`` alpha times the product, and
    ``magnitude`` and ``spread`` are of the terms with alpha in them; ``equal`` as for ``product``.

    It is the bound of a product of which ``added`` is a term, since a sum may start from it, as torch's does on AMD's
    CPUs; plus u (|added| + |value|): beta * input is rounded, and so is the sum in the compute dtype (where the result
    is of it, the half ulp counts that already). Equal terms that are added to ``added`` one by one are rounded alike,
    by u |added| each. That alpha times the sum of terms is rounded too is within the 4 u sqrt(K) S, of which torch
    needs about half. What underflows before it is scaled grows with alpha."""
    compute = compute_dtype(dtype)
    underflow = max(abs(alpha) - 1, 0) * terms * FORMATS[compute].subnormal / 2
    return (
        product(scaled, magnitude + np.abs(added), spread, terms, dtype, equal)
        + (rounding(added, compute) + rounding(value, compute))
        + np.where(equal, terms * FORMATS[compute].unit * np.abs(added), 0.0)
        + underflow
    )


# fp8_gemm: 2^-10 sum|terms|: an H100's tensor cores keep 14 bits of a sum of fp8 products, which is within that for 128
# of them at a time, added up in float32, and not for all of a long K. Torch's float32 on the CPU: 2^-22 of sum|terms|.
# Where 14 bits cut off more of 128 terms (small terms beside large ones), that is the bound.
FP8_PRODUCT = 2.0**-10


def fp8_product(magnitude: np.ndarray, cut_off: np.ndarray, ties: np.ndarray, terms: int) -> np.ndarray:
    """Bound a product of 8-bit numbers: ``magnitude`` is sum |terms|, ``cut_off`` the most that sums of 128 terms lose
    in 14 bits, ``ties`` the change by elements that lie between two 8-bit numbers. Each 128 terms are scaled, which may
    underflow. After the cut two scales are multiplied, each sum is multiplied with the product, and the sums are added
    up, all in float32."""
    form, blocks = FORMATS[torch.float32], -(-terms // 128)
    underflow = (terms / 128 + 1) * form.subnormal
    return np.maximum(FP8_PRODUCT * magnitude, cut_off + (2 + blocks) * form.unit * magnitude) + ties + underflow
