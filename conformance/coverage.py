"""Coverage: the features of cases, and the pairs of them, that a run has tried, and those that it could have.

Only calls that torch takes are counted. A pair is two features of different groups in one case; one that is feasible
(``conformance.feasibility``) and that no case has is a hole.
"""

from __future__ import annotations

import collections
import concurrent.futures
import itertools
import math
import multiprocessing
from collections.abc import Iterable

import msgspec

from conformance import cases, feasibility, features
from conformance import spec as specs
from conformance.cases import Case

FLOOR = 0.94
"""The share of feasible pairs of each op that the ci profile has to hit."""
FEW = 4
"""Fewer ops are counted before other processes would have started."""


class Seen(msgspec.Struct):
    """The features that cases of one op showed; adds up over processes without loss, in any order."""

    op: str
    dtypes: list[str] = []
    """The dtypes whose search came to its end."""
    features: list[str] = []
    drawn: list[str] = []
    """The features of cases that such a search drew; saved cases may have others."""
    met: list[str] = []
    """For each feature, in hex, one bit for each feature that a case had together with it."""
    examples: list[Case] = []
    """Cases that show each feature."""


class Coverage(msgspec.Struct):
    """The coverage of one op. ``holes``: what is feasible and was not hit, single features first."""

    op: str
    features: int
    features_hit: int
    feasible: int
    hit: int
    holes: list[str]

    @property
    def share(self) -> float:
        return self.hit / self.feasible if self.feasible else 1.0

    def largest(self, count: int = 3) -> list[tuple[str, int]]:
        """Return the features with the most missing pairs, and how many."""
        return collections.Counter(name for hole in self.holes for name in hole.split(" & ")).most_common(count)


class Counter:
    """Counts features by op."""

    def __init__(self) -> None:
        self._ops: dict[str, _Op] = {}

    def add(self, case: Case) -> None:
        """Count one case."""
        self._op(case.op).add(case)

    def searched(self, op: str, dtype: str) -> None:
        """Note that the search of an op and dtype, whose cases are all that is counted here yet, came to its end."""
        self._op(op).searched(dtype)

    def seen(self) -> list[Seen]:
        return [one.seen() for _, one in sorted(self._ops.items())]

    def merge(self, seen: Iterable[Seen]) -> None:
        for other in seen:
            self._op(other.op).merge(other)

    def coverage(self, processes: int = 1) -> list[Coverage]:
        """Return the coverage of every op with a search that came to its end, counted in so many processes; each takes
        a second or more."""
        seen = [one for one in self.seen() if one.dtypes]
        if processes < 2 or len(seen) < FEW:
            return [*map(_counted, seen)]
        # Not forked: this process may have threads.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([__name__])
        with concurrent.futures.ProcessPoolExecutor(processes, mp_context=context) as pool:
            return list(pool.map(_counted, seen))

    def hits(self, op: str, first: str, second: str) -> bool:
        """Tell whether a case of the op had both features."""
        return self._op(op).hits(first, second)

    def whole(self, op: str) -> bool:
        """Tell whether all dtypes of the op were searched to the end."""
        return self._op(op).dtypes >= set(specs.registry()[op].dtypes)

    def _op(self, op: str) -> _Op:
        return self._ops.setdefault(op, _Op(op))


def _counted(seen: Seen) -> Coverage:
    op = _Op(seen.op)
    op.merge(seen)
    return op.coverage()


class _Op:
    def __init__(self, op: str) -> None:
        self.op = op
        self.spec = specs.registry()[op]
        self.dtypes: set[str] = set()
        self.drawn: set[str] = set()
        self.bits: dict[str, int] = {}
        self.met: list[int] = []
        self.examples: dict[str, Case] = {}
        """The examples by the ids of their cases."""
        self._names: dict[tuple[tuple[str, tuple[str, ...]], ...], tuple[list[int], int]] = {}

    def add(self, case: Case) -> None:
        names = features.names(self.spec.features(case))
        if not all(name in self.bits for name in names):
            self.examples[cases.case_id(case)] = case
        numbers = [self._bit(name) for name in names]
        mask = sum(1 << number for number in numbers)
        for number in numbers:
            self.met[number] |= mask

    def searched(self, dtype: str) -> None:
        self.dtypes.add(dtype)
        self.drawn.update(self.bits)

    def merge(self, other: Seen) -> None:
        self.dtypes.update(other.dtypes)
        self.drawn.update(other.drawn)
        numbers = [self._bit(name) for name in other.features]
        for number, met in zip(numbers, other.met, strict=True):
            mask = int(met, 16)
            self.met[number] |= sum(1 << mine for place, mine in enumerate(numbers) if mask >> place & 1)
        for case in other.examples:
            self.examples.setdefault(cases.case_id(case), case)

    def seen(self) -> Seen:
        met = [f"{mask:x}" for mask in self.met]
        examples = list(self.examples.values())
        return Seen(self.op, sorted(self.dtypes), list(self.bits), sorted(self.drawn), met, examples)

    def hits(self, first: str, second: str) -> bool:
        return first in self.bits and second in self.bits and bool(self.met[self.bits[first]] >> self.bits[second] & 1)

    def _bit(self, name: str) -> int:
        if name not in self.bits:
            self.bits[name] = len(self.bits)
            self.met.append(0)
        return self.bits[name]

    def coverage(self) -> Coverage:
        evidence = feasibility.Evidence(self.op, self.examples.values())
        # Features that only saved cases show are not asked for: many were saved for what no draw should have to show.
        single = sorted({*self.drawn, *evidence.unseen(self.drawn)})
        singles = [one for one in single if one not in self.bits]
        pairs = []
        feasible = hit = 0
        for first, second in itertools.combinations(filter(features.paired, single), 2):
            if self.hits(first, second):
                feasible, hit = feasible + 1, hit + 1
            elif evidence.feasible(first, second):
                feasible += 1
                pairs.append(f"{first} & {second}")
        return Coverage(self.op, len(single), len(single) - len(singles), feasible, hit, singles + pairs)


def below_floor(counter: Counter, found: Iterable[Coverage]) -> list[Coverage]:
    """Return the ops below the floor, of those with all dtypes searched to the end."""
    return [one for one in found if counter.whole(one.op) and one.share < FLOOR]


def table(found: Iterable[Coverage]) -> list[str]:
    """Return a line for each op: its share, and the features of which the most pairs are missing."""
    rows = [("op", "pairs", "feasible", "hit", "most are missing of")]
    for one in found:
        missing = ", ".join(f"{name} ({count})" for name, count in one.largest()) or "-"
        rows.append((one.op, str(one.hit), str(one.feasible), f"{math.floor(1000 * one.share) / 10:.1f}%", missing))
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    return ["  ".join((row[0].ljust(widths[0]), *(row[n].rjust(widths[n]) for n in (1, 2, 3)), row[4])) for row in rows]


def complaint(found: Coverage) -> str:
    """Return the complaint about an op below the floor."""
    holes = "; ".join(found.holes[:20])
    return (
        f"{found.op}: {found.hit} of {found.feasible} feasible pairs of features were tried, which is "
        f"{100 * found.share:.1f}% and below {100 * FLOOR:.0f}%; {len(found.holes)} are missing, such as {holes}"
    )
