"""Sequences that show what a library keeps from call to call: calls of which each differs from another in one thing
that a cache may forget to look at.

The calls that show the known ways of keeping too much are in every sequence, of one ordinary case; beside them stand
variations of any cases.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import get_args

import msgspec
from hypothesis import strategies as st

from conformance import cases, drawing, session
from conformance.cases import Argument, Case, Same, View
from conformance.sequences import CallSequence, Memory, Result, Settings, Step, reseeded
from conformance.spec import OpSpec, parameters, registry
from strategies.dtypes import is_floating
from strategies.specs import CONTIGUOUS, NORMAL, Layout, Special, TensorSpec
from strategies.values import LISTED

PAIRS = 6
"""Pairs of calls in a sequence, of any case and a variation of it; but any two calls may disturb one another."""
RING, RINGS = 18, 3
"""Results of one shape that are kept, all different, in the first of so many sequences: more than a ring of 16 buffers
holds."""
ELEMENTS = 2048
"""Elements of the operands of a call: a cache does not depend on them, and small calls are quick to judge."""
NUMBERS = ("other", "exponent", "min", "max", "alpha", "beta", "eps", "scale", "p")
"""Parameters that take numbers, and mean the same by True, 1 and 1.0 for a dict but not for torch."""
SWITCHES = ("interleaved", "training", "is_causal")
WORDS = {"rounding_mode": ("floor", "trunc"), "approximate": ("none", "tanh"), "activation": ("silu", "gelu")}
OF_WORDS = {"gelu": ("approximate",), "fused_gated_mlp": ("activation",)}
"""Arguments by operator that are the first of their words where they are left out."""
OPTIONAL = (*WORDS, "alpha", "beta", "eps", "scale", "p", "dtype")
"""Arguments that a call can do without."""

SETTINGS = (
    Settings(mode="inference"),
    Settings(precision="high"),
    Settings(mode="no_grad"),
    Settings(thread=True),
    Settings(deterministic=True),
    Settings(default_dtype="bfloat16"),
    Settings(default_dtype="float16"),
    Settings(threads=3),
)

Variation = Callable[[Case, int], Case]
"""Another case; the int chooses among several."""


@cache
def sequences(op: str, dtypes: tuple[str, ...]) -> st.SearchStrategy[CallSequence]:
    """Sequences of calls of one op, whose tensors are of ``dtypes``."""
    return _sequences(registry()[op], dtypes)


@st.composite
def _sequences(draw: st.DrawFn, spec: OpSpec, dtypes: tuple[str, ...]) -> CallSequence:
    ordinary = vary(whole, draw(_small(spec.name, dtypes, _is_ordinary)), 0)
    bases = [ordinary, *(draw(_small(spec.name, dtypes, _is_any)) for _ in range(2))]
    pairs: list[tuple[Step, ...]] = [
        tuple(Step(vary(VARIATIONS[name], ordinary, number), memory, result) for name, number, memory, result in known)
        for known in KNOWN
    ]
    for _ in range(PAIRS):
        base, name, number = draw(_BASE), draw(_NAME), draw(_NUMBER)
        case = bases[base]
        if name == "refused":
            pair = (draw(_refused(spec.name, dtypes)), case)
        else:
            pair = _pair(name, case, number)
            # Now and then it goes on from there.
            if draw(_SELDOM) == 0:
                bases[base] = pair[1]
        pairs.append(tuple(Step(one, draw(_MEMORY), draw(_RESULT), draw(_SETTINGS)) for one in pair))
    order = draw(st.permutations(pairs))
    # In the middle, so that what comes later meets full rings.
    ring = (Step(ordinary, draw(_MEMORY), "kept", times=RING),)
    middle = len(order) // 2
    return CallSequence(steps=tuple(step for pair in (*order[:middle], ring, *order[middle:]) for step in pair))


def _pair(name: str, case: Case, number: int) -> tuple[Case, Case]:
    """Two calls that differ in one thing."""
    varied = vary(VARIATIONS[name], case, number)
    if name == "twin":
        return varied, vary(twin, case, (number + 1) % len(TWINS))
    if name == "zeros":
        return varied, vary(dtype, varied, number)
    return (case, varied) if number % 2 else (varied, case)


def vary(variation: Variation, case: Case, number: int) -> Case:
    """A variation of a case; the case itself where that makes none."""
    try:
        varied = registry()[case.op].defined(variation(case, number))
        cases.validate(varied, max_elements=4 * ELEMENTS)
        if not cases.operands(varied):
            return case
    # What a recipe or a layout cannot be, and what is no case.
    except ValueError:
        return case
    return varied


# --- variations ----------------------------------------------------------------------------------------------------


def same(case: Case, number: int) -> Case:
    """Nothing differs."""
    return case


def contents(case: Case, number: int) -> Case:
    """Other numbers in the operands."""
    by = 1 + number % 3
    return _each(reseeded(case, by), lambda spec: _earlier(spec, by) if _is_listed(spec) else spec)


def _is_listed(spec: TensorSpec) -> bool:
    """Whether its numbers are listed, as those of slots are, which have to be few."""
    return spec.values.startswith(LISTED)


def _earlier(spec: TensorSpec, by: int) -> TensorSpec:
    """Listed whole numbers that are less by so many, as far as they are positive."""
    numbers = spec.values.removeprefix(LISTED).split(",")
    if is_floating(spec.dtype) or not all(number.isdecimal() for number in numbers):
        return spec
    return msgspec.structs.replace(spec, values=LISTED + ",".join(str(max(int(number) - by, 0)) for number in numbers))


def one(case: Case, number: int) -> Case:
    """Other numbers in one operand."""
    return _one(case, number, lambda spec: msgspec.structs.replace(spec, seed=(spec.seed + 1) % 2**64))


def dtype(case: Case, number: int) -> Case:
    """Another dtype in the place of the first operand's, wherever it occurs."""
    known = [one for one in registry()[case.op].dtypes if one != cases.dtype_of(case)]
    if not known:
        return case
    was, wanted = cases.dtype_of(case), known[number % len(known)]

    def other(spec: TensorSpec) -> TensorSpec:
        if spec.dtype != was:
            return spec
        try:
            return msgspec.structs.replace(spec, dtype=wanted)
        except ValueError:
            return msgspec.structs.replace(spec, dtype=wanted, values=NORMAL, specials=())

    return _each(case, other)


