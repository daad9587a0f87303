"""Python scalars as arguments (alpha, bounds, exponents, eps), exactly representable where they are used."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
from hypothesis import strategies as st

from strategies.dtypes import compute_dtype, format_of

Scalar = bool | int | float

_PLAIN = (1.0, 0.0, 2.0, -1.0, 0.5, -0.5, 3.0, -2.0, 1.5, 10.0, 0.125, 100.0)
_SPECIAL = (float("inf"), float("-inf"), float("nan"), -0.0)


# Made once for each: Hypothesis spends more time on validating a strategy than on drawing from it.
@cache
def floats(dtype: str, *, magnitude: float = 2.0**10, specials: bool = True) -> st.SearchStrategy[float]:
    """A float that ``compute_dtype(dtype)`` holds exactly, at most ``magnitude`` in absolute value, or with
    ``specials`` now and then inf, -inf, nan or -0.; shrinks to 1, else to the simplest that fails."""
    width = 64 if compute_dtype(dtype) == "float64" else 32
    if width == 32:
        rounded = np.float32(magnitude)  # compared as a float: NumPy would round the other side to float32 too
        magnitude = float(rounded if float(rounded) <= magnitude else np.nextafter(rounded, np.float32(0)))
    plain = st.sampled_from([value for value in _PLAIN if abs(value) <= magnitude])
    drawn = st.floats(-magnitude, magnitude, width=width, allow_subnormal=False)
    # Hypothesis prefers floats that look simple, and those every narrower type holds too.
    full = () if magnitude < 2.0**-7 else (full_floats(dtype, magnitude=magnitude),)
    kinds = (plain, drawn, *full, *([st.sampled_from(_SPECIAL)] if specials else ()))
    return st.one_of(kinds)


@cache
def full_floats(dtype: str, *, magnitude: float = 2.0**10) -> st.SearchStrategy[float]:
    """A float that needs all bits of ``compute_dtype(dtype)``, from 2^-8 up to ``magnitude`` in absolute value: no half
    type holds it."""
    bits = 53 if compute_dtype(dtype) == "float64" else 24
    odd = st.integers(2 ** (bits - 2), 2 ** (bits - 1) - 1).map(lambda n: 2 * n + 1)
    exponents = st.integers(-7, math.frexp(magnitude)[1] - 1)
    return st.builds(lambda n, e, s: s * math.ldexp(n, e - bits), odd, exponents, st.sampled_from((1, -1)))


@cache
def integers(dtype: str, *, magnitude: int | None = None, overflowing: bool = False) -> st.SearchStrategy[int]:
    """An int that the dtype (a floating one: its compute dtype) holds exactly, small or near the ends of the range,
    at most ``magnitude`` in absolute value, or with ``overflowing`` now and then one of 64 bits that an integral
    dtype cannot hold; shrinks to 1 (0 where that is the only one)."""
    form = format_of(dtype)
    ends = {"int": (-(2 ** (form.bits - 1)), 2 ** (form.bits - 1) - 1), "uint": (0, 2**form.bits - 1), "bool": (0, 1)}
    exact = 2 ** (53 if dtype == "float64" else 24)
    low, high = ends.get(form.kind, (-exact, exact))
    outside = [value for value in (low - 1, high + 1, 1000, -(2**40)) if not low <= value <= high]
    if magnitude is not None:
        low, high = max(low, -magnitude), min(high, magnitude)
    plain = st.sampled_from([value for value in (1, 0, 2, -1, 3, -2, 7, 100) if low <= value <= high])
    held = st.one_of(plain, st.integers(low, high), st.sampled_from((high, low)))
    outside = [value for value in outside if -(2**63) <= value < 2**63]
    return st.one_of(held, st.sampled_from(outside)) if overflowing and form.kind != "float" and outside else held


@cache
def magnitudes(dtype: str) -> st.SearchStrategy[int]:
    """An int of any number of bits that the integral dtype holds, as often as not one of those at which a narrower type
    or a float ends, often of ones alone: 0xFFFFFFFF is a mask that is no negative number."""
    form = format_of(dtype)
    most = form.bits - (form.kind == "int")
    ends = [bits for bits in (25, 31, 32, 33, 53, 54) if bits <= most] or [most]
    lengths = st.one_of(st.sampled_from(ends), st.integers(1, most))
    signs = st.sampled_from((1, 1, -1)) if form.kind == "int" else st.just(1)

    def number(length: int, digits: int | None, sign: int) -> int:
        ones = 2**length - 1
        return sign * (ones if digits is None else 2 ** (length - 1) | digits & ones)

    return st.builds(number, lengths, st.one_of(st.none(), st.integers(0, 2**64 - 1)), signs)


@cache
def scalars(
    dtype: str,
    *,
    kinds: tuple[str, ...] | None = None,
    magnitude: float | None = None,
    specials: bool = True,
    overflowing: bool = False,
) -> st.SearchStrategy[Scalar]:
    """A Python scalar to use with tensors of ``dtype``: "bool", "int" or "float" as ``kinds`` says.

    By default what does not change the category of the dtype: floats and ints for a floating one, ints for an
    integral one, bools for bool. ``magnitude`` is 2^10 if not given, for ints with an integral dtype its range;
    ``specials`` and ``overflowing`` as for ``floats`` and ``integers``. Raises ValueError for an unknown kind.
    """
    form = format_of(dtype)
    if kinds is None:
        kinds = {"float": ("float", "int"), "bool": ("bool",)}.get(form.kind, ("int",))
    if magnitude is None and form.kind == "float":
        magnitude = 2.0**10
    make = {
        "float": lambda: floats(dtype, magnitude=2.0**10 if magnitude is None else magnitude, specials=specials),
        "int": lambda: integers(
            dtype, magnitude=None if magnitude is None else int(magnitude), overflowing=overflowing
        ),
        "bool": lambda: st.sampled_from((True, False)),
    }
    if unknown := [kind for kind in kinds if kind not in make]:
        raise ValueError(f"unknown kind of scalar {unknown[0]!r}; known: {', '.join(make)}")
    return st.one_of([make[kind]() for kind in kinds])
