"""Draw cases at the numbers that the judged code has (``conformance.code_numbers``): sizes, elements, arguments and
distances of rows at them, beside them and past several of them. There a kernel takes another way, and no strategy can
know where that is.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeVar

import msgspec
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from conformance import case_files, cases
from conformance.case_changes import changed, is_listed, is_tied, with_operand, with_size
from conformance.cases import Argument, Case
from conformance.sequence_variations import NUMBERS
from conformance.spec import OpSpec
from strategies.dtypes import format_of, is_floating
from strategies.specs import CONTIGUOUS, Layout, Special, TensorSpec
from strategies.values import LISTED, MASKS, SLOPES, STORED

T = TypeVar("T", int, float)

LEAST = 9
"""Smaller sizes are drawn anyway."""
ELEMENTS = (1 << 16, 1 << 18, 1 << 20, 1 << 22)
"""The most elements of all operands of such a case together: large ones take long, so they are few."""
RESULT = 4
"""The elements of a result, by those of the operands, at most."""
STORAGE = 1 << 24
"""The most elements of the storage of its operands."""
WORK = 16
"""The most that its sizes may come to, multiplied, each once, as a product's M * K * N: so many times the elements that
its result may have."""
FLOAT64 = 1 << 14
"""The most elements with float64, whose oracles take long."""
POOL = 32
"""The most numbers that are drawn from, the nearest ones."""
NEAREST = 4
"""So many numbers, the nearest ones, are drawn as often as all others."""
TRIES = 4
"""The most places where a number is tried."""
OF = 3
"""So many calls are drawn for one that is changed."""
_SMALL = (3, 2, 1)
"""The sizes that others get where a case would be too large."""
_OF_SHARES = ("eps", "p")
"""Arguments that lie between 0 and 1."""

_PLACE = st.integers(0, 59)
_TIMES = st.sampled_from((1, 1, 2))
BESIDE = ((1, 1), (1, 0), (1, -1), (2, 1), (2, 0), (3, 1), (1, 7))
"""So many times a number, and so much more."""
_BESIDE = st.sampled_from(BESIDE)


def calls(
    spec: OpSpec, numbers: Sequence[float], elements: int
) -> Callable[[Sequence[str]], SearchStrategy[Case]] | None:
    """Return the strategy of such cases of up to so many elements, by dtypes; None: the code has no number that a case
    could have."""
    limits = st.sampled_from([min(elements, most) for most in ELEMENTS])
    pools = Pools.of(numbers, min(elements, ELEMENTS[-1]))
    return (lambda dtypes: _calls(spec, _legal(spec, dtypes), pools, limits)) if any(pools) else None


class Pools(NamedTuple):
    """The numbers to draw from."""

    sizes: list[int]
    blocks: list[int]
    """Products of two: so many blocks of that size."""
    distances: list[int]
    numbers: list[float]
    """Those of elements and arguments."""

    @classmethod
    def of(cls, numbers: Sequence[float], elements: int) -> Pools:
        """Return what can be drawn in calls of so many elements."""
        whole = [int(number) for number in numbers if number == int(number) and number > 1][:POOL]
        products = [first * second for first, second in itertools.combinations_with_replacement(sorted(whole), 2)]
        blocks = [number for number in dict.fromkeys(products) if LEAST <= number <= elements and number not in whole]
        return cls(
            weighed([number for number in whole if LEAST <= number <= elements]),
            blocks[:POOL],
            weighed([number for number in whole if LEAST <= number <= STORAGE]),
            weighed([number for number in numbers if abs(number) not in (0, 1)][:POOL]),
        )

    def kinds(self) -> list[str]:
        """Return the ways in which a case can be changed at the numbers."""
        of_numbers = ("elements", "elements", "arguments")
        return [
            *(("sizes", "all sizes", "all sizes") * 2 if self.sizes else ()),
            *(("blocks",) if self.blocks else ()),
            *(("distances",) if self.distances else ()),
            *(of_numbers if self.numbers else ()),
        ]


def weighed(numbers: list[T]) -> list[T]:
    """Return the numbers with the nearest ones so often that they are half of all: a helper that many functions call
    has numbers, too."""
    near, rest = numbers[:NEAREST], numbers[NEAREST:]
    return near * (1 + len(rest) // NEAREST) + rest


def _legal(spec: OpSpec, dtypes: Sequence[str]) -> SearchStrategy[Case]:
    """Return the strategy of the calls that are changed: any, and now and then one of a model's."""
    legal = spec.cases(dtypes)
    # Of a few the one that has most sizes to change.
    most = st.tuples(*(legal,) * OF).map(lambda found: max(found, key=_changeable))
    if spec.scenes is None and not spec.apart:
        return most
    found = (most, most, most, spec.all_scenes()(dtypes))
    return st.integers(0, 3).flatmap(found.__getitem__)


