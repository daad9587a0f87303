"""Make calls past what is drawn otherwise: of more rows, elements and terms than a grid's second dim, 24 bits or two
stages of blocks hold; of strides and offsets beyond 2^24; and of the size of a training step, for its gradients.

Each is a drawn call that passed, with other sizes or distances. They are few, and judged by ``checks.OF_HUGE`` alone,
since one takes seconds.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import msgspec
import torch

from conformance import case_files, cases
from conformance.case_changes import bare, changed, each_filled, is_tied, named_arguments, with_argument
from conformance.cases import Argument, Case, Same
from conformance.checks.gradient_kinds import KINDS_OF_STEP, kind_of_large
from conformance.code_draws import apart, is_allowed, sized
from conformance.spec import OpSpec
from strategies.dtypes import format_of, is_floating
from strategies.specs import CONTIGUOUS, Layout, Special, TensorSpec

BYTES = 1 << 27
"""The most bytes of all operands of such a call together."""
WHOLE = 1 << 23
"""The most elements where no parts of a result can be judged alone."""
ROWS = (1 << 24) + (1 << 17) + 333
"""More than 65,535 tiles of 256 rows, and than float32 and 24 bits count."""
ELEMENTS = (1 << 26) + 65_541, (1 << 25) + 2_077, (1 << 24) + 65_541
"""More than 65,535 blocks of 1,024, 512 and 256: the first of them that fits."""
TERMS, FLOAT64 = (1 << 17) + 389, (1 << 15) + 77
"""Those of a sum, or the columns of a row. Float64 is judged in more than its precision, which is slow."""
DISTANCE = (1 << 24) + 3
"""Elements from row to row, or in front of the first: odd, so that float32 does not hold it."""
OUTER = (8_209, 8_221)
"""Sizes of two small operands whose result has more than 2^26 elements."""
MANY_DIMS, BROADCAST_DIMS, FEW = 18, 3, 1 << 10
"""More dims than 16, of which so many are broadcast from either side, for calls of few elements."""
_OF_LAST_DIMS = ("weight", "bias")
"""Operands of the normalized dims."""
STEP = (8_219, 1_031)
"""Tokens and columns: more than 128 blocks of 64 rows, and than one block of 1,024 columns."""
BOTH = (8_209, 4_093)
"""Rows and columns that are many, and elements that 25 bits do not count."""
FORMS = 3
"""The calls of that size that differ in what is reduced, or broadcast."""
WORK = 1 << 33
"""The most multiplications of a call of that size."""
MOST_TERMS = 1 << 18
"""The most elements that go with each part of a result of more than ``ROWS`` elements."""
STARTS = 48
"""The most calls of which one of a kind is made."""
PLACES = 4
"""The sizes that give way, in turn."""
TELLING = ("normal", "uniform", "positive", "integers")
"""Recipes whose elements differ; others give way to the first."""

_ALIKE = ("constant", "zeros", "level", "one_hot")
"""Recipes of whole numbers and bools whose elements do not differ."""

Kind = Callable[[Case, int, int], Iterator[Case]]
"""Makes calls of one, with sizes from a place on, of up to so many elements."""


def calls(spec: OpSpec, passed: Sequence[Case], dtypes: Sequence[str], dtype: str) -> list[Case]:
    """Return calls made of those that passed, all of one of the op's dtypes: each gets some of the kinds, one that is
    alone all of them, and calls of a training step."""
    small = starts(passed)
    # What is called with nothing but its operands takes the fast path, if there is one.
    plain = sorted((*map(bare, small), *small), key=_plainness)
    turn = sorted(dtypes).index(dtype)
    kinds = [ways for ways in KINDS if ways[0] is not _outer or _has_parts(spec)]
    own = kinds[turn % len(kinds) :: len(dtypes)]
    made = [_first(spec, ways, plain) for ways in own]
    if _ELEMENTS in own:
        found = (_first(spec, [_both], form) for form in _forms(small))
        made += itertools.islice(filter(None, found), FORMS)
        made.append(_in_place(spec, _first(spec, _ELEMENTS[::-1], plain)))
    if kinds[0] in own:
        # Rows of another call as well: a plain one may not be of rows at all.
        made.append(_first(spec, kinds[0], small))
    if _has_parts(spec):
        made.append(_first(spec, [_many_dims], sorted(plain, key=_most_operands)))
    # Of float64 the oracle takes too long.
    training = [one for one in sorted(dtypes) if is_floating(one) and one != "float64"]
    if spec.gradients is not None and dtype in training:
        steps = [
            _first(spec, [_many_rows], plain),
            _first(spec, [_wide_rows], plain),
            _first(spec, [_many_rows], small),
        ]
        found = [step for step in steps if step is not None]
        wanted = KINDS_OF_STEP[training.index(dtype) :: len(training)] if found else ()
        made += [
            _of_kind(found[(number + number // len(found)) % len(found)], kind, number)
            for number, kind in enumerate(wanted)
        ]
    return list({cases.case_id(case): case for case in made if case is not None}.values())


def _first(spec: OpSpec, ways: Sequence[Kind], starts: Sequence[Case]) -> Case | None:
    # What is small itself may have a result twice as large as anything else.
    times = 2 if _outer in ways else 1
    made = (
        one for way in ways for place in range(PLACES) for case in starts for one in way(case, place, _room(spec, case))
    )
    allowed = (one for one in made if is_allowed(spec, one, times * _room(spec, one), FLOAT64))
    return next((one for one in allowed if _is_quick(spec, one)), None)


def _is_quick(spec: OpSpec, case: Case) -> bool:
    """Tell whether the oracle need not evaluate all of a result of more than ``ROWS`` elements: of a single row no part
    can be computed alone."""
    call = case_files.on_meta(case)
    if call is None:
        return False
    largest = max(math.prod(one.shape) for one in cases.operands(case))
    count = sum(result.numel() for result in case_files.results(call))
    if max(largest, count) <= ROWS + 1000 or count < largest:
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


def _plainness(case: Case) -> tuple[int, int]:
    rank = max((len(spec.shape) for spec in cases.operands(case)), default=0)
    return len(case.args) + len(case.kwargs), abs(rank - 2)


def _most_operands(case: Case) -> int:
    return -sum(len(spec.shape) > 0 for spec in cases.operands(case))


def _is_trivial(case: Case) -> bool:
    """Tell whether nothing, or everything, is dropped."""
    named = named_arguments(case)
    share = named.get("p")
    return named.get("training") is False or (isinstance(share, int | float) and not 0.01 < share < 0.99)


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


# --- kinds ---------------------------------------------------------------------------------------------------------


def _rows(case: Case, place: int, room: int) -> Iterator[Case]:
    for one in sized(_dense(case), [ROWS], place, room):
        columns = any(spec.shape[-1] == ROWS for spec in cases.operands(one) if len(spec.shape) > 1)
        if not columns and not _is_reduced(one, ROWS):
            yield _marked(one, True)


def _elements(number: int, case: Case, place: int, room: int) -> Iterator[Case]:
    for one in sized(_dense(case), [number], place, room):
        # Two operands of other shapes that share a size have it for terms: these would be too many.
        if len({spec.shape for spec in cases.operands(one) if number in spec.shape}) == 1:
            yield _marked(one, False)


def _is_reduced(case: Case, size: int) -> bool:
    """Tell whether a dim of that size, and not the last one, is named: torch's CPU adds up so many in float32."""
    shape = cases.operands(case)[0].shape
    return len(shape) > 0 and any(one % len(shape) < len(shape) - 1 and shape[one] == size for one in _dims(case))


