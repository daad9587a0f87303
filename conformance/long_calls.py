"""Make calls of several long dims. Kernels number rows, tokens, heads, planes and parts in 8, 15 or 16 bits, or forget
what is behind the first tile: where both are needed for a mistake to show, one dim, or two together, have to be past
that number while the others are past a tile. Most drawn calls have one long dim beside short ones.

Each is a drawn call that passed, with other sizes. They are judged by ``checks.OF_HUGE`` alone, as huge ones are.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Sequence
from functools import reduce
from random import Random
from typing import Any

import msgspec
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from conformance import case_files, cases, meta_calls
from conformance.case_changes import (
    changed,
    each_filled,
    is_listed,
    is_tied,
    named_arguments,
    with_argument,
    with_operand,
    with_sizes,
)
from conformance.cases import Argument, Case, Ints
from conformance.code_draws import is_allowed, resized
from conformance.huge_calls import starts
from conformance.spec import OpSpec
from strategies.dtypes import format_of, is_floating
from strategies.specs import CONTIGUOUS, TensorSpec

Dim = tuple[tuple[str, ...], int, int]
"""The names that a call gives, the number of one of its operands, and a dim of that, counted from the last."""

COUNT, LEAST = 48, 8
"""The calls of an op, beside those that are planned, which its dtypes share; and those of a dtype at least."""
BYTES = 1 << 24
"""The most bytes of all operands of such a call together."""
PLANNED = (259, 257, 258), (17, 1031, 65), (263, 9, 261), (9, 5, 265, 261), (265, 261, 9, 5)
"""Shapes of which each call that broadcasts or names dims has one: any two dims of the first together are past 16 bits,
and the first or the last two of those of four; a dim of the second is past blocks of 1,024."""
BATCHES, MATRICES = ((265,), (17, 19), (3, 17, 19)), (133, 9, 17)
"""Of products the batches of which each call of as many dims has one, past 8 bits, of matrices (M, K, N) of several
tiles."""
PLANNED_ELEMENTS, OF_ONE = 1 << 26, 1 << 23
"""The most elements of all operands of those; and where there is one alone, whose oracle may take long for each."""
MULTIPLICATIONS = 1 << 27
"""The most of products of matrices. An oracle may make each of them several times, and one by one."""
SIZES = (
    (65_609, 17, 9, 5, 3),
    (265, 261, 17, 9, 5),
    (8_209, 17, 9, 5, 3),
    (1_031, 131, 9, 5, 3),
    (133, 131, 33, 9, 5),
    (32_803, 17, 9, 5, 3),
    (67, 61, 35, 17, 9),
)
"""Sizes of a call's dims, the largest first: rows past 16 and 15 bits; planes, rows or heads of which two dims together
are; batches past 8 bits of several tiles each; all dims past a vector of 8, 16 or 32."""
ALIKE = 3
"""The most calls that are changed of those that are alike."""
_PRODUCTS = torch.ops.aten.mm, torch.ops.aten.bmm, torch.ops.aten.addmm, torch.ops.aten.baddbmm
_UNLIKE, _DIMS = (7, 11, 13, 5, 3), ("dim", "normalized_shape")
CAPS = (0, 9, 5, 3)
"""Limits of the sizes behind the largest two, of which the first that fits is taken; 0: none."""


def calls(spec: OpSpec, passed: Sequence[Case], dtypes: Sequence[str], dtype: str) -> list[Case]:
    """Return calls made of those that passed, all of one of the op's dtypes: its share of the op's."""
    if dtype == "float64":
        # The oracle takes too long.
        return []
    known = starts(passed)
    found, broadcast = _varied(spec, known), _broadcast(known)
    others = [one for one in sorted(dtypes) if one != "float64"]
    turn, count = others.index(dtype), max(COUNT // len(others), LEAST)
    if not found:
        return []
    # The sizes in turn for each dtype, and other orders of them for another one.
    made = (_made(spec, found, broadcast, turn + number, f"{dtype}/{number}") for number in range(count))
    sharing = [one for one in others if is_floating(one)] or others
    planned = (
        itertools.islice(_planned(spec, found, broadcast), sharing.index(dtype), None, len(sharing))
        if dtype in sharing
        else ()
    )
    return list({cases.case_id(case): case for case in (*made, *planned) if case is not None}.values())


def _varied(spec: OpSpec, found: Sequence[Case]) -> list[Case]:
    """Return the calls of several sizes, those first of which each differs from the others in its ranks or the dims
    that it names; of those that are alike in this there are few."""
    groups: dict[Any, list[Case]] = {}
    for case in sorted((one for one in found if not is_tied(one)), key=_shortness):
        spread = _spread(case)
        chosen = spread if is_allowed(spec, spread, _room(spread)) else case
        ranks = [len(one.shape) for one in cases.operands(chosen)]
        group = groups.setdefault((tuple(ranks), repr(named_arguments(chosen).get("dim"))), [])
        # What is not broadcast can be made so, and most else that has a dim of 1 has less to be wrong in.
        is_shorter = bool(group) and _shortness(chosen)[0] > _shortness(group[0])[0]
        if _count(chosen) > 1 and len(group) < ALIKE and not is_shorter:
            group.append(chosen)
    ordered = sorted(filter(None, groups.values()), key=lambda group: -_count(group[0]))
    each = [case for turn in itertools.zip_longest(*ordered) for case in turn if case is not None]
    # In those of many dims most can be wrong, and there are fewest of them.
    rich = [case for case in each if _count(case) > 2] or each
    return [case for pair in zip(itertools.cycle(rich), each, strict=False) for case in pair]


def _planned(spec: OpSpec, found: Sequence[Case], broadcast: Collection[Dim]) -> Iterator[Case]:
    """Yield calls of the shapes of ``PLANNED``: over each of the dims of that one or several may be named; or of two
    operands one along any dims of the other, or each along one. Where no call that passed is like that, it need not be
    taken, and is left out."""
    is_any_dim = any(dim % rank < rank - 1 for case in found for rank, dim in _named(case))
    second = {dim for _, at, dim in broadcast if at == 1}
    for shape in PLANNED:
        rank = len(shape)
        made: dict[Any, Case] = {}
        for case in found:
            named, ranks = named_arguments(case), [len(one.shape) for one in cases.operands(case)]
            dims = "several" if isinstance(named.get("dim"), tuple | Ints) else type(named.get("dim")).__name__
            kind = dims, len(_sizes(named.get("normalized_shape"))), tuple(ranks)
            if max(ranks) == rank and kind not in made:
                kept = {name: one for name, one in case.kwargs.items() if isinstance(one, TensorSpec) or name in _DIMS}
                ways = (msgspec.structs.replace(case, kwargs=kwargs) for kwargs in (kept, case.kwargs))
                laid = [_spread(each_filled(one, _contiguous), shape) for one in ways]
                made[kind] = next((one for one in laid if meta_calls.result(one) is not None), laid[0])
        for kind, case in made.items():
            calls = [case]
            if kind[0] in ("several", "int") and is_any_dim:
                calls = _over(case, rank)
            elif second and kind[-1] == (rank, rank):
                calls = _beside(case)
            most = PLANNED_ELEMENTS if len(kind[-1]) > 1 else OF_ONE
            yield from (one for one in calls if is_allowed(spec, one, most) and _is_quick(one))
    yield from (one for one in _products(found, second) if is_allowed(spec, one, PLANNED_ELEMENTS))


def _named(case: Case) -> list[tuple[int, int]]:
    """Return the dims that a call names, each beside the rank of its first operand."""
    dim = named_arguments(case).get("dim")
    rank = len(cases.operands(case)[0].shape)
    dims = dim.items if isinstance(dim, Ints) else dim if isinstance(dim, tuple) else (dim,)
    return [(rank, one) for one in dims if type(one) is int and rank]


def _products(found: Sequence[Case], second: Collection[int]) -> Iterator[Case]:
    """Yield calls that may be products of matrices, with all of a batch, and with the second factor along one dim of
    that, where this is known."""
    m, k, n = MATRICES
    for batch in BATCHES:
        rank = len(batch) + 2
        alike = (case for case in found if [len(spec.shape) for spec in cases.operands(case)] == [rank, rank])
        for case in itertools.islice(alike, 1):
            laid = each_filled(case, _contiguous)
            for at, matrix in enumerate(((m, k), (k, n))):
                shape = *batch, *matrix
                laid = with_operand(laid, at, lambda spec, shape=shape: msgspec.structs.replace(spec, shape=shape))
            yield laid
            dims = range(-rank, -2) if any(dim < -2 for dim in second) else ()
            yield from (with_operand(laid, 1, lambda spec, dim=dim: _of_ones(spec, [dim])) for dim in dims)


def _sizes(value: Argument) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else ()


def _over(case: Case, rank: int) -> Iterator[Case]:
    """Yield the call over each dim, or, where it names several, over any of them."""
    if isinstance(named_arguments(case)["dim"], int):
        yield from (with_argument(case, "dim", dim) for dim in range(rank))
        return
    for count in range(1, rank):
        yield from (with_argument(case, "dim", dims) for dims in itertools.combinations(range(rank), count))


def _beside(case: Case) -> Iterator[Case]:
    """Yield the call as it is; and, if its two operands are alike, with the second along any dims of the first, without
    those in front or not; or each along one. Torch may refuse it."""
    yield case
    first, second = cases.operands(case)
    dims = range(-len(first.shape), 0)
    if first.shape != second.shape:
        return
    for subset in itertools.chain.from_iterable(itertools.combinations(dims, count) for count in range(1, len(dims))):
        for shorter in (False, True) if dims[0] in subset else (False,):
            one = with_operand(case, 1, lambda spec, how=(subset, shorter): _of_ones(spec, *how))
            yield one
            for dim in dims if len(subset) == 1 and not shorter else ():
                if dim not in subset:
                    yield with_operand(one, 0, lambda spec, dim=dim: _of_ones(spec, [dim]))


def _spread(case: Case, sizes: Sequence[int] = _UNLIKE) -> Case:
    """Return the call with these sizes for its dims, in operands that are broadcast beside each other; torch may refuse
    it."""
    rank = max((len(spec.shape) for spec in cases.operands(case)), default=0)
    whole = tuple(sizes[:rank])

    def spread(name: str, value: Argument) -> Argument:
        match value:
            case TensorSpec() if not is_listed(value):
                return msgspec.structs.replace(value, shape=whole[rank - len(value.shape) :])
            case tuple() if name == "normalized_shape":
                return whole[rank - len(value) :]
        return value

    return case if rank > len(sizes) else changed(case, spread)


def _shortness(case: Case) -> tuple[int, int]:
    """Count the dims of 1, and, the other way round, the sizes that can be changed."""
    return sum(spec.shape.count(1) for spec in cases.operands(case)), -_count(case)


def _count(case: Case) -> int:
    return len({size for spec in cases.operands(case) for size in spec.shape if size > 1})


def _made(spec: OpSpec, found: Sequence[Case], broadcast: Collection[Dim], number: int, seed: str) -> Case | None:
    """Return the call of this number, of the first of those found that can be made so long."""
    random = Random(seed)
    sizes, narrow, dense, plain = SIZES[number % len(SIZES)], random.random(), random.random(), random.random()
    for place in range(number, number + len(found)):
        start = found[place % len(found)]
        for case in (_narrowed(start, random, broadcast), start) if narrow < 2 / 3 else (start,):
            laid = each_filled(case, _contiguous) if dense < 1 / 2 else case
            bare = msgspec.structs.replace(laid, kwargs={}) if plain < 1 / 2 else laid
            for one in itertools.chain.from_iterable(_long(way, sizes, random) for way in (bare, laid)):
                if is_allowed(spec, one, _room(one)) and _is_quick(one):
                    return one
    return None


def _long(case: Case, sizes: Sequence[int], random: Random) -> Iterator[Case]:
    """Yield the call with these sizes in one order of many, first as they are and then smaller; and so that what was
    twice a size still is, as the elements of a head beside its rotation's."""
    known = sorted({size for spec in cases.operands(case) for size in spec.shape if size > 1})
    for cap in CAPS:
        capped = [*sizes[:2], *(min(size, cap or size) for size in sizes[2:])][: len(known)]
        wanted = dict(zip(known, random.sample(capped, len(capped)), strict=False))
        yield _with(case, wanted)
        if doubled := {2 * size: 2 * wanted[size] for size in wanted if 2 * size in wanted}:
            yield _with(case, wanted | doubled)


