"""Changes of calls that a search of the judged code draws: at the numbers of the code, as comparisons ask, and of how
operands lie.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any, NamedTuple

import msgspec

from conformance import cases, code_draws
from conformance.case_changes import named_arguments, with_argument, with_operand, with_size
from conformance.cases import Case, Same, View
from conformance.code_draws import BESIDE
from conformance.sequence_variations import VARIATIONS, vary, whole
from conformance.spec import registry
from strategies.specs import Layout, Special, TensorSpec

LIMITS = (1 << 14, 1 << 14, 1 << 16, 1 << 16, 1 << 18, 1 << 20, 9 << 20)
"""The most elements that a changed call may have; one is chosen for each."""
BEYOND = 8
"""Lets one changed call in eight have an eighth more elements than a large one, where the code has numbers near that:
2^24 and one is where float32 stops to count. What a comparison asks for may be as large."""
STEPS = ((1, 1), (1, 0), (2, 1))
"""So many times a number, and so much more, are tried for each size of a call that came to a new place."""
STEPPED = 8
"""The most numbers for which that is done, the nearest ones."""
SWEPT, SWEPT_ROWS, SWEPT_WAYS = 12, 4, 6
"""So many of the nearest numbers, and of rows, are sizes of calls that are judged; a row in so many ways at most."""
PLACES, NARROW = 2, 12
"""One number is the size of so many dims in turn; others have about so many elements for each of it."""
TRIES = 30
"""So many calls are tried for each."""
PLACE = 1 << 50
"""A size that no operand has."""
FEW = 64
"""The greatest number that counts groups and parts: a size is so many times another one."""
BYTES = (2, 4, 8)
"""Factors of sizes that the code need not name."""
BITS = 40
"""No size has so many bits."""
USUAL = (16, 64, 128, 256, 512, 1024, 4096)
"""Sizes of blocks, where the code has no numbers."""
_LEFT = ("same", "sibling")
"""Variations that change nothing, or the operator."""


class Way(NamedTuple):
    """A change: of a size to another one, of an argument by its name, or by a number anywhere."""

    kind: str
    which: Any
    wanted: Any = None


class Changes:
    """Changes of calls, drawn from ``random``. ``numbers``: those of the code; ``others``: calls that have options;
    ``elements``: as of ``search``."""

    def __init__(self, random: Random, numbers: Sequence[float], others: Sequence[Case], elements: int) -> None:
        self.random, self.others = random, others
        pools = code_draws.Pools.of(numbers, elements)
        self.numbers, self.blocks = pools.numbers or list(USUAL), pools.blocks
        self.own = [*dict.fromkeys(pools.sizes)]
        self.sizes = pools.sizes or list(USUAL)
        self.variations = [name for name in VARIATIONS if name not in _LEFT]
        self.kinds: list[tuple[int, Callable[[Case, int], Case]]] = [
            (3, self._varied), (3, self._sized), (1, self._square), (1, self._grouped), (1, self._small),
            (3, self._laid), (1, self._numbered), (1, self._special), (1, self._with_option),
        ]  # fmt: skip
        few = {int(number) for number in numbers if number == int(number) and 1 < number <= FEW}
        self.few = sorted({*few, *(number + 1 for number in few)}) or [2, 3]
        near = [number * times + more for number in [*dict.fromkeys(self.sizes)][:STEPPED] for times, more in STEPS]
        self.steps, self.left = [*dict.fromkeys((*near, 1))], dict[str, list[tuple[int, int]]]()
        self.most = elements + elements // BEYOND
        beyond = (self.most,) if 2 * max(self.sizes) > elements else ()
        self.limits = (*(min(elements, most) for most in LIMITS), *beyond)

    def step(self, case: Case) -> Case | None:
        """Return the case with one size at a number of the code, another one each time; None: there is none left, or
        torch does not take it."""
        key = cases.case_id(case)
        if key not in self.left:
            self.left[key] = [(was, wanted) for was in _sizes(case) for wanted in self.steps if was != wanted]
            self.random.shuffle(self.left[key])
        if not self.left[key]:
            return None
        was, wanted = self.left[key].pop()
        return self._allowed(case, _with_all(case, (was,), (wanted,)), self.limits[-1])

    def ways(self, case: Case, moved: float, fixed: float) -> list[Way]:
        """Return the changes of a case after which two numbers may be equal, or one apart: as if the first one
        were proportional to a size, or a few times that and more, or one of its bits."""
        wanted = (fixed, fixed + 1, fixed - 1)
        sizes = [
            Way("size", *way) for one in wanted for size in _sizes(case) for way in self._solutions(size, moved, one)
        ]
        same = [name for name, one in named_arguments(case).items() if type(one) is type(moved) and one == moved]
        given = [Way("argument", name, one) for name in same for one in wanted]
        ways = [*dict.fromkeys((*sizes, *given))]
        # Where rows are so far apart, or among the elements.
        return ways + [Way("number", fixed)] * (2 + len(ways) // 2)

    def solved(self, case: Case, way: Way) -> Case | None:
        """Return the case changed in one of its ways; None where torch does not take it."""
        if way.kind == "size":
            other = _with_all(case, (way.which,), (way.wanted,))
        elif way.kind == "argument":
            other = with_argument(case, way.which, way.wanted)
        else:
            other = self._with_number(case, way.which)
        return self._allowed(case, other, self.most)

    def _solutions(self, size: int, moved: float, wanted: float) -> list[tuple[int, int]]:
        """Return a size with others that may move one number to another."""
        if moved != int(moved) or wanted != int(wanted):
            return []
        more, times = int(wanted - moved), int(moved) // size if moved % size == 0 else 0
        found = {size + more, *(size + more // few for few in (*BYTES, *self.few) if more % few == 0)}
        if times:
            found |= {int(wanted) // times, -(-int(wanted) // times)}
        found |= {one for given, ways in _by_bits(size, int(wanted)) if given == moved for one in ways}
        return [(size, one) for one in sorted(found) if one > 0 and one != size]

    def changed(self, case: Case) -> Case | None:
        """Return a case that is changed once or several times; None where torch does not take it."""
        weights, kinds = zip(*self.kinds, strict=True)
        other, elements = case, self.random.choice(self.limits)
        for kind in self.random.choices(kinds, weights, k=self.random.choice((1, 1, 2, 3))):
            try:
                other = kind(other, elements)
            # An impossible layout or recipe.
            except ValueError:
                continue
        return self._allowed(case, other, elements)

    def swept(self, rows: Sequence[Sequence[int]], most: int) -> list[Case]:
        """Return so many calls with each of some rows in any order for sizes, and with each of the nearest numbers for
        one, and with one more."""
        found = list[Case]()
        # Small sizes come together in drawn calls.
        for row in [row for row in rows if max(row) > USUAL[0]][:SWEPT_ROWS]:
            # Of rows of two also what is one beyond both: a rule that says "more than".
            for more in (0, 1) if len(row) == 2 else (0,):
                found += self._with_sizes([number + more for number in row], SWEPT_WAYS)
        for number, more in itertools.product(self.own[:SWEPT], (0, 1)):
            found += self._with_sizes((number + more,), PLACES)
        return found[:most]

    def refilled(self, found: Sequence[Case]) -> list[Case]:
        """Return the calls with contents that show what ordinary numbers hide: small whole numbers, many of which are
        equal, and every other one with special values."""
        refilled = list[Case]()
        for number, case in enumerate(found):
            others = [vary(whole, case, 0)]
            # A dtype may not have it.
            with contextlib.suppress(ValueError):
                others += [self._special(case, 0)] if number % 2 else []
            allowed = (self._allowed(case, other, self.most) for other in others)
            refilled += [other for other in allowed if other is not None]
        return refilled

    def _with_sizes(self, wanted: Sequence[int], most: int) -> list[Case]:
        """Return up to so many calls with these sizes in the place of their own, in other dims each. Those with one
        size have few elements, if there are some such, since they are differentiated, too."""
        found = dict[tuple[tuple[int, int, int], ...], Case]()
        narrow = [min(NARROW * wanted[0], self.limits[-1])] if len(wanted) == 1 else []
        for elements in (*narrow, self.limits[-1]):
            for _ in range(TRIES):
                case = self.random.choice(self.others)
                ways = list(itertools.permutations([size for size in _sizes(case) if size > 1], len(wanted)))
                self.random.shuffle(ways)
                for way in ways[: 4 * most]:
                    one = self._allowed(case, _with_all(case, way, wanted), elements)
                    places = _places(one, wanted) if one is not None else ()
                    if one is not None and len(found) < most and {size for *_, size in places} == {*wanted}:
                        found.setdefault(places, one)
            if found:
                break
        return [*found.values()]

    def _allowed(self, case: Case, other: Case, elements: int) -> Case | None:
        # One without elements comes to the places that others should come to first, and shows nothing there.
        allowed = other != case and all(0 not in spec.shape for spec in cases.operands(other)[:1])
        return other if allowed and code_draws.is_allowed(registry()[case.op], other, elements) else None

    def _varied(self, case: Case, elements: int) -> Case:
        return vary(VARIATIONS[self.random.choice(self.variations)], case, self.random.randrange(12))

    def _number(self) -> int:
        of_blocks = self.blocks and self.random.random() < 0.2
        number, (times, more) = self.random.choice(self.blocks if of_blocks else self.sizes), self.random.choice(BESIDE)
        return number * times + more

    def _sized(self, case: Case, elements: int) -> Case:
        numbers = [self._number() for _ in range(self.random.choice((1, 1, 2, 4)))]
        return next(code_draws.sized(case, numbers, self.random.randrange(60), elements), case)

    def _square(self, case: Case, elements: int) -> Case:
        """Make two sizes equal."""
        return with_size(case, *self._two(case))

    def _grouped(self, case: Case, elements: int) -> Case:
        """Make a size several times another one, as query heads are that share a key head."""
        was, other = self._two(case)
        return code_draws.resized(case, was, other * self.random.choice(self.few))

    def _two(self, case: Case) -> tuple[int, int]:
        """Return two sizes of a case that differ, if there are."""
        known = _sizes(case)
        first, second = self.random.sample(known, 2) if len(known) > 1 else (1, 1)
        return first, second

    def _small(self, case: Case, elements: int) -> Case:
        return code_draws.resized(case, self.random.choice(_sizes(case) or [1]), self.random.choice((1, 2, *self.few)))

    def _numbered(self, case: Case, elements: int) -> Case:
        return self._with_number(case, self.random.choice(self.numbers))

    def _with_number(self, case: Case, number: float) -> Case:
        kind, place = self.random.choice(code_draws.CHANGES), self.random.randrange(60)
        # No layout begins before its storage, and the like.
        with contextlib.suppress(ValueError):
            return next(kind(case, number, place), case)
        return case

    def _special(self, case: Case, elements: int) -> Case:
        """Plant a special value, or leave out those that there are."""
        places = range(len(cases.operands(case)))
        if not places:
            return case

        def planted(spec: TensorSpec) -> TensorSpec:
            value = self.random.choice(("-inf", "inf", "nan", "-0", "max", "0"))
            special = Special(self.random.randrange(max(math.prod(spec.shape), 1)), value, self.random.choice((1, 40)))
            return msgspec.structs.replace(spec, specials=() if self.random.random() < 0.2 else (special,))

        return with_operand(case, self.random.choice(places), planted)

    def _with_option(self, case: Case, elements: int) -> Case:
        """Give an argument as another call has it, or leave one out."""
        options = [
            (name, value)
            for name, value in named_arguments(self.random.choice(self.others)).items()
            if not isinstance(value, TensorSpec | Same | View)
        ]
        options += [(name, None) for name in case.kwargs]
        return with_argument(case, *self.random.choice(options)) if options else case

    def _laid(self, case: Case, elements: int) -> Case:
        """Lay an operand otherwise: turned, cut from a larger one, with a stride of 0, later in its storage."""
        places = range(len(cases.operands(case)))
        if not places:
            return case
        chosen = {self.random.choice(places)} if self.random.random() < 0.7 else {*places}
        for number in sorted(chosen):
            case = with_operand(case, number, self._layout)
        return case

    def _layout(self, spec: TensorSpec) -> TensorSpec:
        rank, random = len(spec.shape), self.random
        order = random.choice(((), *_orders(rank, random)))
        padding: tuple[int, ...] = ()
        if rank and random.random() < 0.6:
            cut = random.randrange(rank)
            padding = tuple(random.choice((1, 2, spec.shape[dim])) if dim == cut else 0 for dim in range(rank))
        expanded = (random.randrange(rank),) if rank and not padding and random.random() < 0.3 else ()
        offset = random.choice((0, 0, 1, 8))
        return msgspec.structs.replace(spec, layout=Layout(order, (), padding, expanded, offset))


def _by_bits(size: int, wanted: int) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Yield what rules go by beside a size itself, its bits and the largest power of two that divides it, each with
    sizes of which that is the wanted number."""
    unit = size & -size

    def multiple(power: int) -> tuple[int, ...]:
        return (size // (2 * power) * 2 * power + power,)

    if 0 < wanted < BITS:
        least = 1 << wanted - 1
        yield size.bit_length(), (least, least + least // 2, 2 * least - 1)
        yield size.bit_length() - 1, (2 * least, 3 * least, 4 * least - 1)
        yield unit.bit_length(), multiple(least)
        yield unit.bit_length() - 1, multiple(2 * least)
    if 0 < wanted == wanted & -wanted:
        yield unit, multiple(wanted)


def _with_all(case: Case, sizes: Sequence[int], wanted: Sequence[int]) -> Case:
    """Return the case with each of these sizes replaced by the wanted one; the case itself where an operand's layout
    has no such size."""
    other = case
    try:
        # By sizes that no operand has first: one that is wanted may be that of another dim.
        for number, was in enumerate(sizes):
            other = code_draws.resized(other, was, PLACE + number)
        for number, size in enumerate(wanted):
            other = code_draws.resized(other, PLACE + number, size)
    except ValueError:
        return case
    return other


def _places(case: Case, sizes: Sequence[int]) -> tuple[tuple[int, int, int], ...]:
    """Return which positional operands have which of these sizes in which dims, counted from the last one."""
    shapes = (spec.shape[::-1] for spec in case.args if isinstance(spec, TensorSpec))
    each = ((operand, dim, size) for operand, shape in enumerate(shapes) for dim, size in enumerate(shape))
    return tuple(place for place in each if place[2] in sizes)


def _sizes(case: Case) -> list[int]:
    """Return the sizes of operands but 0, each once."""
    return sorted({size for spec in cases.operands(case) for size in spec.shape if size})


def _orders(rank: int, random: Random) -> list[tuple[int, ...]]:
    """Return orders of dims in memory: the last two turned, the second one innermost, and any."""
    if rank < 2:
        return []
    dims = list(range(rank))
    turned, last = (*dims[:-2], dims[-1], dims[-2]), (0, *dims[2:], 1)
    return [turned, turned, last, tuple(random.sample(dims, rank))]
