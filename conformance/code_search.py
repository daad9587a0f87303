"""Search for calls that come to places of the judged code to which no drawn call came.

Calls are changed at random: as for sequences, at the numbers of the code, and in how operands lie. One that comes to a
new place, if only to the next part of a condition, is changed further: what several rare properties have to come
together for is found one after the other. Nothing is judged meanwhile.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Sequence
from random import Random

import torch

from conformance import cases, runner
from conformance.calls import Lost, Reached
from conformance.cases import Case
from conformance.code_comparisons import LARGEST
from conformance.implementations import Implementation
from conformance.search_changes import Changes, Way
from conformance.spec import registry

SWEPT_SHARE = 32
"""There is one such call at most for so many changed ones."""
WISHED = 60
"""So many calls are tried for an answer that no comparison has given, from the nearest one on."""
SOLVED, ALIKE = 0.3, 0.1
"""The shares of calls that are changed so that a comparison may have another answer, and that are like those with rare
answers."""
TOGETHER, RANKED = 12, 128
"""So many calls with the rarest answers are kept, found anew after so many calls."""
SHARE = 1 << 17
"""So many elements each call may have on average; when these are spent, the rest are small."""
STARTS = 1 << 16
"""The most elements of a call to start from."""
NEAREST = 6
"""So many calls that were the last to come to a new place are changed as often as all others that did."""


class Broken(Exception):
    """The process ended in a call: the last of ``found``."""

    def __init__(self, found: Sequence[Case], told: str) -> None:
        super().__init__(told)
        self.found = found


def search(
    starts: Sequence[Case],
    implementation: Implementation,
    device: torch.device,
    calls: int,
    elements: int,
    seed: str,
) -> list[Case]:
    """Make so many changed calls of one operator, and return those that came to new places, in that order, also with
    other contents; and calls that have the nearest numbers of the code for sizes, and rows of its tables, which need
    not be places.

    :param starts: The calls that are changed, and whose places are known.
    :param elements: The most that a large call may have.

    Raises Broken.
    """
    pool = [case for case in starts if calls and cases.elements(case) <= STARTS]
    if not pool:
        return []
    random, maker = Random(seed), implementation.maker(pool[0].op)
    changes = Changes(random, maker.numbers(), pool, elements)
    claimed = "gradients" in implementation.claims(pool[0].op)
    has_gradients = registry()[pool[0].op].gradients is not None

    def reached(case: Case) -> Reached:
        # Gradients are judged without a claim, too. The code may be another one where none is asked for.
        differentiate = claimed or (has_gradients and cases.seed(case) & 1 == 1)
        try:
            return runner.prepare(case, device).new_paths(maker, differentiate)
        except Lost as lost:
            raise Broken((*found, case), str(lost)) from None

    maker.forget_paths()
    guide = _Guide(random, changes)
    seen, found = {cases.case_id(case) for case in pool}, list[Case]()
    # Those that were the first to come to some place are nearest to what is still unknown.
    first = [case for case in pool if guide.learns(case, reached(case))]
    left = calls * SHARE
    for number in range(calls):
        near = first[-NEAREST:] if random.random() < 0.5 else first
        base = random.choice(near if near and random.random() < 0.8 else pool)
        if number % RANKED == RANKED - 1:
            guide.rank()
        case = guide.next() or (changes.step(base) if random.random() < 0.5 else None) or changes.changed(base)
        if case is None or cases.case_id(case) in seen:
            continue
        seen.add(cases.case_id(case))
        if (size := cases.elements(case)) > max(left, STARTS):
            continue
        left -= size
        if guide.learns(case, reached(case)):
            found.append(case)
            first.append(case)
    guide.rank()
    found += [case for case in guide.together if case not in found]
    found += changes.refilled(found)
    return found + changes.swept(maker.rows(), calls // SWEPT_SHARE)


@dataclasses.dataclass
class _Wish:
    """An answer that no comparison at a place has given, and the call that came nearest to it."""

    case: Case
    sides: tuple[float, float]
    tries: int = 0
    ways: list[Way] = dataclasses.field(default_factory=list)
    """Changes that are left to be tried."""

    @property
    def distance(self) -> float:
        return abs(self.sides[0] - self.sides[1])


class _Guide:
    """Leads the search by what the calls compared: to answers that there were not yet, and to such as are rare, when
    several of them come together. Those need not be ways in the code: ``a * b`` of two conditions is none."""

    def __init__(self, random: Random, changes: Changes) -> None:
        self.random, self.changes = random, changes
        self.together: list[Case] = []
        """The calls with the rarest answers."""
        self._counts = Counter[tuple[int, bool]]()
        self._wishes = dict[tuple[int, bool], _Wish]()
        self._calls = dict[frozenset[tuple[int, bool]], Case]()
        self._first = dict[int, list[float]]()
        self._moving = dict[int, list[bool]]()
        """Tells for each place whether the left and the right number have differed between calls."""

    def learns(self, case: Case, reached: Reached) -> bool:
        """Note what a call compared. Return whether it came to a new place, or to a new answer at one."""
        answers = frozenset((one.place, one.answer) for one in reached.compared)
        new = answers - self._counts.keys()
        self._counts.update(answers)
        self._calls.setdefault(answers, case)
        for key in new:
            self._wishes.pop(key, None)
        for one in reached.compared:
            sides = [side for side in (one.left, one.right) if side is not None and abs(side) < LARGEST]
            if len(sides) < 2:
                continue
            key = one.place, not one.answer
            first, moving = self._first.setdefault(one.place, sides), self._moving.setdefault(one.place, [False, False])
            self._moving[one.place] = [
                moved or was != now for moved, was, now in zip(moving, first, sides, strict=True)
            ]
            wish = self._wishes.get(key)
            if key not in self._counts and (wish is None or wish.distance > abs(sides[0] - sides[1])):
                self._wishes[key] = _Wish(case, (sides[0], sides[1]))
        return reached.places > 0 or bool(new)

    def rank(self) -> None:
        """Find the calls with the rarest answers anew."""
        total = max(self._counts.values(), default=0)
        rarity = {
            (place, answer): math.log(total / count)
            for (place, answer), count in self._counts.items()
            if self._counts[place, not answer]
        }
        # Exact, since a set has no order.
        ranked = sorted(self._calls, key=lambda answers: -math.fsum(rarity.get(key, 0.0) for key in answers))
        self.together = [self._calls[answers] for answers in ranked[:TOGETHER]] if rarity else []

    def next(self) -> Case | None:
        """Return a call that may give an answer that there was not yet, or is like those with the rarest; None: change
        another one."""
        chance = self.random.random()
        wishes = [(place, wish) for (place, _), wish in self._wishes.items() if wish.tries < WISHED]
        if wishes and chance < SOLVED:
            place, wish = self.random.choice(wishes)
            wish.tries += 1
            if not wish.ways:
                (left, right), (_, moves) = wish.sides, self._moving[place]
                # A constant does not move.
                only = moves and self._moving[place] == [False, True]
                sides = [] if only else [(left, right)]
                sides += [(right, left)] if moves else []
                wish.ways = [way for pair in sides for way in self.changes.ways(wish.case, *pair)]
                self.random.shuffle(wish.ways)
            return self.changes.solved(wish.case, wish.ways.pop())
        if self.together and chance > 1 - ALIKE:
            return self.changes.changed(self.random.choice(self.together))
        return None
