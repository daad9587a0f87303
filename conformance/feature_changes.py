"""Change calls so that they show a feature: one field of an operand, arguments taken from another call, other sizes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from conformance import cases, features
from conformance.cases import Argument, Case, Same
from strategies import layouts, values
from strategies.shapes import Shape
from strategies.specs import CONTIGUOUS, Special, TensorSpec


def split(feature: str) -> tuple[str, str, str]:
    """Split a feature into the operand, the property and the class: ("1st", "layout", "permuted")."""
    group, _, one = feature.partition("=")
    operand, _, what = group.rpartition(" ")
    return operand, what, one


Key = int | str
"""The key of an argument: its place, or its name."""
SHAPE = ("rank", "size", "row")
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


def imposed(case: Case, feature: str) -> Iterator[Case]:
    """Yield the case with one field of an operand, or of all, changed to show the feature."""
    operand, what, one = split(feature)
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
    if what in SHAPE:
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
            if what in ("dtype", *SHAPE) or "shape" in change:
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


def crossed(case: Case, donor: Case, feature: str) -> Iterator[Case]:
    """Yield the case with arguments of another that has the feature: the one that it is about, or all of a kind."""
    operand, what, _ = split(feature)
    mine, other = _arguments(case), _arguments(donor)
    for key in _keys(donor, operand or what):
        yield _replaced(case, {key: other[key]})
        target, given = mine.get(key), other[key]
        if isinstance(target, TensorSpec) and isinstance(given, TensorSpec):
            if what in SHAPE:
                yield _replaced(case, {key: _spec(target, shape=given.shape)})
            if what == "layout":
                yield _replaced(case, {key: _spec(target, shape=given.shape, layout=given.layout)})
    yield msgspec.structs.replace(case, kwargs=donor.kwargs, digests=())
    yield msgspec.structs.replace(donor, kwargs=case.kwargs, digests=())


def fitted(case: Case) -> Iterator[Case]:
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


def resized(case: Case) -> Iterator[Case]:
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


def with_plain_values(case: Case) -> Case:
    """Return the call with values that do not matter: positive, so that none is divided by zero."""

    def plain(argument: Argument) -> Argument:
        if not isinstance(argument, TensorSpec) or argument.values not in features.VALUES:
            return argument
        recipe = "normal" if argument.dtype == "bool" else "positive"
        return msgspec.structs.replace(argument, values=recipe, seed=0, specials=())

    return _replaced(case, {key: plain(argument) for key, argument in _arguments(case).items()})
