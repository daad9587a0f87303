"""Draw whole numbers beside what a floating-point dtype makes of them."""

from __future__ import annotations

import itertools
from functools import cache

from hypothesis import strategies as st

from strategies import dtypes as dtype_names
from strategies import shapes
from strategies.specs import TensorSpec
from strategies.values import LISTED

_NUMBERS = 6
"""The number of different elements of an operand beside which the other's are rounded."""


@cache
def pairs(dtypes: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """Return the pairs of an integer dtype and a floating-point one that does not hold all its numbers."""
    forms = {name: dtype_names.format_of(name) for name in dtypes}
    wholes = [name for name, form in forms.items() if form.kind in ("int", "uint")]
    # No list has numbers that float64 does not hold.
    floats = [name for name, form in forms.items() if form.kind == "float" and form.bits < 64]
    return tuple(
        (whole, other)
        for whole, other in itertools.product(wholes, floats)
        if forms[whole].bits - (forms[whole].kind == "int") > forms[other].mantissa + 3
    )


@st.composite
def operands(draw: st.DrawFn, dtypes: tuple[str, ...]) -> tuple[TensorSpec, TensorSpec]:
    """Whole numbers that a floating-point dtype does not hold, and the same ones rounded to it, in either order: they
    are equal once both have that dtype, and not before."""
    whole, other = draw(st.sampled_from(pairs(dtypes)))
    digits = dtype_names.format_of(other).mantissa + 1
    signed = dtype_names.format_of(whole).kind == "int"
    # Every second number from here on is between two of the other dtype.
    between = st.sampled_from([2**digits + more for more in (1, 3, 5, 7)])
    numbers = draw(st.lists(between, min_size=_NUMBERS, max_size=_NUMBERS))
    numbers = [-number if signed and place % 2 else number for place, number in enumerate(numbers)]
    rounded = [_rounded(number, digits) for number in numbers]
    shape = draw(shapes.shapes(min_rank=1, max_rank=3, budget=512))
    first, second = (
        TensorSpec(shape, name, LISTED + ",".join(map(str, those)))
        for name, those in ((whole, numbers), (other, rounded))
    )
    return (first, second) if draw(st.booleans()) else (second, first)


def _rounded(number: int, digits: int) -> int:
    """Round a whole number to so many binary digits, half to even."""
    unit = 2 ** max(number.bit_length() - digits, 0)
    quotient, rest = divmod(number, unit)
    return (quotient + (2 * rest > unit or (2 * rest == unit and quotient % 2 == 1))) * unit