def _dims(case: Case) -> list[int]:
    dim = named_arguments(case).get("dim")
    return [one for one in (dim if isinstance(dim, tuple) else (dim,)) if isinstance(one, int)]


def _terms(shared: bool, case: Case, place: int, room: int) -> Iterator[Case]:
    number = FLOAT64 if any(spec.dtype == "float64" for spec in cases.operands(case)) else TERMS
    for one in sized(_dense(case), [number], place, min(4 * number, room), FLOAT64):
        shapes = [spec.shape for spec in cases.operands(one)]
        named = [shapes[0][dim] for dim in _dims(one)]
        having = sum(number in shape for shape in shapes)
        is_last = any(shape[-1:] == (number,) for shape in shapes)
        # The terms of a product are in both factors.
        if is_last and (not named or number in named) and (having > 1 or not shared or len(shapes) == 1):
            yield one


def _outer(case: Case, place: int, room: int) -> Iterator[Case]:
    for one in sized(case, OUTER, place, room):
        shapes = [spec.shape for spec in cases.operands(one)]
        if {*OUTER} <= {*itertools.chain(*shapes)} and not any({*OUTER} <= {*shape} for shape in shapes):
            yield one


def _strides(case: Case, place: int, room: int) -> Iterator[Case]:
    dense = _dense(case)
    # Three rows would be too much of float32.
    for start in (*sized(dense, [2], place, room), dense):
        for one in _apart(start):
            specs = [spec for spec in cases.operands(one) if math.prod(spec.shape[:-1]) > 1]
            if any(max(spec.layout.padding, default=0) > DISTANCE // 2 for spec in specs):
                yield one


def _offsets(case: Case, place: int, room: int) -> Iterator[Case]:
    for one in _apart(_dense(case)):
        if any(spec.layout.offset == DISTANCE for spec in cases.operands(one)):
            yield one


def _apart(case: Case) -> Iterator[Case]:
    count = 3 * len(cases.operands(case))
    for place in range(count):
        yield from apart(case, DISTANCE, (place + cases.seed(case)) % count)


_ELEMENTS: Sequence[Kind] = [partial(_elements, number) for number in ELEMENTS]
KINDS: tuple[Sequence[Kind], ...] = (
    [_rows],
    _ELEMENTS,
    [partial(_terms, True), partial(_terms, False)],
    [_strides],
    [_offsets],
    [_outer],
)
"""Each with the ways in which it is made, of which the first that can be is taken."""


def _both(case: Case, place: int, room: int) -> Iterator[Case]:
    for one in sized(_dense(case), BOTH, place, room):
        if any(spec.shape[-2:] == BOTH for spec in cases.operands(one)) and not _work(one):
            yield one


def _forms(starts: Sequence[Case]) -> list[list[Case]]:
    """Return the calls by the dims that they are of, the last or others, and by the operands that are of one row or
    column, those first of which there are few."""
    found: dict[Any, list[Case]] = {}
    for case in starts:
        specs = cases.operands(case)
        rank = max((len(spec.shape) for spec in specs), default=0)
        dims = tuple(sorted({dim % rank == rank - 1 for dim in _dims(case)})) if rank else ()
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


def _many_dims(case: Case, place: int, room: int) -> Iterator[Case]:
    rank = max(len(spec.shape) for spec in cases.operands(case))
    more = MANY_DIMS - rank
    if (
        is_tied(case)
        or more < 2 * BROADCAST_DIMS
        or math.prod(math.prod(spec.shape) for spec in cases.operands(case)) > FEW
    ):
        return
    numbers = itertools.count()

    def wider(name: str, value: Argument) -> Argument:
        if name == "dim" and isinstance(value, int | tuple):
            dims = [one + more if one >= 0 else one for one in (value if isinstance(value, tuple) else (value,))]
            return tuple(dims) if isinstance(value, tuple) else dims[0]
        if not isinstance(value, TensorSpec) or not value.shape or name in _OF_LAST_DIMS:
            return value
        # Of two operands each is broadcast where the other is not.
        first = next(numbers) % 2
        leading = [1] * (more + rank - len(value.shape))
        leading[first : 2 * BROADCAST_DIMS : 2] = [2] * BROADCAST_DIMS
        shape = (*leading, *value.shape)
        return TensorSpec(shape, value.dtype, value.values, value.seed, Layout(order=tuple(range(len(shape)))[::-1]))

    yield changed(case, wider)


def _many_rows(case: Case, place: int, room: int) -> Iterator[Case]:
    return _step(case, place, room, STEP)


def _wide_rows(case: Case, place: int, room: int) -> Iterator[Case]:
    return _step(case, place, room, STEP[::-1])


def _step(case: Case, place: int, room: int, step: tuple[int, int]) -> Iterator[Case]:
    for one in sized(case, STEP, place, min(math.prod(STEP) * 5 // 2, room)):
        shapes = [spec.shape for spec in cases.operands(one)]
        if any({*step} <= {*shape} and shape[-1] == step[-1] for shape in shapes) and _work(one) <= WORK:
            yield one


def _work(case: Case) -> float:
    """Return about how long the products of a call take, three of them where gradients are asked for: the terms of all
    elements, and more of what is no float32."""
    sizes = sorted(math.prod(spec.shape) for spec in cases.operands(case))[-2:]
    if len(sizes) < 2 or sizes[0] < 1 << 20 or len({spec.shape for spec in cases.operands(case)}) == 1:
        return 0.0
    half = any(spec.dtype in ("float16", "bfloat16") for spec in cases.operands(case))
    return math.sqrt(math.prod(sizes) * (case_files.result_elements(case) or 0)) * (16 if half else 1)


def _of_kind(step: Case, kind: str, turn: int) -> Case:
    """Return a call whose gradients are asked for in one way; of every third one the largest operands have rows that
    are parts of wider ones."""
    largest = max((spec.shape for spec in cases.operands(step)), key=math.prod)
    layout = Layout(padding=(*(0,) * (len(largest) - 1), 5), offset=1) if turn % 3 == 2 else CONTIGUOUS

    def laid(spec: TensorSpec, seed: int) -> TensorSpec:
        return msgspec.structs.replace(spec, layout=layout, seed=seed) if spec.shape == largest else spec

    made = (each_filled(step, lambda spec, seed=seed: laid(spec, seed)) for seed in range(256))
    return next((one for one in made if kind_of_large(one, 0) == kind), step)


def _dense(case: Case) -> Case:
    return each_filled(case, lambda spec: msgspec.structs.replace(spec, layout=CONTIGUOUS))


def _marked(case: Case, early: bool) -> Case:
    """Return the call with values at the end that a test finds there, or, where a result says where it is, with a
    largest one near the end, and an ``early`` one besides."""
    call = case_files.on_meta(case)
    told = {result.dtype for result in case_files.results(call)} if call is not None else set()
    if told == {torch.bool}:
        values: Sequence[tuple[int, str]] = ((-1, "nan"), (-3, "inf"), (-4, "-inf"))
    elif told == {torch.int64}:
        values = (*(((7, "max"), (8, "min")) if early else ()), (-2, "max"), (-3, "min"))
    else:
        return case

    def marked(spec: TensorSpec) -> TensorSpec:
        count = math.prod(spec.shape)
        if count < ROWS or not (is_floating(spec.dtype) or told == {torch.int64}):
            return spec
        specials = tuple(Special(place % count, value) for place, value in values)
        return msgspec.structs.replace(spec, specials=specials)

    return each_filled(case, marked)
