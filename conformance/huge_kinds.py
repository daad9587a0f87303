"""The kinds of calls past what is drawn otherwise, each made of a drawn one by other sizes, distances or dims."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import msgspec
import torch

from conformance import case_files, cases
from conformance.case_changes import (
    changed,
    each_filled,
    is_listed,
    is_tied,
    named_arguments,
    with_argument,
    with_sizes,
)
from conformance.cases import Argument, Case
from conformance.code_draws import apart, sized
from strategies.dtypes import is_floating
from strategies.specs import CONTIGUOUS, Layout, Special, TensorSpec

ROWS = (1 << 24) + (1 << 17) + 333
"""More than 65,535 tiles of 256 rows, and than float32 and 24 bits count."""
ELEMENTS = (1 << 26) + 65_541, (1 << 25) + 2_077, (1 << 24) + 65_541
"""More than 65,535 blocks of 1,024, 512 and 256: the first of them that fits."""
FEWER_ELEMENTS = (1 << 22) + 65_541
"""Those of a reduction whose oracle evaluates all of it."""
TERMS, FLOAT64 = (1 << 17) + 389, (1 << 15) + 77
"""Those of a sum, or the columns of a row. Float64 is judged in more than its precision, which is slow."""
DISTANCE = (1 << 24) + 3
"""Elements from row to row, or in front of the first: odd, so that float32 does not hold it."""
OUTER = (8_209, 8_221)
"""Sizes of two small operands whose result has more than 2^26 elements."""
MANY_DIMS, BROADCAST_DIMS, FEW = 31, 3, 1 << 10
"""More dims than 16 or 24, and no more than NumPy 1 takes; so many of them are broadcast from either side, for calls of
few elements."""
_OF_LAST_DIMS = ("weight", "bias")
"""Operands of the normalized dims."""
STEPS = (8_219, 1_031), (1_031, 8_219), (16_411, 523), (32_771, 511)
"""Tokens and columns: more than 128 blocks of 64 rows, or of 128, and than one block of 1,024 columns, or of 512; and
more rows than 16 bits with a sign count."""
PROMPT = (1_033, 67, 1_061)
"""Queries, dims and keys of attention that is differentiated."""
BOTH = (8_209, 4_093), (2_053, 16_411), (65_539, 517), (517, 65_539), (16_411, 2_053)
"""Rows and columns that are many, and elements that 25 bits do not count: in each kernel other ones are in a grid's
second dim, in a loop, or in one block."""
VOLUME = 8, 60, 1_031, 68
"""The same of heads of a batch, their queries and dims, or of matrices: so many in two dims, or all in one."""
PRODUCTS = (1_549, 2_063, 1_543), (1_033, 4_099, 1_031)
"""Rows, terms and columns of products: more tiles than multiprocessors, of many terms."""
WEIGHTS = (3, 4_099, 14_341), (3, 14_341, 4_099), (3, 1_031, 50_261)
"""The same of a few tokens and a model's weights, those of its vocabulary among them."""
RARE, RARE_AMONG = 2.0**-17, (1 << 23) - 15
"""A probability, and the elements among which it is met often enough to be seen."""
WORK = 1 << 33
"""The most multiplications of a call of a training step's size."""
_SMALL = (0, 1, 2)
"""Sizes that stay as they are beside large ones."""
Kind = Callable[[Case, int, int], Iterator[Case]]
"""Makes calls of one, with sizes from a place on, of up to so many elements."""


def _rows(case: Case, place: int, room: int) -> Iterator[Case]:
    for one in sized(_dense(case), [ROWS], place, room):
        columns = any(spec.shape[-1] == ROWS for spec in cases.operands(one) if len(spec.shape) > 1)
        if not columns and not is_reduced(one, ROWS):
            yield _marked(one, True)


def elements(number: int, case: Case, place: int, room: int) -> Iterator[Case]:
    for one in sized(_dense(case), [number], place, room):
        # Two operands of other shapes that share a size have it for terms: these would be too many.
        if len({spec.shape for spec in cases.operands(one) if number in spec.shape}) == 1:
            yield _marked(one, False)


def is_reduced(case: Case, size: int) -> bool:
    """Tell whether a dim of that size, and not the last one, is named: torch's CPU adds up so many in float32."""
    shape = cases.operands(case)[0].shape
    return len(shape) > 0 and any(one % len(shape) < len(shape) - 1 and shape[one] == size for one in dims(case))


def dims(case: Case) -> list[int]:
    """Return the dims that a call names."""
    dim = named_arguments(case).get("dim")
    return [one for one in (dim if isinstance(dim, tuple) else (dim,)) if isinstance(one, int)]


