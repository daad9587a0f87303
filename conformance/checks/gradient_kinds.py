"""The kinds of gradients: how a case is differentiated follows from its seed."""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Sequence
from typing import Any

import msgspec
import torch

from conformance import call_contexts, calls, case_files, cases, forms, gradient_calls
from conformance.case_changes import is_tied, named_arguments, of_one_tensor, with_operand, with_size
from conformance.cases import Case, DType, Same
from conformance.checks.gradient_sizes import MOST, MOST_OF_ROWS
from conformance.checks.other_options import other_options
from conformance.checks.result_gradients import PLAIN, result_gradient
from conformance.spec import Call, registry
from strategies import dtypes, layouts
from strategies.specs import CONTIGUOUS, Layout, Special, TensorSpec
from strategies.tensors import materialize

OTHERS = ("twice", "overwritten", "between", "accumulated", "second order", "in place")
OTHERS += ("shared", "negated", "both", "chained")
"""The kinds of gradients. In plain ones that of the result is laid out in several ways, also as a part of a larger one,
of zeros, or one number with strides of 0, often 1. Or all are asked for twice, from one graph; or a tensor that may
have been saved is changed before they are; or calls with other contents are made and differentiated in between; or they
are added up in ``.grad``; or they are differentiated again; or the call is made in place; or the result's gradient is
that of another tensor, too, while the result is freed, or is negated when it is read; or two calls of the same operands
are differentiated at once, or a call of the result, to which another tensor is added."""
KINDS = (*PLAIN, *OTHERS)
PLAIN_SHARE = 4
"""The weight of all plain kinds together; each of the others has 1, "in place" 2."""
TELLING = ("contiguous", "transposed", "sliced", "cut", "twice", "between")
"""Those in which each element of the result has a gradient of its own."""
KINDS_OF_STEP = (*TELLING, "overwritten")
"""Those of a call of more than ``MOST_OF_ROWS`` elements."""
SETTINGS: tuple[dict[str, Any], ...] = ({}, {}, {}, {"deterministic": True}, {"default_dtype": "float16"})
"""Settings of the user, as in ``sequences.Settings``, while gradients are asked for."""
ORIGINS = ("leaf", "leaf", "parameter", "result")
"""Operands that require a gradient are tensors of the user, parameters, or results of another operator, as inside of a
model."""
EVALUATED = ("", "", "no_grad", gradient_calls.FROZEN, "inference")
"""The same call is made before in one of these modes, as of ``gradient_calls.EVALUATED``, or differentiated, as of
``FROZEN`` and ``STEPPED``; empty: it is not."""
STEPS = 3
"""Of so many calls that are not made before one is ``STEPPED``."""
SAVED = ("", "", "", "elsewhere", "checkpoint")
"""Autograd keeps what it saves as it is, as dense copies, or has it computed again, as of ``gradient_calls.SAVED``, for
plain kinds of gradients."""
TIED = 5
"""Of so many small calls one has two operands that are one tensor, or two views of it."""
EMPTY = 12
"""Of so many small calls one has a size of 0 in the place of one of its sizes: an expert that gets no tokens."""
AT_NUMBERS = 2
"""Of so many calls with floats for bounds one has elements that equal these."""
_NO_BOUNDS = ("alpha", "beta", "eps", "scale", "label_smoothing", "p")
"""Arguments with which elements are not compared."""
FORMS = (
    *(forms.BY_POSITION, forms.BY_NAME, forms.DEFAULTS, forms.NUMPY, forms.TENSORS, forms.SIZES, forms.ENUMS),
    *(forms.AXES, forms.DIM_ENUMS, forms.DIM_TENSORS, forms.FLAGS, call_contexts.NEGATED),
)
"""The forms in which a call is differentiated: those that change how arguments are written, and lazily negated
operands."""
IN_A_FORM = 2
"""Of so many calls one is in a form that is not the plain one."""