def offset(case: Case, number: int) -> Case:
    """One operand begins one element later in its storage, which aligns it to less."""
    return _one(case, number, lambda spec: _laid(spec, offset=spec.layout.offset + 1))


def order(case: Case, number: int) -> Case:
    """The dims of one operand are stored in reverse."""
    return _one(case, number, lambda spec: _with(spec, Layout(order=tuple(reversed(range(len(spec.shape)))))))


def steps(case: Case, number: int) -> Case:
    """One operand is every other element of a larger one."""
    return _one(case, number, lambda spec: _with(spec, Layout(steps=(1,) * (len(spec.shape) - 1) + (2,))))


def contiguous(case: Case, number: int) -> Case:
    """All operands are contiguous."""
    return _each(case, lambda spec: _with(spec, CONTIGUOUS))


TWINS = (1, 1.0, True, 0.0, -0.0, 0, -1, -2, 1, 1.0, -1.0, False)
"""Numbers of which several are equal, or have one hash."""


def twin(case: Case, number: int) -> Case:
    """One of ``TWINS`` where a number may stand, in the place of a number or of a tensor."""
    name = _added(case, number)
    if name:
        return msgspec.structs.replace(case, kwargs={**case.kwargs, name: TWINS[number]})
    return _changed(case, lambda name, value: TWINS[number] if name in NUMBERS and value is not None else value)


def _added(case: Case, number: int) -> str:
    """The name of a number that the op takes by name; empty where it has none."""
    names = {"add": ("alpha",), "sub": ("alpha",), "addmm": ("alpha", "beta")}.get(case.op, ())
    return names[number % len(names)] if names and number % 3 else ""


def word(case: Case, number: int) -> Case:
    """Another word, or the other position of a switch."""

    def other(name: str, value: Argument) -> Argument:
        if name in SWITCHES and isinstance(value, bool):
            return not value
        words = WORDS.get(name, ())
        return words[(words.index(value) + 1) % len(words)] if value in words else value

    for name in OF_WORDS.get(case.op, ()):
        if name not in case.kwargs and parameters(case.op).index(name) >= len(case.args):
            case = msgspec.structs.replace(case, kwargs={**case.kwargs, name: WORDS[name][0]})
    return _changed(case, other)


