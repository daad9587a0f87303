"""The recipes of elements: functions that make the raw bits of a chunk, in the unsigned type of the element's width.

All randomness is raw words of NumPy's Philox generator, whose stream NumPy promises never to change. From there on only
integer operations, + - * /, and scaling by powers of two are used, since exp, log and trigonometry differ between CPUs,
and our own rounding to the narrow formats, since theirs differ between libraries.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from strategies import masks
from strategies.chunks import Chunk, normal, spread
from strategies.dtypes import Format
from strategies.encoding import Bits, encode


def _scaled_normal(scale: float) -> Callable[[Chunk], Bits]:
    return lambda chunk: _number(chunk.normal() * scale, chunk.form, integers=4.0)


def _number(values: np.ndarray, form: Format, integers: float = 1.0) -> Bits:
    """Bits of float64 values; for integers, of the whole part of ``integers`` times them; for bool, of their sign."""
    if form.kind == "float":
        return encode(values, form)
    if form.kind == "bool":
        return (values > 0).astype(np.uint8)
    whole = np.floor(values * integers).astype(np.int64)
    return (np.abs(whole) if form.kind == "uint" else whole).astype(form.carrier)


def _uniform(chunk: Chunk) -> Bits:
    if chunk.form.kind in ("int", "uint"):  # every value, so that sums and products wrap
        return (chunk.words() >> np.uint64(64 - chunk.form.bits)).astype(chunk.form.carrier)
    return _number(chunk.unit() * 2 - 1, chunk.form)


def _unit(chunk: Chunk) -> Bits:
    """In [0, 1): probabilities, and pixels."""
    return encode(chunk.unit(), chunk.form)


def _positive(chunk: Chunk) -> Bits:
    """From 2^-6 (the smallest normal number of float8_e4m3fn) to 4; integers from 1 to 32."""
    if chunk.form.kind != "float":
        return (chunk.words() % np.uint64(32) + np.uint64(1)).astype(chunk.form.carrier)
    return encode(chunk.unit() * 4 + 2.0**-6, chunk.form)


def _powers(chunk: Chunk) -> Bits:
    """Powers of two from 2^-8 to 2^7: scales by which a division is exact, so that ties are ties."""
    return encode(np.ldexp(1.0, (chunk.words() % np.uint64(16)).astype(np.int64) - 8), chunk.form)


def _ties(chunk: Chunk) -> Bits:
    """Numbers of few bits, from 2^-3 to 2^5 and of either sign: many of their products, and they themselves in a
    narrower type, lie just between two numbers."""
    words, widths = chunk.words(), np.array(_TIES.get(chunk.form.mantissa, (2,)), np.int64)
    width = widths[(words & np.uint64(3)).astype(np.int64) % len(widths)]
    sign = (words >> np.uint64(2) & np.uint64(1)).astype(np.float64) * 2 - 1
    exponent = (words >> np.uint64(3) & np.uint64(7)).astype(np.int64) - 3
    # The first and the last bit are ones.
    first = np.int64(1) << (width - 1)
    significand = (words >> np.uint64(11)).astype(np.int64) & (first - 1) | first | 1
    return encode(sign * np.ldexp(significand.astype(np.float64), exponent - width + 1), chunk.form)


_TIES = {52: (27, 25, 13, 6), 23: (13, 12, 6, 5), 10: (6, 6, 9, 5), 7: (5,)}
"""Bits of such numbers, by those that a type stores: two factors of half as many have a product of one too many; and
one more than narrower types have."""


def _integers(chunk: Chunk) -> Bits:
    whole = (chunk.words() % np.uint64(17)).astype(np.int64)
    return _number((whole if chunk.form.kind == "uint" else whole - 8).astype(np.float64), chunk.form)


def _magnitudes(chunk: Chunk) -> Bits:
    """Whole numbers of one bit up to all, each number of bits as likely as the other, of either sign."""
    form, (words, digits) = chunk.form, chunk.two_words()
    most = form.bits - (form.kind == "int")
    first = np.uint64(1) << (words >> np.uint64(1)) % np.uint64(most)
    size = (first | digits & (first - np.uint64(1))).view(np.int64)
    negative = (words & np.uint64(1) != 0) & (form.kind == "int")
    return np.where(negative, -size, size).astype(form.carrier)


def _bytes(chunk: Chunk) -> Bits:
    """Bools of any byte: as many are 0 as are not, and those are True, whether 1 or not."""
    words = chunk.words()
    return np.where(words >> np.uint64(63) != 0, words & np.uint64(255), 0).astype(np.uint8)


def _zeros(chunk: Chunk) -> Bits:
    return np.zeros(chunk.stop - chunk.start, chunk.form.carrier)


def _constant(words: np.ndarray, chunk: Chunk) -> Bits:
    return np.repeat(_number(normal(words), chunk.form, integers=4.0), chunk.stop - chunk.start)


def _one_hot(words: np.ndarray, chunk: Chunk) -> Bits:
    """A 1 somewhere in every row of the last dim, at a place that differs from row to row."""
    columns = chunk.shape[-1] if chunk.shape else 1
    row, column = np.divmod(chunk.index().astype(np.uint64), np.uint64(columns))
    hot = ((words[0] + row * (words[1] | np.uint64(1))) % np.uint64(columns)) == column
    return _number(hot.astype(np.float64), chunk.form)


def _repeating(halves: bool) -> Callable[[np.ndarray, Chunk], Bits]:
    """Uniform in [-1, 1), each number twice in a row of the last dim: the second half of the row repeats the first, or
    each second element the one before it. Tables of sines and cosines by element, not by pair, are like that."""

    def recipe(words: np.ndarray, chunk: Chunk) -> Bits:
        columns = chunk.shape[-1] if chunk.shape else 1
        row, column = np.divmod(chunk.index().astype(np.uint64), np.uint64(columns))
        pairs = np.uint64(max(columns // 2, 1))
        mixed = words[0] + row * pairs + (column % pairs if halves else column // np.uint64(2))
        # The finalizer of SplitMix64 (Steele, Lea and Flood, Fast splittable pseudorandom number generators, 2014).
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
        mixed ^= mixed >> np.uint64(31)
        return encode((mixed >> np.uint64(11)).astype(np.float64) * 2.0**-52 - 1, chunk.form)

    return recipe


def _large_mean(chunk: Chunk) -> Bits:
    """A mean of 2^12 for float32 (2^26 for float64, 2^mantissa for narrow types) and a deviation of 1: the mean
    of the squares less the square of the mean, in the same precision, is worthless."""
    mean = 2.0 ** min(chunk.form.mantissa, 12 if chunk.form.mantissa < 52 else 26)
    return encode(chunk.normal() + mean, chunk.form)


def _shifted(words: np.ndarray, chunk: Chunk) -> Bits:
    """A mean between 1/2 and 4, of either sign, and a deviation of 1, as activations and weights have."""
    sign, exponent = int(words[0] & np.uint64(1)), int(words[1] & np.uint64(3))
    return encode(chunk.normal() + (1 - 2 * sign) * 2.0 ** (exponent - 1), chunk.form)


def _rising(chunk: Chunk) -> Bits:
    """Rows of the last dim whose maximum rises at each power of two from 16 on, and with each 1024: from tile to tile,
    whatever power of two a tile has, but by so little that the tiles before still count."""
    tiles = _column(chunk) // 16
    steps = np.frexp(tiles.astype(np.float64))[1] + tiles // 64
    return encode(chunk.normal() * 0.25 + steps, chunk.form)


def _steep(words: np.ndarray, chunk: Chunk) -> Bits:
    """Up or down every dim by 128 or 512, to a largest element of -64, 0 or 64: the exponential of a maximum less an
    early one overflows, though each tile's is little more than that of the one before, and maxima may be negative
    throughout."""
    is_falling, is_steeper = not words[0] % np.uint64(4), not (words[0] >> np.uint64(2)) % np.uint64(3)
    slope, top = _slope(chunk), (-64.0, 0.0, 64.0)[int(words[1] % np.uint64(3))]
    below = (slope if is_falling else 2 - slope) * (len(chunk.shape) / 2)
    return encode(top - below * (512.0 if is_steeper else 128.0) + chunk.normal() * 0.25, chunk.form)


def _flags(chunk: Chunk) -> Bits:
    """1 for one element in four, else 0: labels of which several hold."""
    return _number((chunk.words() >> np.uint64(62) == 0).astype(np.float64), chunk.form)


def _first_large(chunk: Chunk) -> Bits:
    """Rows of the last dim whose first element is large, as ``large_mean`` is, and the rest of them not: squares of
    differences from it are worthless."""
    large = 2.0 ** min(chunk.form.mantissa, 12 if chunk.form.mantissa < 52 else 26)
    return encode(chunk.normal() + np.where(_column(chunk) == 0, large, 0.0), chunk.form)


def _partly_plain(words: np.ndarray, chunk: Chunk) -> Bits:
    """Normal in a middle part, of the rows or of each row, which begins at a quarter or a half and goes to the end or
    its last eighth; outside all are 0, or two of four, or all are 1, or whole numbers. Or the other way round. Who
    looks at a sample takes all for such, and who stops at a tile of zeros misses what comes behind."""
    columns = max(chunk.shape[-1] if chunk.shape else 1, 1)
    row, column = np.divmod(chunk.index(), columns)
    by_row, half, cut, kind, inside = (int(words[0] >> np.uint64(shift)) & 3 for shift in (8, 16, 24, 32, 40))
    rows = math.prod(chunk.shape[:-1])
    place, size = (row, rows) if by_row % 2 and rows > 1 else (column, columns)
    middle = (place >= size * (1 + half % 2) // 4) & (place < size - ((cut | inside) % 2) * (size // 8))
    normal = chunk.normal()
    plain = (np.zeros(len(normal)), np.where(column % 4 < 2, normal, 0.0), np.ones(len(normal)), np.rint(normal * 2))
    return encode(np.where(middle if inside % 2 else ~middle, plain[kind], normal), chunk.form)


def _sure(words: np.ndarray, chunk: Chunk) -> Bits:
    """Rows of the last dim with one element of about 18, and all others near 0. In float32 the exponential of each of
    these is lost beside that of 18; the sum of those of a long row is not."""
    columns = max(chunk.shape[-1] if chunk.shape else 1, 1)
    row, column = np.divmod(chunk.index().astype(np.uint64), np.uint64(columns))
    is_sure = column == spread(words, row) % np.uint64(columns)
    return encode(chunk.normal() * 0.0625 + np.where(is_sure, 18.0, 0.0), chunk.form)


def _uneven(words: np.ndarray, chunk: Chunk) -> Bits:
    """Rows of the last dim that are not alike: deviations from 2^-6 to 2^4, and a mean of 0, 64 or -64."""
    rows = chunk.index().astype(np.uint64) // np.uint64(max(chunk.shape[-1] if chunk.shape else 1, 1))
    mixed = spread(words, rows)
    scale = np.ldexp(1.0, (mixed % np.uint64(11)).astype(np.int64) - 6)
    mean = np.array((0.0, 64.0, 0.0, -64.0))[(mixed >> np.uint64(12) & np.uint64(3)).astype(np.int64)]
    return encode(chunk.normal() * scale + mean, chunk.form)


def _level(words: np.ndarray, chunk: Chunk) -> Bits:
    """Rows of the last dim whose elements are all equal, of up to 2^14 (narrow types: all that they hold) and either
    sign: they have no variance, whatever a difference of sums makes of it."""
    rows = chunk.index().astype(np.uint64) // np.uint64(max(chunk.shape[-1] if chunk.shape else 1, 1))
    most = min(2.0**14, chunk.form.largest)
    return encode((spread(words, rows).astype(np.float64) * 2.0**-30 - 1) * most, chunk.form)


def _cancelling(chunk: Chunk) -> Bits:
    """Large, and of the other sign from one element to the next: sums of rows are small beside their terms."""
    sign = 1.0 - 2.0 * (_column(chunk) % 2)
    return encode(sign * (64.0 + 8.0 * chunk.normal()), chunk.form)


def _column(chunk: Chunk) -> np.ndarray:
    return chunk.index() % (chunk.shape[-1] if chunk.shape else 1)


def _near_overflow(chunk: Chunk) -> Bits:
    """Half the largest value up to the largest, of either sign; integers within 8 of either end."""
    form, words = chunk.form, chunk.words()
    if form.kind == "float":
        sign = (words & np.uint64(1)).astype(np.float64) * 2 - 1
        fraction = (words >> np.uint64(11)).astype(np.float64) * 2.0**-54 + 0.5
        return encode(sign * fraction * form.largest, form)
    near = (words & np.uint64(15)).astype(np.int64) - 8  # -8 to 7; as bits, -8 to -1 lie at the top of unsigned types
    shift = form.sign_bit if form.kind == "int" else 0
    return near.astype(form.carrier) + form.carrier.type(shift)


def _random_bits(chunk: Chunk, kept: int) -> Bits:
    form = chunk.form
    return (chunk.words() >> np.uint64(64 - form.bits)).astype(form.carrier) & form.carrier.type(kept)


def _subnormal(chunk: Chunk) -> Bits:
    """Every subnormal of either sign, and as many of the smallest normal numbers."""
    return _random_bits(chunk, chunk.form.sign_bit | ((1 << (chunk.form.mantissa + 1)) - 1))


def _every_exponent(chunk: Chunk) -> Bits:
    """Random bits, finite: each exponent is as likely as the other."""
    form = chunk.form
    bits = _random_bits(chunk, (1 << form.bits) - 1)
    ones = form.carrier.type(((1 << form.exponent) - 1) << form.mantissa)
    return np.where((bits & ones) == ones, bits ^ form.carrier.type(form.sign_bit >> 1), bits)


def _ramp(sign: int) -> Callable[[Chunk], Bits]:
    """From -16 to 16 (reversed for ``sign`` -1), monotonic along every dim; integers from -96 to 96 or 0 to 96."""

    def recipe(chunk: Chunk) -> Bits:
        total = _slope(chunk)
        if chunk.form.kind == "uint":
            return _number(total if sign > 0 else 2 - total, chunk.form, integers=48.0)
        return _number((total - 1) * (16 * sign), chunk.form, integers=6.0)

    return recipe


def _slope(chunk: Chunk) -> np.ndarray:
    """From 0 to 2, monotonic along every dim."""
    rest, total = chunk.index(), np.zeros(chunk.stop - chunk.start)
    for size in reversed(chunk.shape):
        rest, place = np.divmod(rest, size)
        total += place / max(size - 1, 1)
    total *= 2 / max(len(chunk.shape), 1)
    return total


_EVERY = ("float", "int", "uint", "bool")
_NUMBERS = ("float", "int", "uint")
_FLOAT = ("float",)
_WHOLE = ("int", "uint")
_MASK = ("mask",)

BY_NAME: dict[str, tuple[tuple[str, ...], Callable[..., Bits]]] = {
    "normal": (_EVERY, _scaled_normal(1.0)),
    "integers": (_NUMBERS, _integers),
    "uniform": (_NUMBERS, _uniform),
    "magnitudes": (_WHOLE, _magnitudes),
    "bytes": (("bool",), _bytes),
    "positive": (_NUMBERS, _positive),
    "zeros": (_EVERY, _zeros),
    "constant": (_EVERY, _constant),
    "one_hot": (_EVERY, _one_hot),
    "ascending": (_NUMBERS, _ramp(1)),
    "descending": (_NUMBERS, _ramp(-1)),
    "normal_small": (_FLOAT, _scaled_normal(2.0**-7)),
    "normal_large": (_FLOAT, _scaled_normal(2.0**6)),
    "large_mean": (_FLOAT, _large_mean),
    "near_overflow": (_NUMBERS, _near_overflow),
    "unit": (_FLOAT, _unit),
    "uneven": (_FLOAT, _uneven),
    "subnormal": (_FLOAT, _subnormal),
    "every_exponent": (_FLOAT, _every_exponent),
    "normal_tiny": (_FLOAT, _scaled_normal(2.0**-11)),
    "rising": (_FLOAT, _rising),
    "steep": (_FLOAT, _steep),
    "first_large": (_FLOAT, _first_large),
    "cancelling": (_FLOAT, _cancelling),
    "level": (_FLOAT, _level),
    "shifted": (_FLOAT, _shifted),
    "flags": (_FLOAT, _flags),
    "partly_plain": (_FLOAT, _partly_plain),
    "sure": (_FLOAT, _sure),
    "powers": (_FLOAT, _powers),
    "ties": (_FLOAT, _ties),
    "masked": (_MASK, masks.masked),
    "prefix": (_MASK, masks.prefix),
    "late": (_MASK, masks.late),
    "causal": (_MASK, masks.causal),
    "window": (_MASK, masks.window),
    "slopes": (_FLOAT, masks.slopes),
    "halves": (_FLOAT, _repeating(halves=True)),
    "neighbours": (_FLOAT, _repeating(halves=False)),
}
"""For each recipe the kinds of dtypes for which it makes sense, and the function; simplest first."""