@dataclasses.dataclass(frozen=True)
class Wish:
    """One way in which a case is differentiated."""

    kind: str
    case: Case
    """The call, with finite operands where the case's NaN and infinities hide others."""
    wanted: tuple[int, ...]
    """The operands that require a gradient."""
    dout: TensorSpec
    """The gradient of the result."""
    overwritten: int | None = None
    """As ``wish["overwritten"]`` of ``runtime._differentiated``."""
    settings: dict[str, Any] = dataclasses.field(default_factory=dict)
    """One of ``SETTINGS``."""
    origin: str = "leaf"
    """One of ``ORIGINS``."""
    evaluated: str = ""
    """One of ``EVALUATED``, or ``STEPPED``."""
    saved: str = ""
    """One of ``SAVED``."""
    view: bool = False
    """Tells whether what is written in place is a view of another tensor that requires a gradient."""
    beside: Case | None = None
    """A call of the same operands with other options, which is made in between."""
    place: int | None = None
    """The operand that is like the result."""
    unasked: tuple[int, ...] = ()
    """Other operands that require a gradient which is not asked for, such as the weights of a layer."""

    @property
    def leaves(self) -> tuple[int, ...]:
        return *self.wanted, *self.unasked

    @property
    def twice(self) -> bool:
        return self.kind == "twice"

    def inputs(self) -> tuple[torch.Tensor, ...]:
        """Return the operands, and after them the gradient of the result."""
        specs = (*cases.operands(self.case), self.dout)
        return tuple(materialize(spec, number) for number, spec in enumerate(specs))

    def asked(self) -> dict[str, Any]:
        """Return the request to the judged process."""
        dout = len(cases.operands(self.case))
        asked: dict[str, Any] = {"wanted": self.wanted, "unasked": self.unasked, "dout": dout, "kind": self.kind}
        asked |= {"overwritten": self.overwritten, "saved": self.saved, "view": self.view, "place": self.place}
        asked |= {"settings": self.settings, "origin": self.origin, "evaluated": self.evaluated}
        return asked | {"beside": self._options(), "reused": True}

    def _options(self) -> dict[str, Any] | None:
        if self.beside is None:
            return None
        inputs = self.inputs()[:-1]
        args, kwargs = cases.bind(self.beside, inputs)
        named = {name: calls.encode(value, inputs) for name, value in kwargs.items()}
        return {"args": [calls.encode(value, inputs) for value in args], "kwargs": named}


def floating_operands(case: Case) -> list[int]:
    """Return the numbers of the operands that may require a gradient."""
    constants = registry()[case.op].constants(case)
    return [n for n, spec in enumerate(cases.operands(case)) if dtypes.is_floating(spec.dtype) and n not in constants]


