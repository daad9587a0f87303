"""Round exact numbers to a dtype, to the nearest and ties to even, as one IEEE operation does."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

import numpy as np
import torch

from conformance import float_formats

IEEE = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
"""The dtypes of results that are judged for correct rounding."""


def nearest(value: np.ndarray, dtype: torch.dtype, low: np.ndarray | None = None) -> np.ndarray:
    """Return the number of ``dtype`` nearest to ``value + low``, as float64; ties to even, infinite beyond the largest.

    ``low``: what the exact number has beyond its rounding to float64, which decides what looks like a tie."""
    if dtype == torch.float64:
        return value
    form, step = float_formats.FORMATS[dtype], float_formats.ulp(value, dtype)
    # Steps are powers of two: nothing else is rounded.
    with np.errstate(all="ignore"):
        steps = value / step
        found = np.rint(steps)
        if low is not None:
            tied = (np.abs(steps - found) == 0.5) & (low != 0)
            found = np.where(tied, np.where(low > 0, np.ceil(steps), np.floor(steps)), found)
        result = found * step
        return np.where(np.abs(result) > form.max, np.copysign(np.inf, result), result)


def through(value: np.ndarray, dtypes: Iterable[torch.dtype], low: np.ndarray | None = None) -> np.ndarray:
    """Return ``value + low`` rounded to one dtype after the other."""
    for dtype in dtypes:
        # Rounding to float64 took the rest away.
        value, low = nearest(value, dtype, low), None
    return value


def ways(computed: Sequence[torch.dtype], output: torch.dtype) -> list[tuple[torch.dtype, ...]]:
    """Return the roundings that one operation in the last dtype of ``computed``, stored as ``output``, may go through.

    ``computed``: the dtype of the result, before it the wider one that torch computes in; that one may be left out.
    torch, and so may others, casts float64 to the half types by way of float32.
    """
    starts = dict.fromkeys((tuple(dict.fromkeys(computed)), (computed[-1],)))
    ends: list[tuple[torch.dtype, ...]] = [()] if output == computed[-1] else [(output,)]
    if computed[-1] == torch.float64 and output in (torch.float16, torch.bfloat16):
        ends.append((torch.float32, output))
    return [start + end for start, end in itertools.product(starts, ends)]