def _terms(shared: bool, case: Case, place: int, room: int) -> Iterator[Case]:
    number = FLOAT64 if any(spec.dtype == "float64" for spec in cases.operands(case)) else TERMS
    for one in sized(_dense(case), [number], place, min(4 * number, room), FLOAT64):
        shapes = [spec.shape for spec in cases.operands(one)]
        named = [shapes[0][dim] for dim in dims(one)]
        having = sum(number in shape for shape in shapes)
        is_last = any(shape[-1:] == (number,) for shape in shapes)
        # The terms of a product are in both factors.
        if is_last and (not named or number in named) and (having > 1 or not shared or len(shapes) == 1):
            yield one


def outer(case: Case, place: int, room: int) -> Iterator[Case]:
    """Yield the call with two long operands, each of one of these dims, whose result has both."""
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


MANY: Sequence[Kind] = [partial(elements, number) for number in ELEMENTS]
KINDS: tuple[Sequence[Kind], ...] = (
    [_rows],
    MANY,
    [partial(_terms, True), partial(_terms, False)],
    [_strides],
    [_offsets],
    [outer],
)
"""Each with the ways in which it is made, of which the first that can be is taken."""


def rare(case: Case, place: int, room: int) -> Iterator[Case]:
    """Yield the call of many elements, few of which are dropped."""
    for one in sized(_dense(case), [RARE_AMONG], place, room):
        yield with_argument(one, "p", RARE)


def both(numbers: tuple[int, int], case: Case, place: int, room: int) -> Iterator[Case]:
    """Yield the call with so many rows and columns of an operand, where its products are quick."""
    for one in sized(_dense(case), numbers, place, room):
        if any(spec.shape[-2:] == numbers for spec in cases.operands(one)) and _work(one) <= WORK:
            yield one


