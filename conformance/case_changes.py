"""Change the arguments of a case: by name, wherever a size is, or one operand alone. Whether torch takes what comes of
it is for the caller to find out.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping

import msgspec

from conformance import cases
from conformance.cases import Argument, Case, Same, View
from conformance.spec import parameters
from strategies.specs import Layout, TensorSpec
from strategies.values import LISTED


def named_arguments(case: Case) -> dict[str, Argument]:
    """Return the arguments of a call by name, as far as that is known."""
    return {**dict(zip(parameters(case.op), case.args, strict=False)), **case.kwargs}


def with_argument(case: Case, name: str, value: Argument) -> Case:
    """Return the call with another argument of a name; None: without it, where it is given by name."""
    place = dict(zip(parameters(case.op), range(len(case.args)), strict=False)).get(name)
    if place is not None:
        args = (*case.args[:place], value, *case.args[place + 1 :])
        return msgspec.structs.replace(case, args=args, digests=())
    kwargs = {key: one for key, one in case.kwargs.items() if key != name}
    if value is not None or name not in case.kwargs:
        kwargs[name] = value
    return msgspec.structs.replace(case, kwargs=kwargs, digests=())


def changed(case: Case, change: Callable[[str, Argument], Argument]) -> Case:
    """Return the case with each argument changed, by name: positional ones by that of torch's parameter, as far as
    known."""
    known = (*parameters(case.op), *("",) * len(case.args))
    args = tuple(change(name, value) for name, value in zip(known, case.args, strict=False))
    # In the order in which operands are numbered.
    kwargs = {name: change(name, case.kwargs[name]) for name in sorted(case.kwargs)}
    return msgspec.structs.replace(case, args=args, kwargs=kwargs, digests=())


def each_operand(case: Case, change: Callable[[TensorSpec], TensorSpec]) -> Case:
    """Return the case with each tensor changed; not where one argument is a part of another's memory."""
    if is_tied(case):
        return case
    return changed(case, lambda _, value: change(value) if isinstance(value, TensorSpec) else value)


def is_tied(case: Case) -> bool:
    """Tell whether an argument is a part of another's memory."""
    return any(isinstance(argument, Same | View) for argument in (*case.args, *case.kwargs.values()))


def of_one_tensor(case: Case) -> Case | None:
    """Return the call with one square tensor, or one of a batch of them, for all of three or more tensor arguments, as
    a polynomial of a matrix has it; None: they are fewer, or of several dtypes."""
    specs = [argument for argument in case.args if isinstance(argument, TensorSpec)]
    longest = max((spec.shape for spec in specs), key=len, default=())
    if is_tied(case) or len(specs) < 3 or len({spec.dtype for spec in specs}) > 1:
        return None
    shape = (*longest[:-2], *longest[-1:], *longest[-1:]) if len(longest) > 1 else longest
    first = TensorSpec(shape, specs[0].dtype, specs[0].values, specs[0].seed)
    places = [place for place, argument in enumerate(case.args) if isinstance(argument, TensorSpec)]
    args = [Same(0) if place in places else argument for place, argument in enumerate(case.args)]
    args[places[0]] = first
    return msgspec.structs.replace(case, args=tuple(args), digests=())


def bare(case: Case) -> Case:
    """Return the call with nothing but what it has to be given; torch may refuse it."""
    required = len(parameters(case.op, required=True))
    return msgspec.structs.replace(case, args=case.args[:required], kwargs={}, digests=())


def each_filled(case: Case, change: Callable[[TensorSpec], TensorSpec]) -> Case:
    """Return the case with each tensor changed but those whose numbers are listed."""
    return each_operand(case, lambda spec: spec if is_listed(spec) else change(spec))


def with_operand(case: Case, number: int, change: Callable[[TensorSpec], TensorSpec]) -> Case:
    """Return the case with one operand changed, of a number modulo that of all; as ``each_operand``."""
    chosen, counted = number % max(len(cases.operands(case)), 1), itertools.count()
    return each_operand(case, lambda spec: change(spec) if next(counted) == chosen else spec)


def laid(spec: TensorSpec, **changes: object) -> TensorSpec:
    return with_layout(spec, msgspec.structs.replace(spec.layout, **changes))


def with_layout(spec: TensorSpec, layout: Layout) -> TensorSpec:
    return msgspec.structs.replace(spec, layout=layout)


def is_listed(spec: TensorSpec) -> bool:
    """Tell whether its numbers are listed, as those of slots are, which have to be few."""
    return spec.values.startswith(LISTED)


def with_size(case: Case, was: int, wanted: int) -> Case:
    """Put another size in the place of one, as ``with_sizes``."""
    return with_sizes(case, {was: wanted})


def with_sizes(case: Case, wanted: Mapping[int, int]) -> Case:
    """Put other sizes in the place of some, wherever operands have them; not where one is part of another's memory."""

    def sizes(old: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(wanted.get(size, size) for size in old)

    def other(name: str, value: Argument) -> Argument:
        match value:
            case TensorSpec():
                return msgspec.structs.replace(value, shape=sizes(value.shape))
            case tuple() if name == "normalized_shape":
                return sizes(value)
        return value

    return case if is_tied(case) else changed(case, other)
