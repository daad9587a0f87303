"""Find how often a call has to be made until the judged code takes another way: what it counts from call to call, and
compares with something. A pool of 512 results, or a kernel that is tuned anew after 1000 calls, shows in no fewer.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

import torch

from conformance import cases, runner, sequences
from conformance.calls import Compared
from conformance.cases import Case
from conformance.code_comparisons import LARGEST
from conformance.implementations import Implementation

CALLS = 4
"""So many times each call is made: what moves by the same step between them is counted."""
BEYOND = 2
"""So many more calls than it takes are made."""
MOST = 3
"""The most calls that are returned."""


def counted(starts: Sequence[Case], implementation: Implementation, device: torch.device) -> list[tuple[Case, int]]:
    """Return calls of one operator, and how often each has to be made until a comparison in the code has another
    answer, the fewest first; not for what a sequence has no room for. Raises Lost."""
    found = dict[int, tuple[Case, int]]()
    # From the largest on: there is most that may go wrong.
    for case in sorted(starts, key=cases.elements, reverse=True):
        maker = implementation.maker(case.op)
        prepared = (runner.prepare(sequences.reseeded(case, number), device) for number in range(CALLS))
        made = [one.new_paths(maker, False).compared for one in prepared]
        for place, times in _counts(made):
            if times <= sequences.MAX_CALLS:
                found.setdefault(place, (case, times))
    return sorted(found.values(), key=lambda one: one[1])[:MOST]


def _counts(made: Sequence[Sequence[Compared]]) -> Iterator[tuple[int, int]]:
    """Yield places where a number moves towards another one from call to call, and how often a call has to be made."""
    answers = [{(one.place, one.answer): (one.left, one.right) for one in compared} for compared in made]
    for key in answers[0]:
        sides = [one.get(key, (None, None)) for one in answers]
        for moving, still in (zip(*sides, strict=True), zip(*(pair[::-1] for pair in sides), strict=True)):
            if (times := _times(moving, still)) is not None:
                yield key[0], times


def _times(moving: Sequence[float | None], still: Sequence[float | None]) -> int | None:
    """Return how many calls it takes until one number, which moves by the same step each time, is the other, which
    stays; counted from now, or from zero, whichever is more."""
    numbers = [one for one in (*moving, *still) if one is not None and abs(one) < LARGEST]
    if len(numbers) < 2 * CALLS or len({*still}) > 1:
        return None
    first, *_, last = numbers[:CALLS]
    end, steps = numbers[-1], {after - before for before, after in itertools.pairwise(numbers[:CALLS])}
    if len(steps) > 1 or last == first or (end - last) / (step := steps.pop()) < 0:
        return None
    return max(CALLS + math.ceil((end - last) / step), math.ceil(end / step)) + BEYOND
