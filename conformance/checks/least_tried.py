"""Choose what a drawn case tries: half the time the option that its search tried least, so that options of few cases
are not left out; and one case in so many of those to which it applies. A try of a call whose elements are all alike
does not count."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from conformance import cases
from conformance.cases import Case

MOST = 1 << 14
"""The most choices that are remembered, so that a case that is judged again, or for another implementation, tries the
same."""

_tried: dict[tuple[str, str, str], Counter[str]] = {}
_chosen: dict[tuple[str, ...], str] = {}


_turns: dict[tuple[str, str], bool] = {}
"""Holds whether it was the turn of a case, by its id and what was asked."""

_search: list[str] = [""]


def within(search: str) -> None:
    """Say to which search the following cases belong: its choices do not depend on earlier ones in this process."""
    if search != _search[0]:
        anew()
        _search[0] = search


def anew() -> None:
    """Forget what was tried."""
    _tried.clear()
    _chosen.clear()
    _turns.clear()


def choose(case: Case, what: str, names: Sequence[str], tells: bool = True) -> str:
    """Return one of the names, of which there is at least one.

    :param what: The kind of choice.
    :param tells: Whether the try counts: a case that shows nothing of how elements are found leaves it to others.
    """
    # The names are part of the key: an implementation that offers more has choices of its own.
    seed, identity = cases.seed(case), (cases.case_id(case), what, *names)
    if identity in _chosen:
        return _chosen[identity]
    tried = _tried.setdefault((case.op, cases.dtype_of(case), what), Counter())
    found = seed % len(names)
    if seed // 7 % 2:
        # Not always: else common options would go only to cases that have no rarer one.
        found = min(range(len(names)), key=lambda place: (tried[names[place]], (place - seed) % len(names)))
    tried[names[found]] += tells
    if len(_chosen) >= MOST:
        _chosen.clear()
    _chosen[identity] = names[found]
    return names[found]


FIRST = 5
"""The place of the first call whose turn it is: those before are the simplest of all."""


def turn(case: Case, what: str, share: int) -> bool:
    """Tell whether it is the turn of this case, of those that are asked about: one in ``share``, and the first of them
    early, so that a search of few such cases has one."""
    key = cases.case_id(case), what
    if key not in _turns:
        counted = _tried.setdefault((case.op, cases.dtype_of(case), "turns"), Counter())
        if len(_turns) >= MOST:
            _turns.clear()
        _turns[key] = counted[what] % share == FIRST % share
        counted[what] += 1
    return _turns[key]