def without(case: Case, number: int) -> Case:
    """An optional argument is left out."""
    known = [name for name in case.kwargs if name in OPTIONAL]
    if not known:
        return case
    left = known[number % len(known)]
    return msgspec.structs.replace(case, kwargs={name: v for name, v in case.kwargs.items() if name != left})


def larger(case: Case, number: int) -> Case:
    """A batch of another size: one, one less, one more, twice as many."""
    batch = registry()[case.op].batch(case)
    if batch is None:
        return case
    size = (1, batch.size - 1, batch.size + 1, 2 * batch.size)[number % 4]
    along = iter(batch.operands)

    def other(spec: TensorSpec) -> TensorSpec:
        dim = next(along, None)
        if dim is None:
            return spec
        return msgspec.structs.replace(spec, shape=(*spec.shape[:dim], size, *spec.shape[dim + 1 :]))

    return _each(case, other)


def turned(case: Case, number: int) -> Case:
    """All shapes in reverse: as many elements, in as many dims."""
    return _each(case, lambda spec: _with(msgspec.structs.replace(spec, shape=spec.shape[::-1]), CONTIGUOUS))


def flat(case: Case, number: int) -> Case:
    """All operands in one dim: as many elements."""
    return _each(case, lambda spec: msgspec.structs.replace(spec, shape=(math.prod(spec.shape),), layout=CONTIGUOUS))


def plain(case: Case, number: int) -> Case:
    """No special values, and ordinary numbers."""
    return _filled(case, lambda spec: msgspec.structs.replace(spec, values=NORMAL, specials=()))


def whole(case: Case, number: int) -> Case:
    """Small whole numbers: others are sure to change a result, and now and then two are equal."""
    return _filled(case, lambda spec: msgspec.structs.replace(spec, values="integers", specials=()))


def zeros(case: Case, number: int) -> Case:
    """Nothing but zeros, whose bits are those of other dtypes."""
    return _filled(case, lambda spec: msgspec.structs.replace(spec, values="zeros", specials=()))


def one_hot(case: Case, number: int) -> Case:
    """A one among zeros, somewhere: contents of one sum."""
    return _filled(case, lambda spec: msgspec.structs.replace(spec, values="one_hot", specials=(), seed=number))


def tail(case: Case, number: int) -> Case:
    """The last element of each operand is another one."""

    def other(spec: TensorSpec) -> TensorSpec:
        last = Special(max(math.prod(spec.shape) - 1, 0), ("max", "min")[number % 2])
        return msgspec.structs.replace(spec, specials=(*spec.specials[:2], last))

    return _each(case, other)


VARIATIONS: dict[str, Variation] = {
    variation.__name__: variation
    for variation in (same, contents, one, dtype, offset, order, steps, contiguous, twin, word, without)
}
VARIATIONS |= {
    variation.__name__: variation for variation in (larger, turned, flat, plain, whole, zeros, one_hot, tail)
}


KNOWN: tuple[tuple[tuple[str, int, Memory, Result], ...], ...] = (
    # Kept by the address, by that and the version counter, and by the object and the counter, which often comes again.
    (("same", 0, "address", "dropped"), ("contents", 0, "address", "kept")),
    (("same", 0, "same", "dropped"), ("contents", 0, "same", "kept"), ("contents", 1, "behind", "kept")),
    (*(("contents", number, "freed", "dropped") for number in range(4)),),
    # Kept by a part of the arguments.
    (*((name, 0, "new", "kept") for name in ("same", "one", "word")), ("one", 1, "new", "kept")),
    # Memory that is handed out again while the user holds it, or a view of it.
    (("same", 0, "new", "overwritten"), ("same", 0, "new", "overwritten")),
    (("contents", 1, "new", "view"), ("contents", 2, "new", "dropped")),
)
"""What every sequence has of its ordinary case, by variation, number, memory and result."""


# --- what is drawn ------------------------------------------------------------------------------------------------

