"""The elements of a tensor: recipes whose bits are the same on every machine, and strategies that draw them.

Randomness is keyed by (seed, operand number); recipes make raw bits, a chunk at a time.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache

import numpy as np
from hypothesis import strategies as st

from strategies.chunks import Chunk
from strategies.dtypes import Format, format_of
from strategies.encoding import Bits, encode
from strategies.recipes import BY_NAME

CHUNK = 1 << 15  # elements made at once: the temporaries stay in the cache, and memory stays small

SPECIALS = ("nan", "inf", "-inf", "-0", "max", "min", "tiny", "-tiny")
SIGNED_NAN = "-nan"
"""NaN with its sign and, where the format has several, its last bit set: half of all that are planted."""
FULL_NAN = "full nan"
"""NaN of which all bits but the sign are set, as GPUs compute it: one in six that are planted."""
SIGNALLING = "snan"
"""A signalling NaN, of formats that have infinities; only planted where it is named."""
MASKED = "masked out"
"""What models write into a mask instead of -inf: -1e9, of float16 -1e4; only planted where it is named."""
WITH_MASKED = {
    "float64": int(np.float64(-1e9).view(np.uint64)),
    "float32": int(np.float32(-1e9).view(np.uint32)),
    "float16": int(np.float16(-1e4).view(np.uint16)),
    "bfloat16": int(np.float32(-1e9).view(np.uint32)) >> 16,
}
"""Its bits, of the dtypes that have it."""


@cache
def special_bits(value: str, dtype: str) -> int:
    """The bits of a special value, or of a number as Python writes it, rounded to the dtype. Raises ValueError where
    the name is unknown or the dtype has no such value."""
    form, known = format_of(dtype), (*SPECIALS, SIGNED_NAN, FULL_NAN, SIGNALLING, MASKED)
    if _NUMBER.fullmatch(value):
        return _bits_of(value, form, dtype)
    if value not in known:
        raise ValueError(f"unknown special value {value!r}; known: {', '.join(known)}")
    if value == SIGNED_NAN and form.kind == "float":
        return form.sign_bit | form.nan_bits | 1
    if value == FULL_NAN and form.kind == "float":
        return form.sign_bit - 1
    if value == SIGNALLING and form.kind == "float" and form.infinity:
        return form.inf_bits | 1
    if value == MASKED and dtype in WITH_MASKED:
        return WITH_MASKED[dtype]
    if value not in specials_of(dtype):
        raise ValueError(f"{dtype} has no special value {value!r}; it has: {', '.join(specials_of(dtype))}")
    if form.kind != "float":
        ends = {"int": (form.sign_bit - 1, form.sign_bit), "uint": (2**form.bits - 1, 0), "bool": (1, 0)}
        return ends[form.kind][value == "min"]
    table = {"nan": form.nan_bits, "inf": form.inf_bits, "0": 0, "max": form.inf_bits - 1, "tiny": 1}
    if value == "min":
        return form.sign_bit | table["max"]
    return (form.sign_bit if value.startswith("-") else 0) | table[value.removeprefix("-")]


_NUMBER = re.compile(r"-?[0-9]{1,20}(\.[0-9]{1,20})?(e[-+][0-9]{1,3})?")


def _bits_of(number: str, form: Format, dtype: str) -> int:
    if form.kind == "float":
        return int(encode(np.array([float(number)]), form)[0])
    if form.kind == "bool" or not number.removeprefix("-").isdecimal() or not _holds(form, int(number)):
        raise ValueError(f"{dtype} has no number {number}")
    return int(number) % 2**form.bits


def specials_of(dtype: str) -> tuple[str, ...]:
    """The special values that a dtype has, to draw from."""
    form = format_of(dtype)
    if form.kind != "float":
        return ("max", "min")
    return SPECIALS if form.infinity else tuple(value for value in SPECIALS if "inf" not in value)


def filler_bits(form: Format) -> int:
    """What fills storage outside a view, so that reading it shows: NaN, 0xA5 bytes for integers, True for bool."""
    if form.kind == "float":
        return form.nan_bits
    return 1 if form.kind == "bool" else int.from_bytes(b"\xa5" * (form.bits // 8), "little")


MASKS = ("masked", "prefix", "late", "causal", "window")
"""Attention masks, bool (True takes part) or added to scores (0 or -inf)."""
SLOPES = ("slopes",)
"""Attention masks that are added to scores alone: the distance of a key, times a slope."""
TABLES = ("halves", "neighbours")
"""Tables of sines or cosines that say each number twice."""
ROWS = ("normal_tiny", "rising", "first_large", "cancelling", "level", "steep", "partly_plain", "sure")
"""Rows of which sums, maxima and variances are hard to have, or that look plain at their ends."""
NAMED = (*MASKS, *SLOPES, *TABLES, *ROWS, "shifted", "powers", "ties", "flags")
"""Recipes that are drawn only where they are named."""
LISTED = "listed:"
"""``listed:3,0,5`` is no recipe but the very elements, over and over: positions, which are structure and not data, and
numbers that a saved case is about."""
_LONGEST_LIST = 64
STORED = "stored:"
"""``stored:0123456789abcdef`` is no recipe either: the elements are in a file, ``strategies.stored``, and these are the
16 hex digits of their digest."""
# Recipes that take two words for the tensor.
_WHOLE_TENSOR = (
    "constant",
    "one_hot",
    "prefix",
    "uneven",
    "level",
    "shifted",
    "steep",
    "partly_plain",
    "sure",
    "late",
    "causal",
    "window",
    "slopes",
    *TABLES,
)

RECIPES = tuple(BY_NAME)
"""Names of all recipes, simplest first."""


@cache
def recipes_of(dtype: str) -> tuple[str, ...]:
    """The recipes that make sense for a dtype, simplest first."""
    form = format_of(dtype)
    mask = form.kind == "bool" or (form.kind == "float" and form.infinity)
    return tuple(name for name, (kinds, _) in BY_NAME.items() if form.kind in kinds or (mask and "mask" in kinds))


def check_recipe(recipe: str, dtype: str) -> None:
    """Raise ValueError unless the recipe exists and makes sense for the dtype."""
    if recipe.startswith(LISTED):
        _listed(recipe, dtype)
        return
    if recipe.startswith(STORED):
        # It becomes the name of a file.
        if not re.fullmatch("[0-9a-f]{16}", recipe.removeprefix(STORED)):
            raise ValueError(f"values {recipe[:80]!r} have no digest of 16 hex digits")
        return
    if recipe not in BY_NAME:
        raise ValueError(f"unknown values {recipe!r}; known: {', '.join(RECIPES)}")
    if recipe not in recipes_of(dtype):
        raise ValueError(f"values {recipe!r} make no sense for {dtype}; use one of {', '.join(recipes_of(dtype))}")


def _listed(recipe: str, dtype: str) -> list[int]:
    """The numbers of a list. Raises ValueError where it is none, or the dtype does not hold them."""
    form, parts = format_of(dtype), recipe.removeprefix(LISTED).split(",")
    if form.kind == "bool":
        raise ValueError(f"values {recipe!r} make no sense for {dtype}: only numbers are listed")
    if len(parts) > _LONGEST_LIST or not all(part.removeprefix("-").isdecimal() and len(part) < 20 for part in parts):
        raise ValueError(f"values {recipe[:80]!r} are no list of at most {_LONGEST_LIST} whole numbers")
    numbers = [int(part) for part in parts]
    if not all(_holds(form, number) for number in numbers):
        raise ValueError(f"values {recipe!r} do not fit {dtype}")
    return numbers


def _holds(form: Format, number: int) -> bool:
    if form.kind == "float":
        # Up to 2^53 float64 is exact, and up to its bias each format has the exponents.
        bits = abs(number).bit_length()
        return bits <= min(53, form.bias) and not number % 2 ** max(bits - form.mantissa - 1, 0)
    low, high = (-form.sign_bit, form.sign_bit - 1) if form.kind == "int" else (0, 2**form.bits - 1)
    return low <= number <= high


def fill(out: Bits, recipe: str, dtype: str, shape: tuple[int, ...], seed: int, operand: int) -> None:
    """Write the elements of a tensor of ``shape``, row-major, as bits into the flat array ``out``."""
    form = format_of(dtype)
    if recipe.startswith(LISTED):
        numbers = np.array(_listed(recipe, dtype), np.int64)
        bits = encode(numbers.astype(np.float64), form) if form.kind == "float" else numbers.astype(form.carrier)
        out[:] = np.resize(bits, out.size)
        return
    make = BY_NAME[recipe][1]
    philox = np.random.Philox(key=np.array([seed, operand], dtype=np.uint64))
    words = (philox.random_raw(2),) if recipe in _WHOLE_TENSOR else ()
    for start in range(0, out.size, CHUNK):
        stop = min(start + CHUNK, out.size)
        out[start:stop] = make(*words, Chunk(philox, shape, start, stop, form))


def recipes(dtype: str, names: Iterable[str] | None = None) -> st.SearchStrategy[str]:
    """A recipe that makes sense for the dtype, among ``names`` if given; shrinks to the simplest.

    Where none of ``names`` makes sense for the dtype (float recipes, an integer dtype), one of the dtype's own.
    """
    return _recipes(dtype, None if names is None else tuple(names))


@cache
def _recipes(dtype: str, names: tuple[str, ...] | None) -> st.SearchStrategy[str]:
    for name in names or ():
        if name not in BY_NAME:
            raise ValueError(f"unknown values {name!r}; known: {', '.join(RECIPES)}")
    possible = recipes_of(dtype)
    plain = tuple(name for name in possible if name not in NAMED)
    return st.sampled_from(tuple(name for name in possible if name in names) or plain if names is not None else plain)
