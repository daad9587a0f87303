"""Forms of a call: other ways to write one, which mean the same.

``Case.form`` names one. ``args`` and ``kwargs`` of a case stay as they are in the plain form, so that only the code
that makes the call knows other forms.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any

import msgspec
import numpy as np
import torch
from torch.overrides import get_testing_overrides

from conformance import call_contexts, cases, runtime
from conformance import spec as specs
from conformance.case_changes import is_tied
from conformance.cases import Case, NonFinite, Same, Variant, View
from conformance.spec import Call, Expected
from strategies.dtypes import is_floating
from strategies.specs import CONTIGUOUS, TensorSpec

BY_POSITION, BY_NAME, DEFAULTS, NUMPY = "by position", "by name", "defaults", "NumPy scalars"
TENSORS, SIZES, ENUMS = "0-d tensors", "sizes", "enums"
AXES, DIM_ENUMS, DIM_TENSORS, FLAGS = "NumPy's names", "dims as enums", "dims as tensors", "flags as ints"
FORMS = (
    BY_POSITION,
    BY_NAME,
    DEFAULTS,
    NUMPY,
    TENSORS,
    SIZES,
    ENUMS,
    AXES,
    DIM_ENUMS,
    DIM_TENSORS,
    FLAGS,
    call_contexts.PARAMETERS,
    call_contexts.NEGATED,
    call_contexts.WIDE,
    call_contexts.OWN,
)
FORMS += (
    call_contexts.TRAINING,
    call_contexts.TOGETHER,
    call_contexts.ADJACENT,
    call_contexts.COLUMNS,
    call_contexts.ROWS,
    call_contexts.INFERENCE,
    call_contexts.DETERMINISTIC,
    call_contexts.THREADS,
    call_contexts.STRICT,
    call_contexts.LEAVES,
    call_contexts.UPDATED,
    call_contexts.KEPT,
    call_contexts.VIEWS,
    call_contexts.FOREIGN,
    call_contexts.ENTIRE,
    call_contexts.ALONE,
    call_contexts.ANOMALIES,
)
"""The forms: optional arguments by position as far as torch takes them so; some positional arguments by name, in
another order; optional arguments with their default values; NumPy numbers, also in tuples; factors and the like as
tensors; tuples as ``torch.Size`` or lists; strings as members of an enum of strings; dims by the names that NumPy has
for them, as members of an enum of ints, or as 0-d tensors; True and False as 1 and 0; and those of
``conformance.call_contexts``."""

_ALIKE = (BY_NAME, NUMPY, TENSORS, ENUMS, call_contexts.TOGETHER, call_contexts.ADJACENT)
_ALIKE += (call_contexts.COLUMNS, call_contexts.ROWS, call_contexts.KEPT)
_ALIKE += (call_contexts.INFERENCE, call_contexts.DETERMINISTIC, call_contexts.THREADS, call_contexts.STRICT)
_ALIKE += (call_contexts.VIEWS, call_contexts.ENTIRE)
"""The forms in which torch's result is that of the plain form."""
MAY_BE_REFUSED = (AXES, DIM_TENSORS, FLAGS)
"""The forms that only some of torch's functions take as a matter of course: a TypeError is no failure."""
FACTORS = ("alpha", "beta", "eps", "p", "scale")
"""Parameters that are numbers, for which torch's functions take 0-d tensors, whatever their dtype."""

WIDE_ELEMENTS = 1 << 10
"""The most elements of operands that are not floating-point where the default dtype is float64, to which they may be
converted."""

Arguments = tuple[list[Any], dict[str, Any]]


def possible(case: Case) -> list[str]:
    """Return the forms, other than the plain one, that this case can have."""
    return [form for form in FORMS if _POSSIBLE[form](case)]


def asked(case: Case) -> Case:
    """Return the call that torch is asked: in its form, of which torch may take less than is documented; but in the
    plain form where torch takes the form whatever the call, and its CPU substitutes do not."""
    return msgspec.structs.replace(case, form="") if case.form in _ALIKE else case


