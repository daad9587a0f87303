"""Choose which of several things a drawn case tries: half the time, of those that it can, the one that was tried least
in its search, so that what few cases can try is not left to chance; else any."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from conformance import cases
from conformance.cases import Case

MOST = 1 << 14
"""Choices that are remembered: a case that is judged again, or of another implementation, tries the same."""

_tried: dict[tuple[str, str, str], Counter[str]] = {}
_chosen: dict[tuple[str, ...], str] = {}


_search: list[str] = [""]


def within(search: str) -> None:
    """Say of which search the cases are that follow: it does not depend on those before it in this process."""
    if search != _search[0]:
        anew()
        _search[0] = search


def anew() -> None:
    """Forget what was tried."""
    _tried.clear()
    _chosen.clear()


def choose(case: Case, what: str, names: Sequence[str]) -> str:
    """One of the names, of which there is at least one. ``what``: of what they are a choice."""
    # An implementation that offers more has turns for that, whoever was asked before.
    seed, identity = cases.seed(case), (cases.case_id(case), what, *names)
    if identity in _chosen:
        return _chosen[identity]
    tried = _tried.setdefault((case.op, cases.dtype_of(case), what), Counter())
    found = seed % len(names)
    if seed // 7 % 2:
        # Not always: else what every case can try would get those alone that can try nothing rarer.
        found = min(range(len(names)), key=lambda place: (tried[names[place]], (place - seed) % len(names)))
    tried[names[found]] += 1
    if len(_chosen) >= MOST:
        _chosen.clear()
    _chosen[identity] = names[found]
    return names[found]
