"""Decide which pairs of features one case can have.

A pair is infeasible only where it contradicts itself (a scalar tensor that is transposed), or where torch refuses every
call with both that can be made of cases that have either.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Any

import msgspec
import torch

from conformance import cases, features, runner
from conformance import spec as specs
from conformance.cases import Argument, Case, Same
from strategies import dtypes, layouts, values
from strategies.shapes import Shape
from strategies.specs import CONTIGUOUS, Special, TensorSpec

EXAMPLES = 6
"""The number of cases with each feature from which others are made."""
LARGEST = 1 << 18
"""The most elements of such a case: torch is asked about many."""


def _group(feature: str) -> str:
    return feature.partition("=")[0]


def _split(feature: str) -> tuple[str, str, str]:
    """Split a feature into the operand, the property and the class: ("1st", "layout", "permuted")."""
    group, _, one = feature.partition("=")
    operand, _, what = group.rpartition(" ")
    return operand, what, one


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
    (operand, what, one), (other, beside, another) = _split(first), _split(second)
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
            for candidate in _imposed(case, name):
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
                if any(pair <= self._features(fitted) and self.accepts(fitted) for fitted in _fitted(candidate)):
                    return True
        return not refused and "broadcast" not in (_group(first), _group(second))

    def _candidates(self, first: str, second: str) -> Iterator[tuple[frozenset[str], Case]]:
        """Yield calls that may have both features, made from those that have one; the likely ones first."""
        both = [(first, second), (second, first)]
        for one, other in both:
            for case in self._having.get(one, ()):
                yield from self._made(("imposed", id(case), other), _imposed(case, other))
        for one, other in both:
            for case, donor in itertools.product(self._having.get(one, ())[:2], self._having.get(other, ())[:2]):
                key = ("crossed", id(case), id(donor), *_split(other)[:2])
                yield from self._made(key, _crossed(case, donor, other))
        if {_split(first)[1], _split(second)[1]} <= {*_SHAPE, "broadcast"}:
            for case in (*self._having.get(first, ()), *self._having.get(second, ())):
                yield from self._made(("resized", id(case)), _resized(case))

    def _made(self, key: tuple, made: Iterable[Case]) -> Iterator[tuple[frozenset[str], Case]]:
        """Return calls that are made from others, with their features; each is made once, when it is first wanted."""
        if key not in self._known:
            self._known[key] = ((self._features(case), case) for case in made if not cases.misplaced(case))
        self._known[key], again = itertools.tee(self._known[key])
        return again

    def accepts(self, case: Case) -> bool | None:
        """Tell whether torch takes the call, whatever its values. None: it cannot be made, which says nothing."""
        plain = _plain(case)
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
        if not runner.is_out_of_memory(error):
            raise
        return None
    except (TypeError, ValueError):
        # A call made from others may give an argument twice, or lack one; then torch was not asked.
        return None
    return not refused and not _resizes_operand(prepared)


# --- calls made of others -----------------------------------------------------------------------------------------


def _smaller(case: Case) -> tuple[int, str]:
    return cases.elements(case), cases.case_id(case)


Key = int | str
"""The key of an argument: its place, or its name."""
_SHAPE = ("rank", "size", "row")
_SHAPES = {
    **{f"rank={rank}": [(2, 3, 5, 4, 3)[:rank], (1, 1, 1, 1, 1)[:rank]] for rank in range(6)},
    "size=empty": [(0,), (0, 3)], "size=one": [(), (1,), (1, 1)], "size=to 64": [(5,), (3, 5), (8,), (7,), (9,)],
    "size=to 1024": [(70,), (13, 17), (128,), (127,), (129,)],
    "size=more": [(1100,), (33, 47), (2048,), (2047,), (2049,)],
    "row=1": [(5, 1)], "row=power": [(4,), (3, 4)], "row=power - 1": [(7,), (3, 7)], "row=power + 1": [(9,), (3, 9)],
    "row=other": [(6,), (3, 6)],
}  # fmt: skip
"""Shapes by the feature that they show."""
_WHOLE = (2, 3, 2, 3, 5)
_BROADCASTS: dict[str, list[tuple[Shape, Shape]]] = {
    "equal": [(_WHOLE[-rank:], _WHOLE[-rank:]) for rank in (2, 3, 4, 5, 1)],
    "1xM": [((3, 5), (1, 5))], "Nx1": [((3, 5), (3, 1))], "Bx1xM": [((2, 3, 5), (2, 1, 5))],
    "1xHx1x1": [((2, 3, 4, row), (1, 3, 1, 1)) for row in (5, 4, 7, 6)],
    "M": [(_WHOLE[-rank:], (5,)) for rank in (2, 3, 4, 5)],
    "0-d": [(_WHOLE[-rank:], ()) for rank in (2, 3, 4, 5, 1)],
    "both": [((5,), (3, 1)), *(((*_WHOLE[-rank:-1], 1), (1, 5)) for rank in (2, 3, 4, 5))],
    "other": [(_WHOLE[-rank:], (1,)) for rank in (2, 3, 4, 5, 1)],
}  # fmt: skip
"""Shapes of two operands by how they broadcast, for each rank that the larger one may have."""
_MENU = (0, 1, 4, 7, 9, 6, 70, 1100)
_RECIPE = {kind: recipe for recipe, kind in reversed(features.VALUES.items())}
_SPECIAL = {kind: value for value, kind in reversed(features.SPECIALS.items())}


def _arguments(case: Case) -> dict[Key, Argument]:
    return {**dict(enumerate(case.args)), **case.kwargs}


def _replaced(case: Case, changed: Mapping[Key, Argument]) -> Case:
    """Return the case with other arguments."""
    args = tuple(changed.get(place, argument) for place, argument in enumerate(case.args))
    kwargs = {name: value for name, value in ({**case.kwargs, **changed}).items() if isinstance(name, str)}
    return msgspec.structs.replace(case, args=args, kwargs=kwargs, digests=())


def _keys(case: Case, operand: str) -> list[Key]:
    """Return the arguments that a feature may be about: the one that it names, or all."""
    arguments = _arguments(case)
    if operand in features.ORDINALS and (place := features.ORDINALS.index(operand)) in arguments:
        return [place]
    return [operand] if operand in arguments else list(arguments)


def _spec(spec: TensorSpec, **changes: Any) -> TensorSpec:
    """Return the spec with other fields; fields that no longer make sense get their defaults."""
    fields: dict[str, Any] = {name: getattr(spec, name) for name in spec.__struct_fields__} | changes
    if fields["values"] not in values.recipes_of(fields["dtype"]):
        fields["values"] = "normal"
    known = values.specials_of(fields["dtype"])
    fields["specials"] = tuple(special for special in fields["specials"] if special.value in known)
    try:
        fields["layout"].check(fields["shape"])
    except ValueError:
        fields["layout"] = CONTIGUOUS
    return TensorSpec(**fields)


def _imposed(case: Case, feature: str) -> Iterator[Case]:
    """Yield the case with one field of an operand, or of all, changed to show the feature."""
    operand, what, one = _split(feature)
    arguments = _arguments(case)
    changes: list[dict[str, Any]] = []
    if what == "broadcast":
        operands = [(key, x) for key, x in arguments.items() if isinstance(x, TensorSpec) and key != "out"][:2]
        for shapes in itertools.chain.from_iterable(
            itertools.permutations(pair, len(operands)) for pair in _BROADCASTS[one]
        ):
            fitting = zip(operands, shapes, strict=True)
            changed: dict[Key, Argument] = {key: _spec(spec, shape=shape) for (key, spec), shape in fitting}
            yield _replaced(case, changed)
            yield _without(_replaced(case, changed), "out")
    if what in _SHAPE:
        changes = [{"shape": shape} for shape in _SHAPES.get(f"{what}={one}", ())]
    elif what == "dtype":
        changes = [{"dtype": one}]
    elif what == "values" and one in _RECIPE:
        changes = [{"values": _RECIPE[one]}]
    elif what == "specials":
        changes = [{"specials": () if one == "none" else (Special(0, _SPECIAL[one]),)}]
    for key in _keys(case, operand):
        target = arguments[key]
        if not isinstance(target, TensorSpec):
            continue
        mine = changes
        if (what, one) == ("size", "empty"):
            # One dim at a time: another operand may have to fit the others.
            rank = len(target.shape)
            mine = [{"shape": (*target.shape[:dim], 0, *target.shape[dim + 1 :])} for dim in range(rank)] + changes
        if what == "layout":
            mine = [{"layout": layout} for layout in layouts.examples(target.shape, one)]
            if not mine:
                # A larger shape can have the layout: this one's or another operand's, with no dim of 0 or 1; else any.
                yield from _imposed_on_grown(case, key, one)
                mine = [{"shape": (2, 3, 4), "layout": layout} for layout in layouts.examples((2, 3, 4), one)]
        for change in mine:
            yield _replaced(case, {key: _spec(target, **change)})
            if what in ("dtype", *_SHAPE) or "shape" in change:
                # With all operands alike, and without an out, which has to fit.
                alike: dict[Key, Argument] = {
                    name: _spec(a, **change) for name, a in arguments.items() if isinstance(a, TensorSpec)
                }
                yield _replaced(case, alike)
                yield _without(_replaced(case, alike), "out")
                yield _without(_replaced(case, {key: _spec(target, **change)}), "out")


def _imposed_on_grown(case: Case, key: Key, kind: str) -> Iterator[Case]:
    """Yield the case with no dim below 2, and one operand with a layout: of its shape, or that of another."""
    grown = _turned(case, {0: 3, 1: 2})
    arguments = _arguments(grown)
    target = arguments[key]
    assert isinstance(target, TensorSpec)
    others = (spec for spec in arguments.values() if isinstance(spec, TensorSpec))
    for shape in dict.fromkeys((target.shape, *(spec.shape for spec in others))):
        for layout in layouts.examples(shape, kind):
            yield _replaced(grown, {key: _spec(target, shape=shape, layout=layout)})


def _without(case: Case, name: str) -> Case:
    return msgspec.structs.replace(case, kwargs={key: value for key, value in case.kwargs.items() if key != name})


def _crossed(case: Case, donor: Case, feature: str) -> Iterator[Case]:
    """Yield the case with arguments of another that has the feature: the one that it is about, or all of a kind."""
    operand, what, _ = _split(feature)
    mine, other = _arguments(case), _arguments(donor)
    for key in _keys(donor, operand or what):
        yield _replaced(case, {key: other[key]})
        target, given = mine.get(key), other[key]
        if isinstance(target, TensorSpec) and isinstance(given, TensorSpec):
            if what in _SHAPE:
                yield _replaced(case, {key: _spec(target, shape=given.shape)})
            if what == "layout":
                yield _replaced(case, {key: _spec(target, shape=given.shape, layout=given.layout)})
    yield msgspec.structs.replace(case, kwargs=donor.kwargs, digests=())
    yield msgspec.structs.replace(donor, kwargs=case.kwargs, digests=())


def _fitted(case: Case) -> Iterator[Case]:
    """Yield, where an operand is given for ``out``, the case with that one contiguous, and all operands of its
    shape."""
    out = case.kwargs.get("out")
    if isinstance(out, Same) and not out.is_view:
        written = cases.operands(case)[out.operand]
        alike: dict[Key, Argument] = {
            key: _spec(spec, shape=written.shape, **({"layout": CONTIGUOUS} if spec is written else {}))
            for key, spec in _arguments(case).items()
            if isinstance(spec, TensorSpec)
        }
        yield _replaced(case, alike)


def _resized(case: Case) -> Iterator[Case]:
    """Yield the case with other sizes; equal sizes stay equal, so that operands still fit each other."""
    arguments = _arguments(case)
    tensors = [argument for argument in arguments.values() if isinstance(argument, TensorSpec)]
    known = list(dict.fromkeys(size for spec in tensors for size in spec.shape))[:3]
    for chosen in itertools.product(_MENU, repeat=len(known)):
        turned = _turned(case, dict(zip(known, chosen, strict=True)))
        if all(math.prod(spec.shape) <= 1 << 14 for spec in cases.operands(turned)):
            yield turned


def _turned(case: Case, sizes: dict[int, int]) -> Case:
    """Return the case with some sizes replaced."""
    changed: dict[Key, Argument] = {}
    for key, argument in _arguments(case).items():
        if isinstance(argument, TensorSpec):
            changed[key] = _spec(argument, shape=tuple(sizes.get(size, size) for size in argument.shape))
        elif isinstance(argument, tuple):
            changed[key] = tuple(sizes.get(size, size) for size in argument)
    return _replaced(case, changed)


def _resizes_operand(prepared: runner.Prepared) -> bool:
    """Tell whether ``out`` is an operand of another size than the result: torch resizes it, and warns that it will
    not."""
    out, result = prepared.case.kwargs.get("out"), prepared.call.result
    return (
        isinstance(out, Same)
        and isinstance(result, torch.Tensor)
        and result.shape != cases.operands(prepared.case)[out.operand].shape
    )


def _plain(case: Case) -> Case:
    """Return the call with values that do not matter: positive, so that none is divided by zero."""

    def plain(argument: Argument) -> Argument:
        if not isinstance(argument, TensorSpec) or argument.values not in features.VALUES:
            return argument
        recipe = "normal" if argument.dtype == "bool" else "positive"
        return msgspec.structs.replace(argument, values=recipe, seed=0, specials=())

    return _replaced(case, {key: plain(argument) for key, argument in _arguments(case).items()})
