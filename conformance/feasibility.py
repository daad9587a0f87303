"""Decide which pairs of features one case can have.

A pair is infeasible only where it contradicts itself (a scalar tensor that is transposed), or where torch refuses every
call with both that can be made of cases that have either.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator
from functools import cache

import msgspec
import torch

from conformance import calls, cases, features, runner
from conformance import spec as specs
from conformance.cases import Case, Same
from conformance.feature_changes import SHAPE, crossed, fitted, imposed, resized, split, with_plain_values
from strategies import dtypes, layouts, values

EXAMPLES = 6
"""The number of cases with each feature from which others are made."""
LARGEST = 1 << 18
"""The most elements of such a case: torch is asked about many."""


def _group(feature: str) -> str:
    return feature.partition("=")[0]


@cache
def _together() -> frozenset[frozenset[str]]:
    """Return the pairs of features of one operand that some tensor has, found by trying tensors of all kinds."""
    found = set()
    few = (0, 1, 2, 3, 5, 6, 65, 1100)
    for rank in range(6):
        sizes = few if rank > 2 else (*few, 127, 128, 200, 2047, 2048, 2049)
        # From three dims on, the dims between the ends are 1.
        for ends in itertools.product(sizes, repeat=min(rank, 3)):
            shape = (*ends[:1], *(1,) * (rank - 3), *ends[1:])
            if math.prod(shape) > 1 << 13:
                continue
            for layout in {*layouts.fitting(shape)} - {"channels_last"}:
                one = {
                    f"rank={rank}", f"size={features.size(math.prod(shape))}", f"layout={layout}",
                    *([f"row={features.row(shape[-1])}"] if math.prod(shape) and shape else []),
                }  # fmt: skip
                found.update(map(frozenset, itertools.combinations(sorted(one), 2)))
    for dtype in dtypes.NAMES:
        for recipe in values.recipes_of(dtype):
            found.add(frozenset((f"dtype={dtype}", f"values={features.VALUES[recipe]}")))
        for special in (*values.specials_of(dtype), None):
            found.add(frozenset((f"dtype={dtype}", f"specials={features.SPECIALS.get(special or '', 'none')}")))
    return frozenset(found)


_GEOMETRY = ("rank", "size", "row", "layout")
_CLOSED = {
    "rank": features.RANKS,
    "size": features.SIZES,
    "row": features.ROWS,
    "layout": features.LAYOUTS,
    "broadcast": features.BROADCASTS,
    "specials": tuple(dict.fromkeys(("none", *features.SPECIALS.values()))),
}
"""The groups whose classes are all known; for values and dtypes the op says which there are."""


def contradictory(first: str, second: str) -> bool:
    """Tell whether two features of one case exclude each other by their meaning."""
    (operand, what, one), (other, beside, another) = split(first), split(second)
    if _group(first) == _group(second):
        return True
    if _group(first) in (other, _group(second)) or operand == _group(second):
        # One names the kind of an argument, the other a property of that kind.
        return True
    if operand != other or not operand:
        return False
    if {what, beside} <= {*_GEOMETRY} or {what, beside} in ({"dtype", "values"}, {"dtype", "specials"}):
        return frozenset((f"{what}={one}", f"{beside}={another}")) not in _together()
    # Nothing is planted into an empty tensor, and it has no values.
    return ("size", "empty") in ((what, one), (beside, another)) and bool({what, beside} & {"values", "specials"})


class Evidence:
    """torch's answers to calls that combine features. A few of the smallest cases are kept for each feature."""

    def __init__(self, op: str, examples: Iterable[Case]) -> None:
        self.spec = specs.registry()[op]
        self._asked: dict[str, bool | None] = {}
        self._known: dict[tuple, Iterator[tuple[frozenset[str], Case]]] = {}
        self._having: dict[str, list[Case]] = {}
        self._seen: set[tuple[str, str]] = set()
        for case in sorted(examples, key=_smaller):
            self._seen.update(itertools.combinations(sorted(self._features(case)), 2))
            if _smaller(case)[0] <= LARGEST:
                self._keep(case)
        for name, having in self._having.items():
            # From the largest, from which most can be made, to small ones.
            self._having[name] = having[:: -max(len(having) // EXAMPLES, 1)][:EXAMPLES]

    def _keep(self, case: Case) -> None:
        for name in self._features(case):
            self._having.setdefault(name, []).append(case)

    def _features(self, case: Case) -> frozenset[str]:
        return frozenset(features.names(self.spec.features(case)))

    def unseen(self, seen: Iterable[str]) -> Iterator[str]:
        """Yield features that are not among those seen, of groups that are, unless torch refuses all calls with
        them."""
        known = set(seen)
        groups = {_group(name) for name in known}
        for group in sorted(groups):
            what = group.rpartition(" ")[2]
            closed = self.spec.dtypes if what == "dtype" else _CLOSED.get(what, ())
            for one in closed:
                name = f"{group}={one}"
                if name in known:
                    continue
                if name in self._having:
                    yield name
                elif (case := self._with(name)) is not None:
                    self._keep(case)
                    yield name

    def _with(self, name: str) -> Case | None:
        """Return a call with a feature that torch takes, made from one without it; None where there is none."""
        for case in {id(case): case for having in self._having.values() for case in having}.values():
            for candidate in imposed(case, name):
                if not cases.misplaced(candidate) and name in self._features(candidate) and self.accepts(candidate):
                    return candidate
        return None

    def feasible(self, first: str, second: str) -> bool:
        """Tell whether two features can be in one case: unless they contradict each other, or torch refuses all calls
        that have both. Broadcasting follows from shapes: with it a pair counts only if such a call is found."""
        if (min(first, second), max(first, second)) in self._seen:
            return True
        if contradictory(first, second):
            return False
        pair, refused = {first, second}, False
        for found, candidate in self._candidates(first, second):
            if pair <= found:
                accepted = self.accepts(candidate)
                if accepted:
                    return True
                refused = refused or accepted is False
                if any(pair <= self._features(one) and self.accepts(one) for one in fitted(candidate)):
                    return True
        return not refused and "broadcast" not in (_group(first), _group(second))

    def _candidates(self, first: str, second: str) -> Iterator[tuple[frozenset[str], Case]]:
        """Yield calls that may have both features, made from those that have one; the likely ones first."""
        both = [(first, second), (second, first)]
        for one, other in both:
            for case in self._having.get(one, ()):
                yield from self._made(("imposed", id(case), other), imposed(case, other))
        for one, other in both:
            for case, donor in itertools.product(self._having.get(one, ())[:2], self._having.get(other, ())[:2]):
                key = ("crossed", id(case), id(donor), *split(other)[:2])
                yield from self._made(key, crossed(case, donor, other))
        if {split(first)[1], split(second)[1]} <= {*SHAPE, "broadcast"}:
            for case in (*self._having.get(first, ()), *self._having.get(second, ())):
                yield from self._made(("resized", id(case)), resized(case))

    def _made(self, key: tuple, made: Iterable[Case]) -> Iterator[tuple[frozenset[str], Case]]:
        """Return calls that are made from others, with their features; each is made once, when it is first wanted."""
        if key not in self._known:
            self._known[key] = ((self._features(case), case) for case in made if not cases.misplaced(case))
        self._known[key], again = itertools.tee(self._known[key])
        return again

    def accepts(self, case: Case) -> bool | None:
        """Tell whether torch takes the call, whatever its values. None: it cannot be made, which says nothing."""
        plain = with_plain_values(case)
        key = msgspec.json.encode(plain).decode()
        if key not in self._asked:
            self._asked[key] = _takes(plain)
        return self._asked[key]


_MOST = 1 << 26
"""The most that the product of the two largest operands' elements may be: the result may have as many."""


def _takes(case: Case) -> bool | None:
    largest = sorted(math.prod(spec.shape) for spec in cases.operands(case))[-2:]
    if math.prod(largest) > _MOST:
        return None
    try:
        prepared = runner.prepare(case, "cpu")
        refused = prepared.refusal is not None
    except (MemoryError, RuntimeError) as error:
        if not calls.is_out_of_memory(error):
            raise
        return None
    except (TypeError, ValueError):
        # A call made from others may give an argument twice, or lack one; then torch was not asked.
        return None
    return not refused and not _resizes_operand(prepared)


def _smaller(case: Case) -> tuple[int, str]:
    return cases.elements(case), cases.case_id(case)


def _resizes_operand(prepared: runner.Prepared) -> bool:
    """Tell whether ``out`` is an operand of another size than the result: torch resizes it, and warns that it will
    not."""
    out, result = prepared.case.kwargs.get("out"), prepared.call.result
    return (
        isinstance(out, Same)
        and isinstance(result, torch.Tensor)
        and result.shape != cases.operands(prepared.case)[out.operand].shape
    )