def _with(case: Case, wanted: dict[int, int]) -> Case:
    # Numbers that are listed may be indices, which become smaller with any size.
    lowered = reduce(
        lambda found, pair: resized(found, *pair), (one for one in wanted.items() if one[1] < one[0]), case
    )
    values = [spec.values for spec in cases.operands(lowered)]
    found = with_sizes(case, wanted)
    for number, spec in enumerate(cases.operands(found)):
        if is_listed(spec):
            found = _listing(found, number, values[number])
    return found


def _listing(case: Case, number: int, values: str) -> Case:
    return with_operand(case, number, lambda spec: msgspec.structs.replace(spec, values=values))


def _narrowed(case: Case, random: Random, broadcast: Collection[Dim]) -> Case:
    """Return the call with one operand behind the first broadcast along some of its dims, of those of which that is
    known, or without the first of them; every third time the first operand, too, along another."""
    specs, names = cases.operands(case), tuple(sorted(case.kwargs))
    fit = [at for at, spec in enumerate(specs) if at and any((names, at, dim) in broadcast for dim in _dims(spec))]
    if not fit:
        return case
    chosen = random.choice(fit)
    dims = [dim for dim in _dims(specs[chosen]) if (names, chosen, dim) in broadcast]
    some = random.sample(dims, random.randint(1, len(dims)))
    shorter = random.random() < 1 / 3
    found = with_operand(case, chosen, lambda spec: _of_ones(spec, some, shorter))
    kept = [dim for dim in dims if dim not in some and dim in _dims(specs[0])]
    if random.random() < 2 / 3 or not kept:
        return found
    return with_operand(found, 0, lambda spec: _of_ones(spec, [random.choice(kept)]))


