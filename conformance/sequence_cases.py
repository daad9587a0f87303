"""Draw the cases of sequences: small ones of any kind, and large ones of which a library may keep a copy."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import cache
from typing import TypeVar

from hypothesis import strategies as st

from conformance import case_files, cases, drawing
from conformance.case_changes import named_arguments
from conformance.cases import Case, Same, View
from conformance.sequence_variations import WIDE, vary, whole
from conformance.spec import registry

T = TypeVar("T")

ELEMENTS = 2048
"""The most elements of the operands of a call in every other sequence: few caches depend on them, and small calls are
quick to judge; ``WIDE`` is that of the others."""
TRIES = 3
"""Of so many large calls the one with the largest weight is taken."""


@cache
def small(op: str, dtypes: tuple[str, ...], wanted: Callable[[Case], bool]) -> st.SearchStrategy[Case]:
    """Return the strategy of cases of few elements."""
    spec = registry()[op]
    of = {dtype: spec.cases((dtype,)).filter(_is_small).filter(_has_room).filter(wanted) for dtype in dtypes}
    return st.sampled_from(dtypes).flatmap(of.__getitem__)


@cache
def _wide(op: str, dtypes: tuple[str, ...]) -> st.SearchStrategy[Case]:
    """Return the strategy of cases of long rows or large weights, but for float64, which takes long to judge; of few
    elements where an op has no large ones."""
    spec, affordable = registry()[op], tuple(dtype for dtype in dtypes if dtype != "float64")
    if spec.large is None or not affordable:
        return small(op, dtypes, is_ordinary)
    calls = spec.large(WIDE)
    of = {dtype: calls((dtype,)).filter(_has_wide_room).filter(_is_wide) for dtype in affordable}
    return st.sampled_from(affordable).flatmap(of.__getitem__)


@cache
def refused(op: str, dtypes: tuple[str, ...]) -> st.SearchStrategy[Case]:
    return registry()[op].refused(dtypes).filter(_is_small)


def is_any(case: Case) -> bool:
    return True


def is_ordinary(case: Case) -> bool:
    """Tell whether a call has a result of its own that is not empty."""
    found = cases.operands(case)
    own = not cases.written(case) and not any(isinstance(x, Same | View) for x in (*case.args, *case.kwargs.values()))
    return own and bool(found) and all(0 not in spec.shape for spec in found)


def _is_small(case: Case) -> bool:
    return cases.elements(case) <= ELEMENTS


def _is_wide(case: Case) -> bool:
    """Tell whether it has many elements where a library may keep a copy."""
    return is_ordinary(case) and (len(cases.operands(case)) == 1 or _kept(case) >= ELEMENTS // 2)


def _kept(case: Case) -> int:
    """Return how many elements a library may keep a copy of: those of the largest operand that is not the first."""
    return max((math.prod(spec.shape) for spec in cases.operands(case)[1:]), default=0)


def _has_wide_room(case: Case) -> bool:
    return _has_room(case, 4 * WIDE)


def _has_room(case: Case, most: int = 2 * ELEMENTS) -> bool:
    """Tell whether its variations, with their result and the memory that their operands lie in, are small too."""
    try:
        case_files.validate(case, max_elements=most)
    except cases.TooLarge:
        return False
    return True


def ordinary(op: str, dtypes: tuple[str, ...], count: int, seed: str) -> Iterator[Case]:
    """Yield so many cases, every other one of many elements: what is kept of these alone is not left to chance. The
    first one has few: where there is no other, calls are to be quick."""
    large, others = count // 2, -(-count // 2)
    # Some things are kept from more elements on than most calls have.
    wide = several(_wide(op, dtypes), f"{seed}/wide", TRIES * large)
    found = [max(wide[n::large], key=lambda case: (_kept(case), cases.elements(case))) for n in range(large)]
    few = several(small(op, dtypes, is_ordinary), f"{seed}/small", others)
    for number in range(count):
        yield vary(whole, (few, found)[number % 2][number // 2], 0)


def several(draws: st.SearchStrategy[T], seed: str, count: int) -> list[T]:
    """Return so many values, the last of them again and again where Hypothesis finds fewer."""
    # Small calls are few among those of products and attention. The first is the simplest there is.
    found = drawing.drawn(draws, seed, 1 + count, filtered=True)[1:][:count] if count else []
    return [*found, *found[-1:] * (count - len(found))]


def one(draws: st.SearchStrategy[T], seed: str) -> T:
    """Return one value that is not the simplest."""
    return drawing.drawn(draws, seed, 2, filtered=True)[-1]


def richness(case: Case) -> tuple[int, int]:
    """Return how many arguments a call has, and elements."""
    return len(named_arguments(case)), cases.elements(case)
