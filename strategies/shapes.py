"""Shapes: sizes around the edges where kernels break, within a budget of elements."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from functools import cache

import numpy as np
from hypothesis import strategies as st

Shape = tuple[int, ...]

BLOCKS = (16, 32, 64, 128, 256, 1024)
"""Block sizes that kernels are tiled with; sizes are drawn just past several of them."""

MAX_SIZE = 4096 + 1
BUDGET = 1 << 16

SMALLER = ("1xM", "Nx1", "M", "Bx1xM", "1xHx1x1")
"""Shapes of an operand that broadcasts to that of the other: (1, M), (N, 1) and so on."""
PATTERNS = (*SMALLER, "0-d", "both")
"""The usual ways to broadcast; "both": each operand broadcasts along a dim that the other has."""

KEPT = {3: ((2,), (0, 2), (0, 1), (0,), (1,)), 4: ((3,), (1,), (0,), (0, 2, 3), (2, 3))}
"""Operands that broadcast to sequences or images have these dims, by rank: a row, a scale of each sequence or token and
the like; a row, a bias of channels, a scale of each image, a mask of each image and one of all."""

_KINDS = st.sampled_from(("any", "powers", "below powers", "above powers", "primes", "blocks", "multiples"))
_BESIDE = {"powers": 0, "below powers": -1, "above powers": 1}
_EMPTY, _TILED = 19, 4  # one dim in 20 is empty, one shape in 5 spans several blocks in every dim


def _is_prime(number: int) -> bool:
    return number > 1 and all(number % divisor for divisor in range(2, math.isqrt(number) + 1))


@cache
def _landmarks(kind: str, limit: int) -> tuple[int, ...]:
    """Sizes of one kind up to ``limit``, ascending."""
    if kind in _BESIDE:
        # Each side for itself: of all three the next one below a size is 2^k + 1 nearly always.
        sizes = {2**k + _BESIDE[kind] for k in range(limit.bit_length() + 1)}
    elif kind == "primes":
        sizes = {size for size in range(limit + 1) if _is_prime(size)}
    elif kind == "multiples":
        # As models have them: 96, 768, 3072.
        sizes = {odd << k for odd in (3, 5, 7) for k in range(4, limit.bit_length())}
    else:
        sizes = {n * block + 1 for block in BLOCKS for n in range(2, limit // block + 1)}
    return tuple(sorted(size for size in sizes if size <= limit))


@st.composite
def sizes(draw: st.DrawFn, min_size: int = 0, max_size: int = MAX_SIZE) -> int:
    """The size of one dim: small ones as often as large ones, mostly 2^k-1, 2^k, 2^k+1, primes, 3, 5 or 7 times 2^k,
    and multiples of a block plus one, now and then 0; shrinks to 1 (``min_size`` if that is more), else to the smallest
    that fails."""
    # A drawn size is halved a few times, then lowered to a landmark. Since both only lower it, an example that fails
    # for large sizes also fails when the shrinker takes them away, so it is never held up at a landmark.
    smallest, largest = max(min_size, 1), max(max_size, 1)
    kind = draw(_KINDS)
    halved = draw(st.integers(0, largest.bit_length() - 1))
    size = draw(st.integers(smallest, largest)) >> halved
    # Last, so that an empty dim is not simpler than others by taking fewer draws.
    empty = draw(st.integers(0, _EMPTY)) == _EMPTY
    if max_size < 1 or (empty and min_size == 0):
        return 0
    if kind != "any":
        # Those of one limit serve the lower ones.
        landmarks = _landmarks(kind, max(max_size, MAX_SIZE))
        below = bisect_right(landmarks, size)
        size = landmarks[below - 1] if below else size
    return max(size, smallest)


# Made once for each pair of limits: Hypothesis spends more time on validating a strategy than on drawing from it.
_sizes = cache(sizes)


@st.composite
def shapes(
    draw: st.DrawFn,
    min_rank: int = 0,
    max_rank: int = 4,
    *,
    min_size: int = 0,
    max_size: int = MAX_SIZE,
    budget: int = BUDGET,
) -> Shape:
    """A shape with at most ``budget`` elements; now and then every dim spans several blocks. Shrinks to few dims,
    then to sizes of 1."""
    # One dim may use up the budget, the others have their fair share of it at most.
    wide = draw(st.integers(0, max(max_rank - 1, 0)))  # counted from the last
    tiled = draw(st.integers(0, _TILED)) == _TILED
    # Nothing but the dims is drawn after the rank, so that the shrinker can lower it and leave out one dim.
    rank = draw(st.integers(min_rank, max_rank))
    block = next((b for b in reversed(BLOCKS) if (2 * b + 1) ** rank <= budget and 2 * b + 1 <= max_size), 0)
    low = 2 * block + 1 if tiled and block else min_size
    fair = max(low, int(budget ** (1 / max(rank, 1))))
    shape: list[int] = []
    left = budget
    for done in range(rank):
        most = min(max_size, left // max(low, 1) ** (rank - done - 1))
        if done != wide % rank:
            most = min(most, fair)
        shape.insert(0, draw(_sizes(low, max(low, 1, most))))
        left //= max(shape[0], 1)
    return tuple(shape)


_EDGES = st.sampled_from(("any", "powers", "below powers", "above powers", "tiles", "processors", 256, 1024, 4096))
PROCESSORS = 132
"""Multiprocessors of an H100: programs that walk all rows end evenly with so many."""
_LEAST = st.sampled_from((False, *(True,) * 7))


@st.composite
def long(draw: st.DrawFn, most: int) -> int:
    """A size of more than a block of 64, up to ``most``; seldom any, so that what fails for smaller ones shrinks to
    the smallest."""
    return draw(_sizes(65 if draw(_LEAST) else 1, most))


@st.composite
def near(draw: st.DrawFn, most: int) -> int:
    """A size of up to ``most``, seldom below an eighth of it, mostly at a power of two, a multiple of 256 or of
    ``PROCESSORS``, or just past one of a block; shrinks to 1, else to the smallest that fails."""
    kind = draw(_EDGES)
    # Hypothesis draws integers of every length alike.
    size = draw(st.integers(max(most // 8, 1) if draw(_LEAST) else 1, max(most, 1)))
    # Only lowered, as in ``sizes``, and without a list of landmarks.
    if isinstance(kind, int):
        return size // kind * kind + 1 if size % kind else size
    if kind == "any":
        return size
    if kind == "tiles":
        return size // 256 * 256 or size
    if kind == "processors":
        return size // PROCESSORS * PROCESSORS or size
    power = 1 << size.bit_length() - 1
    return max(min(power + _BESIDE[kind], size), 1)


@st.composite
def large(draw: st.DrawFn, rank: int, elements: int) -> Shape:
    """A shape of so many dims, 1 or more, with up to ``elements`` elements and mostly more than ``BUDGET``: one long
    dim, two, or all of them; shrinks to sizes of 1."""
    budget = draw(st.integers(min(BUDGET, elements), elements))
    kind = draw(st.sampled_from(("one", "two", "all")))
    long = draw(st.integers(0, rank - 1))  # counted from the last
    most = {dim: {"one": 3, "two": 3, "all": max(int(budget ** (1 / rank)), 3)}[kind] for dim in range(rank)}
    if kind == "two":
        most[(long + 1) % rank] = math.isqrt(budget)
    found: dict[int, int] = {}
    for dim in (*(dim for dim in range(rank) if dim != long), long):
        left = budget // math.prod(found.values())
        found[dim] = draw(near(left if dim == long else min(most[dim], left)))
    return tuple(found[dim] for dim in reversed(range(rank)))


@st.composite
def broadcastable(
    draw: st.DrawFn, operands: int = 2, result: st.SearchStrategy[Shape] | None = None
) -> tuple[Shape, ...]:
    """Shapes of several operands that broadcast to (at most) one drawn from ``result``; shrinks to equal shapes.

    Hypothesis's own ``mutually_broadcastable_shapes`` has no budget of elements, no preferred sizes, and shrinks
    to sizes of 1 rather than to equal shapes.
    """
    whole = draw(result if result is not None else shapes())
    # For all operands at once: equal shapes are easy, and one draw in four is enough for them.
    broadcast = draw(st.sampled_from((False, True, True, True)))
    found: list[Shape] = []
    for _ in range(operands):
        # Bit n is for the n-th dim from the last. A set would be all dims or none most of the time, and a draw for
        # each dim would hold up the shrinking of the rank.
        ones = draw(st.integers(0, 255)) if broadcast else 0
        shape = tuple(1 if ones >> (len(whole) - 1 - dim) & 1 else size for dim, size in enumerate(whole))
        leading = next((dim for dim, size in enumerate(shape) if size != 1), len(shape))
        found.append(shape[draw(st.integers(0, leading)) :])
    return tuple(found)


@st.composite
def usual(draw: st.DrawFn, operands: int = 2, *, budget: int = BUDGET) -> tuple[Shape, ...]:
    """Shapes that broadcast in one of the ``PATTERNS`` but "0-d", in any order; every dim of the result is above 1.

    Of three operands or more the others have the shape of the result, or that of the smaller one.
    """
    pattern = draw(st.sampled_from((*SMALLER, "both")))
    # Of equal sizes, now and then, so that a dim may be taken for another one.
    square = draw(st.sampled_from((False, False, False, False, True)))
    if pattern == "both":
        whole = _square(draw(shapes(2, 3, min_size=2, budget=budget)), square)
        ones = draw(st.integers(1, (1 << len(whole)) - 2))
        pair = tuple(tuple(1 if bits >> dim & 1 else s for dim, s in enumerate(whole)) for bits in (ones, ~ones))
        if draw(st.booleans()):
            pair = tuple(shape[shape[0] == 1 :] for shape in pair)
    else:
        rank = draw(st.integers(2, 3)) if pattern == "M" else len(pattern.split("x"))
        whole = _square(draw(shapes(rank, rank, min_size=2, budget=budget)), square)
        pair = (whole, _smaller(pattern, whole))
    rest = [draw(st.sampled_from((whole, pair[1]))) for _ in range(operands - 2)]
    return tuple(draw(st.permutations((*pair, *rest))))


def _square(shape: Shape, wanted: bool) -> Shape:
    """The shape; where ``wanted`` with its last dims as long as the shortest of them."""
    return (*shape[:-2], *(min(shape[-2:]),) * len(shape[-2:])) if wanted else shape


def pattern_of(first: Shape, second: Shape) -> str:
    """How two shapes broadcast: "equal", one of the ``PATTERNS``, or "other".

    A pattern needs a result whose dims are all above 1; "0-d", one of several elements.
    """
    whole = np.broadcast_shapes(first, second)
    if first == second:
        return "equal"
    if () in (first, second):
        return "0-d" if math.prod(whole) > 1 else "other"
    if min(whole) < 2:
        return "other"
    if whole not in (first, second):
        return "both"
    smaller = second if whole == first else first
    fits = (name for name in SMALLER if len(name.split("x")) in (1, len(whole)))
    return next((name for name in fits if smaller == _smaller(name, whole)), "other")


def _smaller(pattern: str, whole: Shape) -> Shape:
    """The shape of the smaller operand where the result has this one."""
    marks = pattern.split("x")
    return tuple(1 if mark == "1" else size for mark, size in zip(marks, whole[-len(marks) :], strict=True))


@st.composite
def products(
    draw: st.DrawFn, *, min_size: int = 0, max_size: int = MAX_SIZE, budget: int = BUDGET, work: int = 1 << 22
) -> tuple[int, int, int]:
    """(M, K, N) of a matrix product: each of the three matrices within ``budget`` elements, M*K*N within ``work``;
    now and then all three sizes span several blocks."""
    m, k, n = draw(shapes(3, 3, min_size=min_size, max_size=max_size, budget=work))
    n = max(min_size, min(n, budget // max(m, 1)))
    return m, max(min_size, min(k, budget // max(m, n, 1))), n


@st.composite
def reductions(
    draw: st.DrawFn, *, min_size: int = 0, max_rows: int = 1025, max_columns: int = 1 << 14, budget: int = BUDGET
) -> tuple[int, int]:
    """(rows, columns) of a reduction over columns: few long rows, many short ones, rows of several blocks."""
    columns = draw(_sizes(min_size, min(max_columns, budget)))
    return draw(_sizes(min_size, max(min_size, min(max_rows, budget // max(columns, 1))))), columns


def dims(shape: Sequence[int]) -> st.SearchStrategy[int]:
    """A dim of the shape, counted from the front or from the back, as torch takes it; shrinks to the last, -1."""
    rank = max(len(shape), 1)
    return st.sampled_from([*range(-1, -rank - 1, -1), *range(rank)])