def wish(case: Case, result: torch.Tensor) -> Wish:
    """Choose by its seed how a case is differentiated. ``result``: torch's, whose shape and dtype count."""
    seed = cases.seed(case)
    is_small = cases.elements(case) + result.numel() <= MOST
    if seed // 103 % TIED == 0 and (tied := _of_one_tensor(case, seed // (103 * TIED))) is not None:
        case, result = tied
    elif is_small and seed // 109 % EMPTY == 0 and (emptied := _emptied(case, seed // (109 * EMPTY))) is not None:
        case, result = emptied
    floating = floating_operands(case)
    one = (floating[seed % len(floating)],)
    # Of several operands each is often the only one: a bias alone, beside any options.
    some = one if seed // 97 % 2 else tuple(n for place, n in enumerate(floating) if seed >> place & 1) or one
    # Three of four cases hold finite numbers only: one NaN hides all others of its row or sum.
    asked = case if seed // 5 % 4 == 0 else tamed(case)
    if seed // 137 % AT_NUMBERS == 0:
        asked = _at_its_numbers(asked, floating[0])
    if seed // 53 % 3 == 0:
        asked = _as_heads_lie(asked, seed // 159)
    left_out = () if _is_in_place(case, result) else ("in place",)
    place = next((n for n in floating if _is_like(cases.operands(case)[n], result)), None)
    if place is None:
        left_out += ("chained",)
    if "distribution" in registry()[case.op].checks:
        # Another call draws other numbers.
        left_out += ("second order", "both", "chained")
    # Few calls are large, and what is wrong in one of its rows has to show.
    large = cases.elements(case) + result.numel() > MOST
    # In place there are two ways. Those of others are laid out as plain ones are.
    kinds = [one for one in (*OTHERS, "in place") if one not in left_out]
    kinds += [PLAIN[seed // 31 % len(PLAIN)]] * PLAIN_SHARE
    kind = kind_of_large(case, result.numel()) if large else kinds[seed // 23 % len(kinds)]
    dtype = str(result.dtype).removeprefix("torch.")
    changed = {"overwritten": _overwritten(case), "in place": _AFTER_IN_PLACE}.get(kind, [None])
    if kind == "second order":
        asked, dtype = _ordinary(tamed(case), dtype, widened=bool(seed // 67 % 3))
    dout = result_gradient(kind, tuple(result.shape), dtype, seed)
    # torch itself multiplies infinities by zeros that stand for no terms.
    dout = msgspec.structs.replace(dout, specials=()) if _is_empty(asked) else dout
    # The gradient of one operand may be of the others alone, and that of a change has to show.
    training = cases.elements(case) + result.numel() > MOST_OF_ROWS
    wanted = tuple(floating)
    if not training and kind != "overwritten":
        # Half of the time some; and the first alone, of a model's activations beside tables, masks and frozen weights.
        wanted = (wanted[:1] if seed // 89 % 3 == 0 else wanted, some)[seed // 3 % 2]
    settings = SETTINGS[seed // 37 % len(SETTINGS)]
    # What is changed does not follow from the kind, for which the seed is divided by 23.
    further = seed // (23 * len(KINDS))
    view = kind == "in place" and bool(further % 2)
    origin, evaluated = ORIGINS[seed // 71 % len(ORIGINS)], EVALUATED[seed // 73 % len(EVALUATED)]
    if not evaluated and seed // 131 % STEPS == 0:
        evaluated = gradient_calls.STEPPED
    if kind == "in place" or "distribution" in registry()[case.op].checks:
        # The call writes its operand, or would draw other numbers.
        evaluated = ""
    if evaluated == gradient_calls.FROZEN and len(wanted) < 2:
        evaluated = "no_grad"
    saved = SAVED[seed // 101 % len(SAVED)] if kind in PLAIN and not training else ""
    if kind not in ("second order", "in place") and seed // 107 % IN_A_FORM == 0:
        possible = [form for form in forms.possible(asked) if form in FORMS]
        form = possible[seed // (107 * IN_A_FORM) % len(possible)] if possible else ""
        asked = msgspec.structs.replace(asked, form=form)
    beside = other_options(asked, further) if kind == "between" else None
    alone = kind not in PLAIN or saved or evaluated == gradient_calls.FROZEN or seed // 127 % 2
    unasked = () if alone else tuple(n for n in floating if n not in wanted)
    how = origin, evaluated, saved, view, beside, place, unasked
    # Of a call in place its being one of a view is another choice.
    return Wish(kind, asked, wanted, dout, changed[further // 2 % len(changed)], settings, *how)


def _is_like(spec: TensorSpec, result: torch.Tensor) -> bool:
    return (spec.shape, dtypes.to_torch(spec.dtype)) == (tuple(result.shape), result.dtype)


def _of_one_tensor(case: Case, turn: int) -> tuple[Case, torch.Tensor] | None:
    """Return a small call with one tensor for two operands, the second turned, as of ``x @ x.T``, or the same, or with
    one for all of more, and its result on the meta device; None where torch takes no such call."""
    if is_tied(case):
        return None
    ways = [way for first in range(2) for way in _pairs(case, first)]
    whole = of_one_tensor(case)
    ways += [] if whole is None else [whole]
    start = turn % max(len(ways), 1)
    for made in (*ways[start:], *ways[:start]):
        call = case_files.on_meta(made)
        if call is None or not isinstance(call.result, torch.Tensor) or not call.result.is_floating_point():
            continue
        if cases.elements(made) + call.result.numel() <= MOST and _is_taken(made):
            return made, call.result
    return None


def _emptied(case: Case, turn: int) -> tuple[Case, torch.Tensor] | None:
    """Return a call with 0 in the place of one of the sizes, where operands have elements that are wanted all the same,
    and its result on the meta device; None where torch takes no such call."""
    specs = cases.operands(case)
    sizes = sorted({size for spec in specs for size in spec.shape if size > 1})
    start = turn % max(len(sizes), 1)
    for size in (*sizes[start:], *sizes[:start]):
        try:
            made = with_size(case, size, 0)
        # An impossible recipe.
        except ValueError:
            continue
        left = [cases.operands(made)[n].shape for n in floating_operands(made)]
        if made == case or all(0 in shape for shape in left):
            continue
        call = case_files.on_meta(made)
        if call is not None and isinstance(call.result, torch.Tensor) and call.result.is_floating_point():
            return (made, call.result) if _is_taken(made) else None
    return None


def _is_empty(case: Case) -> bool:
    return any(0 in spec.shape for spec in cases.operands(case))


def _is_taken(case: Case) -> bool:
    """Tell whether torch takes and defines a call of tensors with elements: on the meta device it looks at few sizes of
    attention."""
    (args, kwargs, _), spec = cases.materialize(case), registry()[case.op]
    try:
        with warnings.catch_warnings(action="ignore"):
            result = spec.reference(*args, **kwargs)
    # The classes with which torch refuses a call; any other error is a fault of the harness, and has to show.
    except (RuntimeError, TypeError, ValueError, IndexError):
        return False
    return not spec.left_out(Call(args, kwargs, result))


def _pairs(case: Case, first: int) -> list[Case]:
    """Return calls in which an operand and the next one are one tensor."""
    places = [place for place, argument in enumerate(case.args) if isinstance(argument, TensorSpec)][first : first + 2]
    pair, floating = cases.operands(case)[first : first + 2], floating_operands(case)
    if len(places) < 2 or pair[0].dtype != pair[1].dtype or not {first, first + 1} <= {*floating}:
        return []
    shape = pair[0].shape
    # Of a view of a tensor with gaps, or of which several elements have one address, autograd's own gradient fails.
    case = with_operand(case, first, lambda one: TensorSpec(shape, one.dtype, one.values, one.seed))

    def tied(case: Case, turned: bool) -> Case:
        args = [Same(first, turned=turned) if n == places[1] else one for n, one in enumerate(case.args)]
        return msgspec.structs.replace(case, args=tuple(args), digests=())

    if len(shape) < 2:
        return [tied(case, False)]
    side = (*shape[:-1], shape[-2])
    square = with_operand(case, first, lambda one: TensorSpec(side, one.dtype, one.values, one.seed))
    # A product needs no square.
    return [tied(case, True), tied(square, True), tied(case, False)]


def kind_of_large(case: Case, results: int) -> str:
    """Return the kind of gradients that a case of more than ``MOST`` elements is asked for, ``results`` of the result
    among them."""
    kinds = KINDS_OF_STEP if cases.elements(case) + results > MOST_OF_ROWS else TELLING
    return kinds[cases.seed(case) // 23 % len(kinds)]


def _is_in_place(case: Case, result: torch.Tensor) -> bool:
    """Tell whether a call can be made in place: its first operand is as its result is."""
    first = case.args[0] if case.args else None
    if not registry()[case.op].inplace or "inplace" in case.kwargs or not isinstance(first, TensorSpec):
        return False
    apart = not (layouts.overlaps(first.layout) or first.layout.expanded or is_tied(case))
    return apart and _is_like(first, result)


def tamed(case: Case) -> Case:
    """Return the case with finite numbers, but for what masks."""

    def plain(argument: Any) -> Any:
        if not isinstance(argument, TensorSpec) or not dtypes.is_floating(argument.dtype):
            return argument
        # A run of -inf is a mask, and zeros are finite.
        specials = tuple(one for one in argument.specials if (one.run > 1 and one.value == "-inf") or one.value == "-0")
        return msgspec.structs.replace(argument, specials=specials)

    named = {name: plain(argument) for name, argument in case.kwargs.items()}
    return msgspec.structs.replace(case, args=tuple(map(plain, case.args)), kwargs=named, digests=())


_ORDERS = {3: ((1, 0, 2), (0, 2, 1)), 4: ((0, 2, 1, 3), (0, 2, 3, 1)), 5: ((0, 2, 3, 4, 1),)}
"""Orders of dims in memory: of sequences, of heads, and of channels that come last."""


def _as_heads_lie(case: Case, number: int) -> Case:
    """Return the case with a contiguous first operand in another order: what is saved in the order of memory has to
    meet the result's gradient in its own."""
    first = case.args[0] if case.args else None
    if not isinstance(first, TensorSpec) or first.layout != CONTIGUOUS or is_tied(case):
        return case
    orders = _ORDERS.get(len(first.shape), ())
    if not orders:
        return case
    laid = msgspec.structs.replace(first, layout=Layout(order=orders[number % len(orders)]))
    return msgspec.structs.replace(case, args=(laid, *case.args[1:]), digests=())


def _at_its_numbers(case: Case, operand: int) -> Case:
    """Return the case with an operand of which a part equals the call's floats, as far as its dtype can hold them:
    there derivatives jump. Special values stay."""
    named = named_arguments(case).items()
    numbers = [one for name, one in named if isinstance(one, float) and name not in _NO_BOUNDS]
    spec = cases.operands(case)[operand]
    run = -(-math.prod(spec.shape) // (4 * max(len(numbers), 1)))
    if not numbers or not run or any(special.run > 1 for special in spec.specials):
        return case
    specials = tuple(Special(2 * place * run, repr(number), run) for place, number in enumerate(numbers))
    return with_operand(case, operand, lambda one: msgspec.structs.replace(one, specials=(*specials, *one.specials)))


def _ordinary(case: Case, dtype: str, widened: bool) -> tuple[Case, str]:
    """Return the case with ``ordinary`` numbers, of others second derivatives vanish, or are lost in roundings. Half
    types, if all is of one, are ``widened`` to float32. The other result is the dtype of the call's result."""
    floating = {spec.dtype for spec in cases.operands(case) if dtypes.is_floating(spec.dtype)} | {dtype}
    alike = (
        widened
        and len(floating) == 1
        and not floating & {"float64"}
        and not any(isinstance(one, DType) for one in (*case.args, *case.kwargs.values()))
    )
    return ordinary(case, "float32" if alike else None), "float32" if alike else dtype


def ordinary(case: Case, dtype: str | None = None) -> Case:
    """Return the case with numbers near 1, in floating-point operands of this dtype; None: of their own."""

    def plain(argument: Any) -> Any:
        if not isinstance(argument, TensorSpec) or not dtypes.is_floating(argument.dtype):
            return argument
        values = argument.values if argument.values in _KEPT else "normal"
        return msgspec.structs.replace(argument, values=values, dtype=dtype or argument.dtype)

    named = {name: plain(argument) for name, argument in case.kwargs.items()}
    return msgspec.structs.replace(case, args=tuple(map(plain, case.args)), kwargs=named, digests=())


_KEPT = ("normal", "positive", "unit", "uniform")


_AFTER_IN_PLACE = (None, -1)
"""Nothing, or the result, is changed after a call in place, as of ``Wish.overwritten``."""


def _overwritten(case: Case) -> Sequence[int | None]:
    """Return what can be changed in place: operands that have no two elements at one address, indices and masks among
    them, twice, since most backward passes are of these, and -1 for the result."""
    specs, floating = cases.operands(case), floating_operands(case)
    others = [n for n, spec in enumerate(specs) if not dtypes.is_floating(spec.dtype)]
    apart = [n for n in (*floating, *others) if not (layouts.overlaps(specs[n].layout) or specs[n].layout.expanded)]
    return [*apart, *apart, -1]
