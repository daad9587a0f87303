"""Data types by name, what their bits mean, and strategies that draw them.

Everywhere in this package a dtype is torch's name without "torch.", such as "float32". Tuples of names are ordered
simplest first, which is the order in which examples shrink.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from functools import cache

import numpy as np
import torch
from hypothesis import strategies as st


@dataclasses.dataclass(frozen=True)
class Format:
    """The bits of one element. ``kind`` is "float", "int" (two's complement), "uint" or "bool".

    A float is a sign bit, ``exponent`` bits biased by 2^(exponent-1) - 1, and ``mantissa`` stored bits, as in
    IEEE 754; without ``infinity`` the topmost pattern alone is NaN (the "fn" formats of the OCP 8-bit
    floating point specification).
    """

    kind: str
    bits: int
    exponent: int = 0
    mantissa: int = 0
    infinity: bool = True

    @property
    def bias(self) -> int:
        return (1 << (self.exponent - 1)) - 1

    @property
    def sign_bit(self) -> int:
        return 1 << (self.bits - 1)

    @property
    def inf_bits(self) -> int:
        """The first pattern above the finite ones: infinity, or NaN where there is no infinity."""
        all_ones = (1 << (self.bits - 1)) - 1
        return all_ones ^ ((1 << self.mantissa) - 1) if self.infinity else all_ones

    @property
    def nan_bits(self) -> int:
        return self.inf_bits | (1 << (self.mantissa - 1)) if self.infinity else self.inf_bits

    @property
    def largest(self) -> float:
        """The largest finite value of a float."""
        exponent, mantissa = divmod(self.inf_bits - 1, 1 << self.mantissa)
        return math.ldexp((1 << self.mantissa) + mantissa, exponent - self.bias - self.mantissa)

    @property
    def carrier(self) -> np.dtype:
        """The unsigned NumPy type that carries the bits."""
        return np.dtype(f"u{self.bits // 8}")


FORMATS: dict[str, Format] = {
    "float32": Format("float", 32, 8, 23),
    "float16": Format("float", 16, 5, 10),
    "bfloat16": Format("float", 16, 8, 7),
    "float64": Format("float", 64, 11, 52),
    "float8_e4m3fn": Format("float", 8, 4, 3, infinity=False),
    "float8_e5m2": Format("float", 8, 5, 2),
    "int32": Format("int", 32),
    "int64": Format("int", 64),
    "int16": Format("int", 16),
    "int8": Format("int", 8),
    "uint8": Format("uint", 8),
    "bool": Format("bool", 8),
}

FLOATING = ("float32", "float16", "bfloat16", "float64")
HALF = ("float16", "bfloat16")
FP8 = ("float8_e4m3fn", "float8_e5m2")
INTEGRAL = ("int32", "int64", "int16", "int8", "uint8")
BOOL = ("bool",)
ALL = FLOATING + INTEGRAL + BOOL
"""What arithmetic operators take; the FP8 types, which they do not, are in ``FP8`` and in ``NAMES``."""
NAMES = tuple(FORMATS)


def format_of(name: str) -> Format:
    """The Format of a dtype name. Raises ValueError, naming the valid ones."""
    try:
        return FORMATS[name]
    except KeyError:
        raise ValueError(f"unknown dtype {name!r}; known: {', '.join(NAMES)}") from None


def to_torch(name: str) -> torch.dtype:
    """torch's dtype of a name. Raises ValueError, naming the valid ones."""
    format_of(name)
    return getattr(torch, name)


def from_torch(dtype: torch.dtype) -> str:
    """The name of one of torch's dtypes. Raises ValueError for those that the package does not draw."""
    name = str(dtype).removeprefix("torch.")
    format_of(name)
    return name


def is_floating(name: str) -> bool:
    """Whether the dtype is a floating one, FP8 included."""
    return format_of(name).kind == "float"


def compute_dtype(name: str) -> str:
    """The dtype that scalars of an operation on ``name`` are held in: float32 for half and FP8 types, else itself."""
    return "float32" if name in HALF + FP8 else name


def by_simplicity(names: Iterable[str]) -> tuple[str, ...]:
    """The distinct names, simplest first. Raises ValueError for an unknown one."""
    wanted = set(names)
    for name in wanted:
        format_of(name)
    return tuple(name for name in NAMES if name in wanted)


def dtypes(names: Iterable[str] = ALL) -> st.SearchStrategy[str]:
    """One of the names; shrinks to float32 where that is among them."""
    return _one_of(by_simplicity(names))


@cache
def _one_of(names: tuple[str, ...]) -> st.SearchStrategy[str]:
    return st.sampled_from(names)


def pairs(names: Iterable[str] = ALL) -> st.SearchStrategy[tuple[str, str]]:
    """The dtypes of two operands, equal or (about half the time) not, so that they promote; shrinks to equal ones."""
    names = by_simplicity(names)
    equal = st.sampled_from(names).map(lambda name: (name, name))
    different = [(first, second) for first in names for second in names if first != second]
    return st.one_of(equal, st.sampled_from(different)) if different else equal