def volume(case: Case, place: int, room: int) -> Iterator[Case]:
    """Yield the call with ``VOLUME`` for the sizes of its operand of the most dims, or so many parts in one dim."""
    shape = max((spec.shape for spec in cases.operands(case)), key=len)
    batch, heads, *matrix = VOLUME
    leading = [size for size in shape[:-2] if size > 1]
    known, numbers = (*leading, *shape[-2:]), ([batch, heads] if len(leading) > 1 else [batch * heads]) + matrix
    if place or not len({*known} - {1}) == len(known) == len(numbers):
        return
    wanted = dict(zip(known, numbers, strict=True))
    sizes = {size for spec in cases.operands(case) for size in spec.shape} - {1}
    # As many elements of a head beside its rotation's.
    halves = {size // 2: number // 2 for size, number in wanted.items() if not size % 2 and size // 2 in sizes}
    one = _with_sizes(_dense(case), halves | wanted)
    if any(spec.shape[-2:] == (*matrix,) for spec in cases.operands(one)):
        yield one


def turned(case: Case) -> Case:
    """Return the call with its largest operands of more than one dim transposed."""
    most = max(math.prod(spec.shape) for spec in cases.operands(case))

    def laid(spec: TensorSpec) -> TensorSpec:
        rank = len(spec.shape)
        order = (*range(rank - 2), rank - 1, rank - 2)
        layout = Layout(order=order) if rank > 1 and math.prod(spec.shape) == most else spec.layout
        return msgspec.structs.replace(spec, layout=layout)

    return each_filled(case, laid)


def _with_sizes(case: Case, wanted: dict[int, int]) -> Case:
    """Return the case with these sizes for its own, all at once, and others small; the case itself where an operand
    lists what may be indices."""
    specs = cases.operands(case)
    if any(map(is_listed, specs)):
        return case
    others = {size for spec in specs for size in spec.shape} - {*wanted, *_SMALL}
    return with_sizes(case, dict.fromkeys(others, 2) | wanted)


def product(numbers: tuple[int, int, int], case: Case, place: int, room: int) -> Iterator[Case]:
    """Yield products of matrices of these rows, terms and columns, dense or, by its seed, in the layout of the call."""
    for one in _sharing(case if cases.seed(case) % 2 else _dense(case), place, numbers):
        call = case_files.on_meta(one)
        results = [tuple(result.shape[-2:]) for result in case_files.results(call)] if call is not None else []
        if (numbers[0], numbers[-1]) in results:
            yield one


def prompt(case: Case, place: int, room: int) -> Iterator[Case]:
    """Yield calls of several queries, keys and values, as many as ``PROMPT`` says."""
    queries, dims, keys = PROMPT
    for one in _sharing(_dense(case), place, PROMPT):
        ends = [spec.shape[-2:] for spec in cases.operands(one)]
        batched = [spec for spec in cases.operands(one) if len(spec.shape) > 2]
        if (queries, dims) in ends and (keys, dims) in ends and len(batched) > 2:
            yield one


def _sharing(case: Case, place: int, numbers: tuple[int, int, int]) -> Iterator[Case]:
    """Yield the case with the second number for the size that the last two dims of two operands have in common, and
    the others for those that they do not."""
    ends = [spec.shape[-2:] for spec in cases.operands(case) if len(spec.shape) > 1]
    for first, second in itertools.combinations(ends, 2) if place == 0 and not is_tied(case) else ():
        sizes = {*first} - {*second}, {*first} & {*second}, {*second} - {*first}
        if all(len(one) == 1 and 1 not in one for one in sizes):
            was = (next(iter(one)) for one in sizes)
            yield _with_sizes(case, dict(zip(was, numbers, strict=True)))


def many_dims(case: Case, place: int, room: int) -> Iterator[Case]:
    """Yield a call of few elements with ``MANY_DIMS`` dims, some of which are broadcast from either side."""
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


def step(numbers: tuple[int, int], case: Case, place: int, room: int) -> Iterator[Case]:
    """Yield the call with so many tokens and columns, where its products are quick."""
    for one in sized(case, sorted(numbers, reverse=True), place, min(math.prod(numbers) * 5 // 2, room)):
        shapes = [spec.shape for spec in cases.operands(one)]
        if any({*numbers} <= {*shape} and shape[-1] == numbers[-1] for shape in shapes) and _work(one) <= WORK:
            yield one


def _work(case: Case) -> float:
    """Return about how long the products of a call take, three of them where gradients are asked for: the terms of all
    elements, and more of what is no float32; 0 beside a row or column."""
    shapes = sorted((spec.shape for spec in cases.operands(case)), key=math.prod)
    sizes = [*map(math.prod, shapes[-2:])]
    if len({*shapes}) < 2 or sum(size > 1 for size in shapes[-2]) < 2:
        return 0.0
    half = any(spec.dtype in ("float16", "bfloat16") for spec in cases.operands(case))
    return math.sqrt(math.prod(sizes) * (case_files.result_elements(case) or 0)) * (16 if half else 1)


def _dense(case: Case) -> Case:
    return each_filled(case, lambda spec: msgspec.structs.replace(spec, layout=CONTIGUOUS))


_AT_THE_END = (-1, "nan"), (-3, "inf"), (-4, "-inf")
_OUTWEIGHING = {"float16": str(2**10), **dict.fromkeys(("bfloat16", "float32", "float64"), str(2.0**100))}
"""More than the rest of a sum, and not so much that a sum may overflow."""


def with_specials(case: Case, most: int) -> Case:
    """Return the call with NaN and infinities at the end of each operand of ``most`` elements, of floats, that has no
    special values yet."""
    return _planted(case, lambda spec: math.prod(spec.shape) == most and not spec.specials, _AT_THE_END)


def with_largest(case: Case, most: int) -> Case:
    """Return the call with a number that outweighs all others at the end of each operand of ``most`` elements."""
    dtype = max(cases.operands(case), key=lambda spec: math.prod(spec.shape)).dtype
    return _planted(case, lambda spec: math.prod(spec.shape) == most, [(-1, _OUTWEIGHING.get(dtype, "max"))])


def _planted(case: Case, wanted: Callable[[TensorSpec], bool], values: Sequence[tuple[int, str]]) -> Case:
    """Return the call with values at their places in the operands of floats, or with "max" and "min" of any dtype, that
    are wanted. A place may count from the end."""
    of_any = not any(value in ("nan", "inf") for _, value in values)

    def planted(spec: TensorSpec) -> TensorSpec:
        count = math.prod(spec.shape)
        if not wanted(spec) or not (of_any or is_floating(spec.dtype)):
            return spec
        specials = tuple(Special(place % count, value) for place, value in values if place + count >= 0)
        return msgspec.structs.replace(spec, specials=specials)

    return each_filled(case, planted)


def _marked(case: Case, early: bool) -> Case:
    """Return the call with values at the end that a test finds there, or, where a result says where it is, with a
    largest one near the end, and an ``early`` one besides."""
    call = case_files.on_meta(case)
    told = {result.dtype for result in case_files.results(call)} if call is not None else set()
    values: Sequence[tuple[int, str]] = ()
    if told == {torch.bool}:
        values = _AT_THE_END
    elif told == {torch.int64}:
        values = (*(((7, "max"), (8, "min")) if early else ()), (-2, "max"), (-3, "min"))
    return _planted(case, lambda spec: math.prod(spec.shape) >= ROWS, values) if values else case
