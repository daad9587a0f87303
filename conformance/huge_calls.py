"""Make calls past what is drawn otherwise: of more rows, elements and terms than a grid's second dim, 24 bits or two
stages of blocks hold; of strides and offsets beyond 2^24; and of the size of a training step, for its gradients.

Each is a drawn call that passed, with other sizes or distances. They are few, and judged by ``checks.OF_HUGE`` alone,
since one takes seconds.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import msgspec
import torch

from conformance import case_files, cases, huge_kinds
from conformance.case_changes import bare, each_filled, named_arguments, with_argument
from conformance.cases import Case, Same
from conformance.checks.gradient_kinds import KINDS_OF_STEP, kind_of_large
from conformance.code_draws import is_allowed
from conformance.spec import OpSpec
from strategies.dtypes import format_of, is_floating
from strategies.specs import CONTIGUOUS, Layout, TensorSpec

BYTES = 1 << 27
"""The most bytes of all operands of such a call together."""
WHOLE = 1 << 23
"""The most elements where no parts of a result can be judged alone."""
VOLUMES = 2
"""The calls of ``huge_kinds.VOLUME`` that differ in what is reduced, or broadcast."""
MOST_TERMS = 1 << 18
"""The most elements that go with each part of a result of more than ``ROWS`` elements."""
STARTS = 48
"""The most calls of which one of a kind is made."""
MOST_REDUCED = 1 << 10
"""Of a reduction as many elements or more go with one of a result."""
PLACES = 4
"""The sizes that give way, in turn."""
TELLING = ("normal", "uniform", "positive", "integers")
"""Recipes whose elements differ; others give way to the first."""

_ALIKE = ("constant", "zeros", "level", "one_hot")
"""Recipes of whole numbers and bools whose elements do not differ."""


def calls(spec: OpSpec, passed: Sequence[Case], dtypes: Sequence[str], dtype: str) -> list[Case]:
    """Return calls made of those that passed, all of one of the op's dtypes: each gets some of the kinds, one that is
    alone all of them, and calls of a training step."""
    small = starts(passed)
    # What is called with nothing but its operands takes the fast path, if there is one.
    plain = sorted((*map(bare, small), *small), key=_plainness)
    turn = sorted(dtypes).index(dtype)
    kinds = [ways for ways in huge_kinds.KINDS if ways[0] is not huge_kinds.outer or _has_parts(spec)]
    own = kinds[turn % len(kinds) :: len(dtypes)]
    made = [_first(spec, ways, plain) for ways in own]
    made = [one if one is None else _with_specials(spec, one) for one in made]
    if huge_kinds.MANY in own:
        if "distribution" in spec.checks:
            made.append(_first(spec, [huge_kinds.rare], plain))
        made.append(_in_place(spec, _first(spec, huge_kinds.MANY[::-1], plain)))
        fewer = partial(huge_kinds.elements, huge_kinds.FEWER_ELEMENTS)
        made.append(_ended(_first(spec, [*huge_kinds.MANY, fewer], plain)))
        # Beside a number or a row the kernel may be another one.
        made.append(_first(spec, huge_kinds.MANY, [case for case in plain if _is_of_one_shape(case)]))
    others = [one for one in sorted(dtypes) if one != "float64"]
    if dtype in others:
        made += _of_both(spec, _forms(small), others.index(dtype), len(others))
    # Those of half types take too long on some CPUs, but for a model's weights.
    is_quick = dtype == "float32" or "float32" not in dtypes
    numbers = huge_kinds.PRODUCTS * is_quick + huge_kinds.WEIGHTS * (dtype in others)
    products = [_first(spec, [partial(huge_kinds.product, sizes)], plain) for sizes in numbers]
    made += [huge_kinds.turned(one) if one and place % 2 else one for place, one in enumerate(products)]
    if kinds[0] in own:
        # Rows of another call as well: a plain one may not be of rows at all.
        made.append(_first(spec, kinds[0], small))
    if _has_parts(spec):
        made.append(_first(spec, [huge_kinds.many_dims], sorted(plain, key=_most_operands)))
    # Of float64 the oracle takes too long.
    training = [one for one in sorted(dtypes) if is_floating(one) and one != "float64"]
    if spec.gradients is not None and dtype in training:
        # Most that a backward pass adds up is of operands that are broadcast.
        several = sorted(plain, key=_most_operands)
        steps = [
            _first(spec, [partial(huge_kinds.step, step)], several[number:] + several[:number])
            for number, step in enumerate(huge_kinds.STEPS)
        ]
        steps.append(_first(spec, [partial(huge_kinds.step, huge_kinds.STEPS[0])], plain))
        if dtype == training[0]:
            made += [_of_equal(step) for step in steps if step is not None and _is_reduction(step)][:1]
        prompt = _first(spec, [huge_kinds.prompt], plain)
        # The oracle of attention repeats keys for each head that reads them.
        found = [step for step in (steps if prompt is None else [prompt]) if step is not None]
        wanted = KINDS_OF_STEP[training.index(dtype) :: len(training)]
        for number in range(max(len(wanted), len(found)) if found else 0):
            step = found[(number + number // len(found)) % len(found)]
            made.append(_of_kind(step, wanted[number % len(wanted)], number))
    return list({cases.case_id(case): case for case in made if case is not None}.values())


def _first(spec: OpSpec, ways: Sequence[huge_kinds.Kind], starts: Sequence[Case]) -> Case | None:
    # What is small itself may have a result twice as large as anything else, and so may what is of many elements; a
    # model's weights are larger than that, and a product's work is not that of its elements.
    more = {huge_kinds.outer: 2, huge_kinds.product: 4, huge_kinds.elements: 2}
    times = max(more.get(way.func if isinstance(way, partial) else way, 1) for way in ways)
    places = itertools.product(ways, range(PLACES), starts)
    made = (one for way, place, case in places for one in way(case, place, times * _room(spec, case)))
    allowed = (one for one in made if is_allowed(spec, one, times * _room(spec, one), huge_kinds.FLOAT64))
    return next((one for one in allowed if _is_quick(spec, one)), None)


def _is_quick(spec: OpSpec, case: Case) -> bool:
    """Tell whether the oracle need not evaluate all of a result of more than ``ROWS`` elements: of a single row no part
    can be computed alone."""
    call = case_files.on_meta(case)
    # Who leaves it out is not judged by it.
    if call is None or spec.left_out(call):
        return False
    largest = max(math.prod(one.shape) for one in cases.operands(case))
    count = sum(result.numel() for result in case_files.results(call))
    if max(largest, count) <= huge_kinds.ROWS + 1000 or count < largest:
        return True
    parts = spec.parts(call)
    if parts is None:
        return False
    named = {**dict(enumerate(call.args)), **call.kwargs}
    whole = (
        math.prod(size for size, axis in zip(named[key].shape, axes, strict=True) if axis is None)
        for key, axes in parts.axes.items()
    )
    return max(whole, default=1) <= MOST_TERMS


def starts(passed: Sequence[Case]) -> list[Case]:
    """Return some of the calls that can be changed, none with the shapes of another; without ``out``, which would be as
    large again."""
    found: dict[tuple[tuple[int, ...], ...], Case] = {}
    for case in sorted(passed, key=cases.seed):
        kept = {name: value for name, value in case.kwargs.items() if name != "out"}
        shapes = tuple(spec.shape for spec in cases.operands(case))
        if case.form or 0 in map(math.prod, shapes) or not any(map(len, shapes)) or _is_trivial(case):
            continue
        found.setdefault(shapes, each_filled(msgspec.structs.replace(case, kwargs=kept), _telling))
    return [*found.values()][:STARTS]


def _with_specials(spec: OpSpec, case: Case) -> Case:
    """Return the call with NaN and infinities near the end of its largest operand, if each of its elements goes with
    one element of the result, so that they hide nothing else."""
    call = case_files.on_meta(case)
    parts = spec.parts(call) if call is not None else None
    if parts is None or call is None or "distribution" in spec.checks:
        return case
    specs = cases.operands(case)
    most = max(math.prod(one.shape) for one in specs)
    named = {**dict(enumerate(call.args)), **call.kwargs}
    largest = [axes for key, axes in parts.axes.items() if named[key].numel() == most]
    # Of vectors, and of keys and values, nothing is said.
    is_alone = len(largest) == sum(math.prod(one.shape) == most for one in specs)
    return huge_kinds.with_specials(case, most) if is_alone and None not in itertools.chain(*largest) else case


def _is_reduction(case: Case) -> bool:
    """Tell whether each element of a result stands for many of an operand."""
    call = case_files.on_meta(case)
    counts = [result.numel() for result in case_files.results(call)] if call is not None else []
    return bool(counts) and min(counts) * MOST_REDUCED <= max(math.prod(one.shape) for one in cases.operands(case))


def _ended(case: Case | None) -> Case | None:
    """Return the call of a reduction with a number that outweighs all others at the end: of random ones nothing tells
    whether the last few count. None of other calls."""
    if case is None or not _is_reduction(case):
        return None
    return huge_kinds.with_largest(case, max(math.prod(one.shape) for one in cases.operands(case)))


def _of_equal(case: Case) -> Case:
    """Return the call with equal elements, which share a gradient."""
    return each_filled(case, lambda spec: msgspec.structs.replace(spec, values="constant", specials=()))


def _plainness(case: Case) -> tuple[int, int]:
    rank = max((len(spec.shape) for spec in cases.operands(case)), default=0)
    return len(case.args) + len(case.kwargs), abs(rank - 2)


def _is_of_one_shape(case: Case) -> bool:
    """Tell whether a call has several operands, all of one shape."""
    shapes = [spec.shape for spec in cases.operands(case)]
    return len(shapes) > 1 and len({*shapes}) == 1


def _most_operands(case: Case) -> int:
    return -sum(len(spec.shape) > 0 for spec in cases.operands(case))


def _is_trivial(case: Case) -> bool:
    """Tell whether nothing, or everything, is dropped, or an operand is multiplied by 0."""
    named = named_arguments(case)
    share = named.get("p")
    return (
        named.get("training") is False
        or 0 in (named.get("scale"), named.get("alpha"))
        or (isinstance(share, int | float) and not 0.01 < share < 0.99)
    )


def _telling(spec: TensorSpec) -> TensorSpec:
    # One NaN would hide all else of a sum.
    kept = spec.values in TELLING if is_floating(spec.dtype) else spec.values not in _ALIKE
    return msgspec.structs.replace(spec, values=spec.values if kept else TELLING[0], specials=())


def _has_parts(spec: OpSpec) -> bool:
    """Tell whether parts of the op's results can be judged alone."""
    return spec.parts is not OpSpec.parts


