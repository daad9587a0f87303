"""Compute ``tl.dot`` for the whole grid at once, with the same bits on every machine."""

import numpy as np

_CHUNK = 2**15
"""The number of result elements computed together: their sums and products stay in a core's cache."""


def dot(a, b, accumulator):
    """Compute ``accumulator + a @ b`` over the last two dims; the other dims broadcast.

    Floating-point sums are made in float64, from the accumulator on and in the order of K, and rounded once. So an
    element depends on its row of ``a``, its column of ``b`` and its accumulator alone. BLAS is not used, since its
    order of summation depends on the CPU, on the place in the tile and on the number of threads.
    """
    if accumulator.dtype.kind != "f":
        # Integer sums are exact in any order, and do not use BLAS.
        return np.matmul(a, b, dtype=accumulator.dtype) + accumulator

    result = accumulator.astype(np.float64)
    result += 0.0  # A zero gets the sign of a sum, also without terms.
    m, k, n = _extent(a, b)
    columns = np.moveaxis(a[..., :m, :k], -1, 0)[..., None].astype(np.float64, order="C")
    rows = np.moveaxis(b[..., :k, :n], -2, 0)[..., None, :].astype(np.float64, order="C")
    programs = max(1, _CHUNK // max(1, m * n))

    for start in range(0, len(result), programs):
        part = slice(start, start + programs)
        total = np.ascontiguousarray(result[part, ..., :m, :n])
        product = np.empty_like(total)
        left = columns[:, part] if columns.shape[1] > 1 else columns
        right = rows[:, part] if rows.shape[1] > 1 else rows

        for column, row in zip(left, right, strict=True):
            np.multiply(column, row, out=product)
            total += product

        result[part, ..., :m, :n] = total

    return result.astype(accumulator.dtype)


def _extent(a, b):
    """Return how many rows, terms and columns can differ from zero: a tile that reaches past its tensor ends with
    zeros.

    Infinities and NaN make NaN of zeros, so with these all of them count.
    """
    m, k, n = *a.shape[-2:], b.shape[-1]

    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        return m, k, n

    left, right = (np.any(x != 0, axis=tuple(range(x.ndim - 2))) for x in (a, b))
    terms = min(_last(left.any(axis=0)), _last(right.any(axis=1)))

    return _last(left.any(axis=1)), terms, _last(right.any(axis=0))


def _last(used):
    """Return one more than the last index that is true, or 0."""
    places = np.flatnonzero(used)

    return int(places[-1]) + 1 if len(places) else 0
