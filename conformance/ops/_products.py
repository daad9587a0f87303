"""What matrix products share: exact sums of products, what bounds them, and the calls to try."""

from __future__ import annotations

import dataclasses

import numpy as np
import torch
from hypothesis import strategies as st

from conformance import bounds, oracle
from conformance.ops import _sizes
from strategies import shapes


@dataclasses.dataclass(frozen=True)
class Product:
    """(M, K) @ (K, N) as the oracle sees it; float64 arrays of shape (M, N)."""

    value: np.ndarray
    low: np.ndarray | None
    """What ``value`` lacks, where the operands are float64."""
    magnitude: np.ndarray
    """sum |terms|, of the finite terms; subnormal factors of half types as ``bounds.aligned`` counts them."""
    spread: np.ndarray
    """sqrt(sum terms^2), of the finite terms; read for TF32 only, so 0 for other dtypes."""
    judged: np.ndarray
    """False where the finite terms could leave the compute dtype's range."""


def product(a: np.ndarray, b: np.ndarray, dtype: torch.dtype) -> Product:
    """The product of float64 arrays that hold elements of ``dtype``."""
    low = None
    with np.errstate(all="ignore"):
        finite_a, finite_b = _finite(a), _finite(b)
        if dtype == torch.float64:
            value, low = oracle.matmul(finite_a, finite_b)
            # Doubled, so that an overflow of the sum of magnitudes shows.
            magnitude = np.abs(finite_a) @ np.abs(finite_b)
            judged = np.isfinite(2 * magnitude)
        else:
            value = finite_a @ finite_b
            magnitude = bounds.aligned(finite_a, dtype) @ bounds.aligned(finite_b, dtype)
            judged = oracle.in_range(magnitude, dtype)
        spread = np.sqrt(finite_a**2 @ finite_b**2) if bounds.uses_tf32(dtype) else np.zeros_like(value)
        if finite_a is not a or finite_b is not b:
            special = _specials(a, b)
            value = np.where(np.isfinite(special), value, special)
    return Product(value, low, magnitude, spread, judged)


def _finite(a: np.ndarray) -> np.ndarray:
    finite = np.isfinite(a)
    return a if finite.all() else np.where(finite, a, 0.0)


def _specials(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """NaN or an infinity where the product is, else 0: matrix libraries are not asked how they add infinities."""
    nan_rows = np.isnan(a).any(axis=1, keepdims=True)
    nan_columns = np.isnan(b).any(axis=0, keepdims=True)
    inf_a, inf_b = np.isinf(a), np.isinf(b)
    positive = _any(inf_a & (a > 0), b > 0) | _any(inf_a & (a < 0), b < 0)
    positive |= _any(a > 0, inf_b & (b > 0)) | _any(a < 0, inf_b & (b < 0))
    negative = _any(inf_a & (a > 0), b < 0) | _any(inf_a & (a < 0), b > 0)
    negative |= _any(a > 0, inf_b & (b < 0)) | _any(a < 0, inf_b & (b > 0))
    undefined = nan_rows | nan_columns
    undefined |= _any(inf_a, b == 0) | _any(a == 0, inf_b) | (positive & negative)
    return np.where(undefined, np.nan, np.where(positive, np.inf, np.where(negative, -np.inf, 0.0)))


def _any(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Whether any term has both."""
    return np.greater(a.astype(np.float32) @ b.astype(np.float32), 0)


@st.composite
def sizes(draw: st.DrawFn, float64: bool) -> tuple[int, int, int]:
    """(M, K, N): mostly any; now and then one dim or all of them over several blocks, a long K, or a size of 0."""
    work = _sizes.FLOAT64_WORK if float64 else _sizes.PRODUCT_WORK
    small = shapes.sizes(1, 40)
    match draw(st.sampled_from(("any", "any", "any", "any", "wide", "wide", "blocks", "long", "empty"))):
        case "any":
            return draw(shapes.products(min_size=1, max_size=_sizes.PRODUCT_DIM, work=work))
        case "wide":
            found = [draw(small) for _ in range(3)]
            found[draw(st.integers(0, 2))] = draw(st.sampled_from(_sizes.PRODUCT_WIDE))
        case "blocks":
            several = st.sampled_from(_sizes.PRODUCT_BLOCKS_FLOAT64 if float64 else _sizes.PRODUCT_BLOCKS)
            found = [draw(several) for _ in range(3)]
        case "long":
            found = [draw(shapes.sizes(1, 20)), draw(st.sampled_from(_sizes.PRODUCT_TERMS)), draw(shapes.sizes(1, 20))]
        case "empty":
            found = [draw(shapes.sizes(0, 40)) for _ in range(3)]
            found[draw(st.integers(0, 2))] = 0
    return found[0], found[1], found[2]