def _room(spec: OpSpec, case: Case) -> int:
    """Return how many elements all operands may have together."""
    room = BYTES // max((format_of(one.dtype).bits // 8 for one in cases.operands(case)), default=1) + (1 << 19)
    return room if _has_parts(spec) else min(room, WHOLE)


def _of_both(spec: OpSpec, forms: Sequence[Sequence[Case]], turn: int, count: int) -> Iterator[Case | None]:
    """Yield the calls of ``huge_kinds.BOTH`` and ``VOLUME``, of all forms in turn, every other one transposed; of so
    many dtypes each has some, those of its ``turn``."""
    fitting = [form for form in forms if _first(spec, [partial(huge_kinds.both, huge_kinds.BOTH[0])], form) is not None]
    for number in range(turn, len(huge_kinds.BOTH) if fitting else 0, count):
        form = fitting[(number + number // len(fitting)) % len(fitting)]
        case = _first(spec, [partial(huge_kinds.both, huge_kinds.BOTH[number])], form)
        yield huge_kinds.turned(case) if case is not None and number % 2 else case
    numbers = [len(huge_kinds.BOTH) + number for number in range(VOLUMES)]
    if not any(number % count == turn for number in numbers):
        return
    volumes = filter(None, (_first(spec, [huge_kinds.volume], form) for form in forms))
    for number, case in zip(numbers, volumes, strict=False):
        if number % count == turn:
            yield huge_kinds.turned(case) if number % 2 else case


def _forms(starts: Sequence[Case]) -> list[list[Case]]:
    """Return the calls by the dims that they are of, the last or others, and by the operands that are of one row or
    column, those first of which there are few."""
    found: dict[Any, list[Case]] = {}
    for case in starts:
        specs = cases.operands(case)
        rank = max((len(spec.shape) for spec in specs), default=0)
        dims = tuple(sorted({dim % rank == rank - 1 for dim in huge_kinds.dims(case)})) if rank else ()
        single = tuple(tuple(size == 1 for size in spec.shape[-2:]) for spec in specs)
        found.setdefault((dims, single), []).append(case)
    return sorted(found.values(), key=len)


def _in_place(spec: OpSpec, case: Case | None) -> Case | None:
    """Return the call with ``out=`` the operand that has the shape and dtype of its result; None where there is none. A
    kernel that computes twice, to choose a configuration or in two launches, reads what it wrote the first time."""
    call = case_files.on_meta(case) if case is not None else None
    if case is None or call is None or "input" not in spec.outs or not isinstance(call.result, torch.Tensor):
        return None
    found = tuple(call.result.shape), str(call.result.dtype).removeprefix("torch.")
    like = (number for number, one in enumerate(cases.operands(case)) if (one.shape, one.dtype) == found)
    return next((with_argument(case, "out", Same(number)) for number in like), None)


def _of_kind(step: Case, kind: str, turn: int) -> Case:
    """Return a call whose gradients are asked for in one way; of every third one the largest operands have rows that
    are parts of wider ones."""
    largest = max((spec.shape for spec in cases.operands(step)), key=math.prod)
    layout = Layout(padding=(*(0,) * (len(largest) - 1), 5), offset=1) if turn % 3 == 2 else CONTIGUOUS

    def laid(spec: TensorSpec, seed: int) -> TensorSpec:
        return msgspec.structs.replace(spec, layout=layout, seed=seed) if spec.shape == largest else spec

    made = (each_filled(step, lambda spec, seed=seed: laid(spec, seed)) for seed in range(256))
    return next((one for one in made if kind_of_large(one, 0) == kind), step)
