"""Binary floating-point formats: units in the last place, roundings, and the dtype in which arithmetic is done."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import torch


@dataclasses.dataclass(frozen=True)
class Format:
    """A binary floating-point format."""

    precision: int
    """Bits of the significand, the implicit one counted."""
    least: int
    """Exponent of the smallest normal number."""
    max: float
    """The largest finite number."""
    infinite: bool = True
    """Tells whether the format has infinities; where it has none an overflow becomes NaN."""

    @property
    def unit(self) -> float:
        """The unit roundoff u: half the distance from 1 to the next number."""
        return 2.0**-self.precision

    @property
    def subnormal(self) -> float:
        """The smallest positive number, which is also the distance between any two subnormals."""
        return math.ldexp(1.0, self.least - self.precision + 1)


FORMATS = {
    torch.float64: Format(53, -1022, torch.finfo(torch.float64).max),
    torch.float32: Format(24, -126, torch.finfo(torch.float32).max),
    torch.float16: Format(11, -14, torch.finfo(torch.float16).max),
    torch.bfloat16: Format(8, -126, torch.finfo(torch.bfloat16).max),
    torch.float8_e4m3fn: Format(4, -6, 448.0, infinite=False),
    torch.float8_e5m2: Format(3, -14, 57344.0),
}

_NARROW = (torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2)


_BY_WAY_OF_FLOAT32 = tuple((torch.float64, dtype) for dtype in _NARROW)


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype that arithmetic with results in ``dtype`` is done in: float32 for the half types and float8."""
    return torch.float32 if dtype in _NARROW else dtype


def ulp(value: np.ndarray, dtype: torch.dtype) -> np.ndarray:
    """Return the distance between neighbours of ``dtype`` at each float64 ``value``: never under the step of the
    subnormals, never over the step at the largest finite number; NaN and infinities give some finite step."""
    form = FORMATS[dtype]
    binade = (np.ascontiguousarray(value, np.float64).view(np.int64) & 0x7FF0000000000000).view(np.float64)
    largest = math.ldexp(1.0, math.frexp(form.max)[1] - 1)
    return np.maximum(np.minimum(binade, largest) * 2.0 ** (1 - form.precision), form.subnormal).reshape(value.shape)


def rounding(value: np.ndarray, dtype: torch.dtype) -> np.ndarray:
    """Return the most that one rounding of ``value`` to ``dtype`` changes it, u |value|, or half a step of the
    subnormals (a whole one for float64, which has no number so small as half of it)."""
    form = FORMATS[dtype]
    return np.maximum(form.unit * np.abs(value), max(form.subnormal / 2, FORMATS[torch.float64].subnormal))


def stored(value: np.ndarray, computed: torch.dtype, output: torch.dtype) -> np.ndarray | float:
    """Return what the bound gains where a result of dtype ``computed`` is cast to ``output`` (an ``out=`` of another
    dtype): half an ulp of ``computed``, and of float32 too, by way of which torch casts float64 to the half types."""
    if computed == output:
        return 0.0
    bound = ulp(value, computed) / 2
    return bound + rounding(value, torch.float32) if (computed, output) in _BY_WAY_OF_FLOAT32 else bound


def fits(value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return where floats are numbers of an integral dtype, once their fractions are cut off: what others become in a
    cast is undefined, and CPUs and CUDA differ in it."""
    limits = torch.iinfo(dtype)
    whole = value.double().trunc()
    # As a float64 the largest number of 64 bits is one too many.
    return (whole >= float(limits.min)) & (whole < float(limits.max + 1))


def overflow(dtype: torch.dtype) -> float:
    """Return the number from which on rounding to nearest gives infinity; not for float64, where it is no float64."""
    form = FORMATS[dtype]
    return form.max + float(ulp(np.array(form.max), dtype)) / 2