def _broadcast(found: Sequence[Case]) -> set[Dim]:
    """Return the dims along which operands behind the first are broadcast in these calls."""
    known: set[Dim] = set()
    for case in found:
        first, *others = cases.operands(case)
        for at, spec in enumerate(others, 1):
            dims = [dim for dim in _dims(spec) if dim in _dims(first) and spec.shape[dim] == 1 < first.shape[dim]]
            known |= {(tuple(sorted(case.kwargs)), at, dim) for dim in dims}
    return known


def _dims(spec: TensorSpec) -> range:
    """Return the numbers of its dims, counted from the last."""
    return range(-len(spec.shape), 0)


def _of_ones(spec: TensorSpec, dims: Collection[int], shorter: bool = False) -> TensorSpec:
    """Return the operand with a size of 1 for these dims; ``shorter``: without those in front."""
    shape = tuple(1 if dim in dims else spec.shape[dim] for dim in _dims(spec))
    if shorter:
        shape = tuple(itertools.dropwhile(lambda size: size == 1, shape))
    return msgspec.structs.replace(spec, shape=shape, layout=CONTIGUOUS)


def _is_quick(case: Case) -> bool:
    with _Multiplications() as made:
        case_files.on_meta(case)
    return made.count <= MULTIPLICATIONS


class _Multiplications(TorchDispatchMode):
    """Counts those of products of matrices. torch's FlopCounterMode imports Triton, and the process that imports it
    decides whether kernels are interpreted."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func.overloadpacket in _PRODUCTS:
            *_, factor = (one for one in args if isinstance(one, torch.Tensor))
            self.count += result.numel() * factor.shape[-2]
        return result


def _contiguous(spec: TensorSpec) -> TensorSpec:
    return msgspec.structs.replace(spec, layout=CONTIGUOUS)


def _room(case: Case) -> int:
    """Return how many elements all operands may have together."""
    return BYTES // max((format_of(one.dtype).bits // 8 for one in cases.operands(case)), default=1)