def _changeable(case: Case) -> int:
    """Count the sizes that can be changed; -1 where an operand is empty."""
    return -1 if any(0 in spec.shape for spec in cases.operands(case)) else len(_known(case))


@st.composite
def _calls(
    draw: st.DrawFn, spec: OpSpec, base: SearchStrategy[Case], pools: Pools, limits: SearchStrategy[int]
) -> Case:
    case, elements = draw(base), draw(limits)
    for _ in range(draw(_TIMES)):
        what, place = draw(st.sampled_from(pools.kinds())), draw(_PLACE)
        if what == "all sizes":
            found = sized(case, _chosen(draw, pools, len(_known(case)), elements), place, elements)
        elif what in ("elements", "arguments"):
            found = _CHANGES[what](case, draw(st.sampled_from(pools.numbers)), place)
        elif what == "distances":
            found = apart(case, _near(draw, pools.distances), place)
        else:
            known = pools.sizes if what == "sizes" else pools.blocks
            fit = [number for number in known if number <= elements] or known
            found = sized(case, [_near(draw, fit)], place, elements)
        case = next((one for one in found if one != case and is_allowed(spec, one, elements)), case)
    return case


def _chosen(draw: st.DrawFn, pools: Pools, count: int, elements: int) -> list[int]:
    """Draw so many sizes at numbers that are not too much together: most ways that a kernel takes begin at several."""
    known, least, found = [*pools.sizes * 3, *pools.blocks], min(pools.sizes), list[int]()
    for left in reversed(range(count)):
        # Any two may be those of one operand.
        matrix = RESULT * elements // max((*found, least if left else 1))
        room = min(RESULT * elements * WORK // (math.prod(found) * least**left), matrix)
        number = _near(draw, [number for number in known if number < room] or [least])
        found.append(max(min(number, room), 1))
    return found


def _near(draw: st.DrawFn, numbers: Sequence[int]) -> int:
    """Draw one of the numbers, one beside it, or a multiple."""
    number, (times, more) = draw(st.sampled_from(numbers)), draw(_BESIDE)
    return number * times + more


def is_allowed(spec: OpSpec, case: Case, elements: int, float64: int = FLOAT64) -> bool:
    """Tell whether torch takes a changed case, whose result it defines, and the case is not too large. ``float64``: the
    most elements where one is."""
    if _is_dear(case, elements, float64):
        return False
    try:
        case_files.validate(case, max_elements=max(STORAGE, elements))
    except ValueError:
        return False
    # First what torch takes at all, which a spec supposes.
    result = case_files.result_elements(case)
    if result is None or result > RESULT * elements:
        return False
    return spec.defined(case) == case and spec.takes(case)


# --- changes -------------------------------------------------------------------------------------------------------


def sized(case: Case, numbers: Sequence[int], place: int, elements: int, float64: int = FLOAT64) -> Iterator[Case]:
    """Yield the case with these numbers for as many of its sizes, wherever operands have them, from several places on;
    other sizes are small as far as it would be too large. ``float64``: as of ``is_allowed``."""
    known = _known(case) or [1]
    if is_tied(case):
        return
    for first in range(place, place + TRIES):
        changed = case
        chosen = [known[(first + other) % len(known)] for other in range(min(len(numbers), len(known)))]
        for was, wanted in zip(chosen, numbers, strict=False):
            changed = resized(changed, was, wanted)
        for small in _SMALL:
            for size in _known(changed):
                if size not in (*numbers, *_SMALL) and _is_dear(changed, elements, float64):
                    changed = resized(changed, size, small)
        if not _is_dear(changed, elements, float64):
            yield changed


def resized(case: Case, was: int, wanted: int) -> Case:
    """Return the case with another size; the case itself where an index cannot be below that."""
    for number, spec in enumerate(cases.operands(case)):
        if not is_listed(spec) or wanted >= was:
            continue
        # Any index may be one into what is smaller now.
        indices = [int(one) for one in spec.values.removeprefix(LISTED).split(",")]
        lowered = [one % wanted if one >= wanted else one for one in indices]
        if len({*lowered}) < len({*indices}):
            return case
        values = LISTED + ",".join(map(str, lowered))
        case = with_operand(case, number, lambda spec, values=values: msgspec.structs.replace(spec, values=values))
    return with_size(case, was, wanted)


def _is_dear(case: Case, elements: int, float64: int) -> bool:
    if any(spec.dtype == "float64" for spec in cases.operands(case)):
        elements = min(elements, float64)
    # Of an operand without elements the other sizes count, too: it has a shape, and is laid out.
    counted = sum(math.prod(size or 1 for size in spec.shape) for spec in cases.operands(case))
    return math.prod(_known(case)) > RESULT * elements * WORK or counted > elements


def _known(case: Case) -> list[int]:
    """Return the sizes above 1, largest first."""
    return sorted({size for spec in cases.operands(case) for size in spec.shape if size > 1}, reverse=True)


def _planted(case: Case, number: float, place: int) -> Iterator[Case]:
    """Yield the case with the number in an operand, or one beside it: negative, half or twice, or the next one of the
    dtype."""
    fit = [number for number, spec in enumerate(cases.operands(case)) if _takes_numbers(spec)]
    if not fit:
        return
    chosen, place = fit[place % len(fit)], place // len(fit)

    def planted(spec: TensorSpec) -> TensorSpec:
        if is_floating(spec.dtype):
            step = 2.0 ** -format_of(spec.dtype).mantissa
            value = (number, -number, number * (1 + step), number * (1 - step), number / 2, number * 2)[place % 6]
        else:
            value = (int(number), -int(number), int(number) + 1, int(number) - 1)[place % 4]
        special = Special(7 * place % max(math.prod(spec.shape), 1), repr(value), 1 + place % 2 * 40)
        return msgspec.structs.replace(spec, specials=(*spec.specials[:2], special))

    # A narrow dtype does not hold every whole number.
    with contextlib.suppress(ValueError):
        yield with_operand(case, chosen, planted)


def _takes_numbers(spec: TensorSpec) -> bool:
    """Tell whether any numbers may be planted: not in masks and bools, and not among indices."""
    named = spec.values in (*MASKS, *SLOPES) or spec.values.startswith((LISTED, STORED))
    return spec.dtype != "bool" and not named


def _given(case: Case, number: float, place: int) -> Iterator[Case]:
    """Yield the case with the number for an argument that is one."""
    names: list[str] = []

    def note(name: str, value: Argument) -> Argument:
        if name in NUMBERS and isinstance(value, int | float) and not isinstance(value, bool):
            names.append(name)
        return value

    changed(case, note)
    chosen = names[place % len(names)] if names else ""
    if chosen and (chosen not in _OF_SHARES or 0 <= number <= 1):
        yield changed(case, lambda name, value: number if name == chosen else value)


def apart(case: Case, number: float, place: int) -> Iterator[Case]:
    """Yield the case with rows of an operand so far apart, or where it begins there in its storage."""
    specs = cases.operands(case)
    fit = [number for number, spec in enumerate(specs) if spec.layout == CONTIGUOUS and spec.shape]
    if not fit or is_tied(case):
        return
    chosen, place = fit[place % len(fit)], place // len(fit)

    def laid(spec: TensorSpec) -> TensorSpec:
        more = int(number) - spec.shape[-1]
        if len(spec.shape) < 2 or more < 1 or place % 3 == 2:
            return msgspec.structs.replace(spec, layout=Layout(offset=int(number)))
        return msgspec.structs.replace(spec, layout=Layout(padding=(*(0,) * (len(spec.shape) - 1), more)))

    yield with_operand(case, chosen, laid)


_CHANGES: dict[str, Callable[[Case, float, int], Iterator[Case]]] = {"elements": _planted, "arguments": _given}
CHANGES = (*_CHANGES.values(), apart)
"""The changes that are not of sizes; each takes a number, and a place among those where it can be."""