_BASE = st.sampled_from((0, 0, 1, 2))
_OFTEN = (*("contents",) * 6, "dtype", "twin", "twin", "larger", "refused")
_NAME = st.sampled_from((*_OFTEN, *VARIATIONS))
_NUMBER, _SELDOM = st.integers(0, 11), st.integers(0, 5)
_MEMORY = st.sampled_from(get_args(Memory))
_SETTINGS = st.one_of(*(st.just(Settings()),) * 2, st.sampled_from(SETTINGS))
_RESULT = st.sampled_from(("kept", *get_args(Result)))


@cache
def _small(op: str, dtypes: tuple[str, ...], wanted: Callable[[Case], bool]) -> st.SearchStrategy[Case]:
    """Cases of few elements."""
    spec = registry()[op]
    of = {dtype: spec.cases((dtype,)).filter(_is_small).filter(_has_room).filter(wanted) for dtype in dtypes}
    return st.sampled_from(dtypes).flatmap(of.__getitem__)


@cache
def _refused(op: str, dtypes: tuple[str, ...]) -> st.SearchStrategy[Case]:
    return registry()[op].refused(dtypes).filter(_is_small)


def _is_any(case: Case) -> bool:
    return True


def _is_ordinary(case: Case) -> bool:
    """Whether a call has a result of its own, and one that is not empty."""
    found = cases.operands(case)
    own = not cases.written(case) and not any(isinstance(x, Same | View) for x in (*case.args, *case.kwargs.values()))
    return own and bool(found) and all(0 not in spec.shape for spec in found)


def _is_small(case: Case) -> bool:
    return sum(math.prod(spec.shape) for spec in cases.operands(case)) <= ELEMENTS


def _has_room(case: Case) -> bool:
    """Whether variations of it, with their result and the memory that their operands lie in, are small too."""
    try:
        cases.validate(case, max_elements=2 * ELEMENTS)
    except cases.TooLarge:
        return False
    return True


# --- changing arguments -------------------------------------------------------------------------------------------


def _changed(case: Case, change: Callable[[str, Argument], Argument]) -> Case:
    """The case with each argument changed, by name: positional ones by that of torch's parameter, as far as known."""
    known = (*parameters(case.op), *("",) * len(case.args))
    args = tuple(change(name, value) for name, value in zip(known, case.args, strict=False))
    # In the order in which operands are numbered.
    kwargs = {name: change(name, case.kwargs[name]) for name in sorted(case.kwargs)}
    return msgspec.structs.replace(case, args=args, kwargs=kwargs, digests=())


def _each(case: Case, change: Callable[[TensorSpec], TensorSpec]) -> Case:
    """The case with each tensor changed; not where one argument is a part of another's memory."""
    if any(isinstance(argument, Same | View) for argument in (*case.args, *case.kwargs.values())):
        return case
    return _changed(case, lambda _, value: change(value) if isinstance(value, TensorSpec) else value)


def _filled(case: Case, change: Callable[[TensorSpec], TensorSpec]) -> Case:
    """The case with each tensor changed but those whose numbers are listed."""
    return _each(case, lambda spec: spec if _is_listed(spec) else change(spec))


def _one(case: Case, number: int, change: Callable[[TensorSpec], TensorSpec]) -> Case:
    """The case with one tensor changed."""
    chosen, counted = number % max(len(cases.operands(case)), 1), iter(range(cases.MAX_DIMS))
    return _each(case, lambda spec: change(spec) if next(counted) == chosen else spec)


def _laid(spec: TensorSpec, **changes: object) -> TensorSpec:
    return _with(spec, msgspec.structs.replace(spec.layout, **changes))


def _with(spec: TensorSpec, layout: Layout) -> TensorSpec:
    return msgspec.structs.replace(spec, layout=layout)


def drawn(op: str, dtypes: Sequence[str], examples: int, seed: int) -> Iterator[CallSequence]:
    """So many sequences of an op, always the same ones for one seed."""
    # In rounds, as cases: from the eleventh on Hypothesis draws variations of those before.
    for start in range(0, examples, session.ROUND):
        count = min(session.ROUND, examples - start)
        found = drawing.drawn(sequences(op, tuple(dtypes)), f"{seed}/{op}/sequences/{start}", 1 + count)
        # The first is the simplest there is, and the same in each round.
        for number, sequence in enumerate(found[1 : 1 + count], start):
            steps = tuple(step for step in sequence.steps if step.times == 1 or not number % RINGS)
            yield CallSequence(steps=steps)