def arguments(case: Case, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Arguments:
    """Return the arguments of the call in its form, from those in the plain form: values, or the texts of them."""
    args, kwargs = list(args), dict(kwargs)
    if case.form not in (BY_POSITION, BY_NAME, DEFAULTS, AXES):
        return args, kwargs
    names = by_position(case.op)
    if case.form == AXES:
        named = dict(zip(names[1:], args[1:], strict=False)) | kwargs
        return args[:1], {_NUMPYS.get(name, name): value for name, value in named.items()}
    if case.form == BY_POSITION:
        last = max((place for place, name in enumerate(names) if name in kwargs), default=-1)
        for name in names[len(args) : last + 1]:
            args.append(kwargs.pop(name) if name in kwargs else default(case.op, name))
    if case.form == BY_NAME:
        # A single argument is named; of several the first few stay positional.
        kept = cases.seed(case) % max(len(args), 1)
        named = dict(zip(names[kept:], args[kept:], strict=False))
        return args[:kept], dict(reversed([*named.items(), *kwargs.items()]))
    if case.form == DEFAULTS:
        kwargs |= {name: default(case.op, name) for name in _left(case)}
    return args, kwargs


def bind(case: Case, tensors: Sequence[torch.Tensor]) -> Arguments:
    """Return ``(args, kwargs)`` of the call in its form, with these tensors as the operands."""
    args, kwargs = cases.bind(case, tensors)
    if case.form == NUMPY:
        turn = cases.seed(case)
        args = tuple(of_numpy(value, turn) for value in args)
        kwargs = {name: of_numpy(value, turn) for name, value in kwargs.items()}
    if case.form == TENSORS:
        kwargs = {name: of_torch(value) if is_factor(name, value) else value for name, value in kwargs.items()}
    if case.form == SIZES:
        make = sizes(case)
        args = tuple(make(value) if type(value) is tuple else value for value in args)
    if case.form == ENUMS:
        args = tuple(runtime.enum_member(value) if type(value) is str else value for value in args)
        kwargs = {name: runtime.enum_member(value) if type(value) is str else value for name, value in kwargs.items()}
    if case.form in (DIM_ENUMS, DIM_TENSORS):
        places, names = dims(case)
        args = tuple(_dim(case.form, value) if place in places else value for place, value in enumerate(args))
        kwargs = {name: _dim(case.form, value) if name in names else value for name, value in kwargs.items()}
    if case.form == FLAGS:
        places, names = flags(case)
        args = tuple(int(value) if place in places else value for place, value in enumerate(args))
        kwargs = {name: int(value) if name in names else value for name, value in kwargs.items()}
    return arguments(case, args, kwargs)


def flags(case: Case) -> tuple[list[int], list[str]]:
    """Return the places and the names of the arguments that are flags: bools whose default is a bool, too."""
    known = signature(case.op)

    def is_flag(name: str, value: object) -> bool:
        return type(value) is bool and name in known and type(known[name].default) is bool

    named = enumerate(zip(specs.parameters(case.op), case.args, strict=False))
    places = [place for place, (name, value) in named if is_flag(name, value)]
    return places, [name for name, value in case.kwargs.items() if is_flag(name, value)]


_NUMPYS = {"dim": "axis", "keepdim": "keepdims"}


def dims(case: Case) -> tuple[list[int], list[str]]:
    """Return the places and the names of the arguments that are dims, which are whole numbers or tuples of these."""
    parameters = specs.parameters(case.op)

    def are_dims(name: str, value: object) -> bool:
        return name == "dim" and (
            type(value) is int or (type(value) is tuple and all(type(one) is int for one in value))
        )

    places = [
        place for place, (name, value) in enumerate(zip(parameters, case.args, strict=False)) if are_dims(name, value)
    ]
    return places, [name for name, value in case.kwargs.items() if are_dims(name, value)]


def _dim(form: str, value: Any) -> Any:
    if type(value) is tuple:
        return tuple(_dim(form, one) for one in value)
    return runtime.int_enum_member(value) if form == DIM_ENUMS else torch.tensor(value)


def _has_dims(case: Case) -> bool:
    return is_torchs(case.op) and any(dims(case))


def of_numpy(value: Any, turn: int = 0) -> Any:
    """Return a number as one of the NumPy scalars that hold it, in turn; of a tuple each number. A bool stays: torch
    takes one of NumPy for a float."""
    if type(value) is tuple:
        return tuple(of_numpy(one, turn) for one in value)
    kinds: list[Any] = []
    if type(value) is float:
        with np.errstate(over="ignore"):
            kinds = [kind for kind in _FLOATS if float(kind(value)) == value or value != value]
    if type(value) is int:
        kinds = [kind for kind in _INTEGERS if np.iinfo(kind).min <= value <= np.iinfo(kind).max]
    return kinds[turn // 3 % len(kinds)](value) if kinds else value


_FLOATS = (np.float16, np.float32, np.float64)
# Not of 8 bits: NumPy refuses ordinary arithmetic of these with sizes, and nobody counts with them.
_INTEGERS = (np.int32, np.uint32, np.int64)


def of_torch(value: float) -> torch.Tensor:
    """Return a number as a 0-d CPU tensor that holds it: float32 where that does, else float64; int64 for an int."""
    if type(value) is int:
        return torch.tensor(value)
    narrow = torch.tensor(value, dtype=torch.float32)
    return narrow if narrow.item() == value else torch.tensor(value, dtype=torch.float64)


def sizes(case: Case) -> type:
    """Return the type that takes the place of tuples."""
    return (torch.Size, list)[cases.seed(case) % 2]


def is_factor(name: str, value: object) -> bool:
    """Tell whether a keyword argument is a number that may be a tensor."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return name in FACTORS and number and math.isfinite(value)


def expected(spec: specs.OpSpec, case: Case, call: Call) -> Expected | tuple[Expected, ...]:
    """Return the oracle's answer, which the default dtype may decide."""
    with call_contexts.surroundings(case.form):
        return spec.expected(call)


def by_position(op: str) -> tuple[str, ...]:
    """Return the names of the parameters that torch takes by position."""
    return _by_position(op, specs.registry()[op].reference)


@cache
def _by_position(op: str, reference: Callable[..., Any]) -> tuple[str, ...]:
    names, required = specs.parameters(op), specs.parameters(op, required=True)
    # Where the reference is not torch's function, that function tells, unless it is another operator of the same name.
    function = getattr(torch.nn.functional, op, None)
    table = get_testing_overrides().get(function)
    if reference is function or table is None or not inspect.signature(table).parameters.keys() >= {*required}:
        return names
    return tuple(name for name in names if name in inspect.signature(table).parameters)


def signature(op: str) -> Mapping[str, inspect.Parameter]:
    """Return the parameters of the reference, by name."""
    return _signature_of(specs.registry()[op].reference)


@cache
def _signature_of(reference: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(reference).parameters
    except ValueError:
        # Functions in C++ have no signature; torch has a table of them.
        return inspect.signature(get_testing_overrides()[reference]).parameters


def default(op: str, name: str) -> Any:
    """Return the default value of a parameter."""
    return signature(op)[name].default


def _left(case: Case) -> list[str]:
    """Return the optional parameters that the call does not give."""
    named = by_position(case.op)
    theirs = [name for name in signature(case.op) if name in named or name not in specs.parameters(case.op)]
    # torch has the dtype of a product's result in another overload, which wants one.
    given = {*named[: len(case.args)], *case.kwargs, "out_dtype"}
    return [name for name in theirs if name not in given and default(case.op, name) is not inspect.Parameter.empty]


def _numbers(case: Case) -> bool:
    arguments = (*case.args, *case.kwargs.values())
    return any(isinstance(x, int | float | tuple | NonFinite) and not isinstance(x, bool) for x in arguments)


def is_torchs(op: str) -> bool:
    """Tell whether torch has a function of this name."""
    return hasattr(torch, op) or hasattr(torch.nn.functional, op)


def _factors(case: Case) -> bool:
    return is_torchs(case.op) and any(is_factor(name, value) for name, value in case.kwargs.items())


def _separate(case: Case) -> bool:
    """Tell whether an operand that is only read can be negated: no other is a part of its memory."""
    if any(isinstance(x, View) or (isinstance(x, Same) and x.is_view) for x in (*case.args, *case.kwargs.values())):
        return False
    writes = specs.registry()[case.op].writes(case)
    stay = call_contexts.kept(call_contexts.NEGATED, writes, case.kwargs.get("inplace") is True)
    dtypes = {spec.dtype for number, spec in enumerate(cases.operands(case)) if number not in stay}
    return any(name != "bool" and not name.startswith("float8") for name in dtypes)


def _differentiable(case: Case) -> bool:
    """Tell whether all floating-point operands may require a gradient. With ``out=`` torch refuses it, unless results
    have none."""
    spec, operands = specs.registry()[case.op], cases.operands(case)
    if "out" in case.kwargs and spec.gradients is not None:
        return False
    # torch refuses it of constants, too.
    if any(number < len(operands) for number in spec.constants(case)):
        return False
    writes = spec.writes(case)
    return any(is_floating(one.dtype) for number, one in enumerate(operands) if number not in writes)


def _several(case: Case) -> bool:
    """Tell whether several operands are only read."""
    return len(cases.operands(case)) - len(specs.registry()[case.op].writes(case)) > 1


def _side_by_side(case: Case, columns: bool) -> bool:
    """Tell whether two operands that are only read fit beside each other, as ``call_contexts.parts`` lays them."""
    writes = specs.registry()[case.op].writes(case)
    read = [spec for number, spec in enumerate(cases.operands(case)) if number not in writes]
    whole = [spec for spec in read if len(spec.shape) > 1 and spec.layout == CONTIGUOUS]
    fit = [(spec.dtype, spec.shape[:-1] if columns else spec.shape) for spec in whole]
    return not is_tied(case) and len({*fit}) < len(fit)


def _written_where_recorded(case: Case) -> bool:
    """Tell whether a call in place writes an operand that may require a gradient. Of ``out=``, which may be resized,
    ``checks.forms`` makes such calls."""
    spec, operands = specs.registry()[case.op], cases.operands(case)
    if case.kwargs.get("inplace") is not True or any(isinstance(x, Same | View) for x in case.args):
        return False
    return is_torchs(case.op) and any(is_floating(operands[number].dtype) for number in spec.writes(case))


def _narrow(case: Case) -> bool:
    """Tell whether results of the default dtype, float64, are few enough to be evaluated."""
    whole = (spec for spec in cases.operands(case) if not is_floating(spec.dtype))
    return all(math.prod(spec.shape) <= WIDE_ELEMENTS for spec in whole)


_POSSIBLE: dict[str, Callable[[Case], bool]] = {
    BY_POSITION: lambda case: any(name in case.kwargs for name in by_position(case.op)),
    # torch's table of signatures may end before the last argument, as for torch.sum(input, dim, keepdim).
    BY_NAME: lambda case: 1 < len(case.args) <= len(by_position(case.op)) and isinstance(case.args[0], TensorSpec),
    DEFAULTS: lambda case: isinstance(case.args[0], TensorSpec) and bool(_left(case)),
    NUMPY: _numbers,
    TENSORS: _factors,
    SIZES: lambda case: any(type(argument) is tuple for argument in case.args),
    ENUMS: lambda case: any(type(argument) is str for argument in (*case.args, *case.kwargs.values())),
    AXES: lambda case: _has_dims(case) and len(case.args) <= len(by_position(case.op)),
    DIM_ENUMS: _has_dims,
    DIM_TENSORS: _has_dims,
    FLAGS: lambda case: any(flags(case)),
    call_contexts.PARAMETERS: lambda case: any(spec.shape and is_floating(spec.dtype) for spec in cases.operands(case)),
    call_contexts.NEGATED: _separate,
    call_contexts.WIDE: _narrow,
    call_contexts.TRAINING: _differentiable,
    call_contexts.TOGETHER: _several,
    call_contexts.ADJACENT: _several,
    call_contexts.COLUMNS: partial(_side_by_side, columns=True),
    call_contexts.ROWS: partial(_side_by_side, columns=False),
    call_contexts.LEAVES: _written_where_recorded,
    call_contexts.UPDATED: _written_where_recorded,
    call_contexts.INFERENCE: lambda case: True,
    # What is written has to be an ordinary tensor, and torch takes no other as an operand that is one with it.
    call_contexts.KEPT: lambda case: not specs.registry()[case.op].writes(case) and not is_tied(case),
    # torch may resize an ``out``; of one of the right size ``checks.forms`` makes such calls.
    call_contexts.ENTIRE: lambda case: "out" not in case.kwargs,
    call_contexts.VIEWS: lambda case: "out" not in case.kwargs,
    # torch refuses it, which ``checks.forms`` judges.
    call_contexts.FOREIGN: lambda case: False,
    call_contexts.DETERMINISTIC: lambda case: True,
    call_contexts.ALONE: lambda case: True,
    call_contexts.ANOMALIES: _differentiable,
    call_contexts.THREADS: lambda case: True,
    # torch warns of an ``out`` that it resizes.
    call_contexts.STRICT: lambda case: "out" not in case.kwargs,
    call_contexts.OWN: lambda case: any(isinstance(argument, Variant) for argument in case.kwargs.values()),
}
