"""Draw sequences that show what a library keeps from call to call: each call differs from another in one thing that a
cache may forget to look at.

The calls that show the known ways of keeping too much are in every sequence, of one ordinary case; beside them stand
variations of any cases.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import NamedTuple, get_args

import msgspec
from hypothesis import strategies as st

from conformance import case_files, cases, drawing, session
from conformance.cases import Argument, Case, DType, Same, Variant, View
from conformance.sequences import CallSequence, Memory, Result, Settings, Step, reseeded
from conformance.spec import OpSpec, parameters, registry
from strategies.dtypes import is_floating
from strategies.specs import CONTIGUOUS, NORMAL, Layout, Special, TensorSpec
from strategies.values import LISTED

PAIRS = 6
"""The number of pairs of calls in a sequence, of any case and a variation of it; but any two calls may disturb one
another."""
RING, RINGS = 18, 3
"""The number of results of one shape that are kept, all different, in the first of so many sequences: more than a ring
of 16 buffers holds."""
WARM = 48
"""The number of calls of one shape on the same tensors in the second of as many: a recording that is made once a call
was frequent has to be replayed with the tensors' present contents."""
AFTER_REFUSALS = (("dim", 0), ("word", 0), ("twin", 3), ("twin", 5), ("causal", 1))
"""The variations of the ordinary case that follow refused calls at the end of each sequence: of another dim or with
options, they may meet what the refused call has left. Any calls follow a few more."""
ELEMENTS = 2048
"""The most elements of the operands of a call in half the sequences: few caches depend on them, and small calls are
quick to judge."""
WIDE = 1 << 14
"""Those of large calls in the others, for what is only kept of long rows, large weights and many tokens."""
NUMBERS = ("other", "exponent", "min", "max", "alpha", "beta", "eps", "scale", "p")
"""Parameters that take numbers: True, 1 and 1.0 are one key of a dict, but not the same to torch."""
SWITCHES = ("interleaved", "training", "is_causal")
WORDS = {
    "rounding_mode": ("floor", "trunc"),
    "approximate": ("none", "tanh"),
    "activation": ("silu", "gelu"),
    "granularity": ("row", "block"),
    "causal_variant": (Variant("UPPER_LEFT"), Variant("LOWER_RIGHT")),
    "dtype": (DType("float32"), DType("float16"), DType("float8_e5m2"), DType("float8_e4m3fn")),
    "out_dtype": (DType("float16"), DType("bfloat16")),
}
OF_WORDS = {"gelu": ("approximate",), "fused_gated_mlp": ("activation",)}
"""For each operator, the arguments that default to the first of their words."""
OPTIONAL = (*WORDS, "alpha", "beta", "eps", "scale", "p", "dtype")
"""Arguments that a call can do without."""

SETTINGS = (
    Settings(mode="inference"),
    Settings(precision="high"),
    Settings(mode="no_grad"),
    Settings(mode="parameters"),
    Settings(thread=True),
    Settings(deterministic=True),
    Settings(default_dtype="bfloat16"),
    Settings(default_dtype="float16"),
    Settings(threads=3),
)

Variation = Callable[[Case, int], Case]
"""A function that makes another case; the int chooses among several."""


@cache
def sequences(op: str, dtypes: tuple[str, ...]) -> st.SearchStrategy[CallSequence]:
    """Return the strategy of sequences of calls of one op, whose tensors are of ``dtypes``."""
    return _sequences(registry()[op], dtypes)


@st.composite
def _sequences(draw: st.DrawFn, spec: OpSpec, dtypes: tuple[str, ...]) -> CallSequence:
    ordinary = vary(
        whole, draw(_wide(spec.name, dtypes) if draw(_FLAG) else _small(spec.name, dtypes, _is_ordinary)), 0
    )
    bases = [ordinary, *(draw(_small(spec.name, dtypes, _is_any)) for _ in range(2))]
    pairs = [_known(ordinary, known) for known in KNOWN]
    for _ in range(PAIRS):
        base, name, number = draw(_BASE), draw(_NAME), draw(_NUMBER)
        case = bases[base]
        if name == "refused":
            pair = (draw(_refused(spec.name, dtypes)), case)
        else:
            pair = _pair(name, case, number)
            # Now and then later variations start from the varied case.
            if draw(_SELDOM) == 0:
                bases[base] = pair[1]
        pairs.append(tuple(Step(one, draw(_MEMORY), draw(_RESULT), draw(_SETTINGS)) for one in pair))
    order = draw(st.permutations(pairs))
    # In the middle, so that what comes later meets full rings.
    ring = (Step(ordinary, draw(_MEMORY), "kept", times=RING), Step(ordinary, "same", "dropped", times=WARM))
    middle = len(order) // 2
    return CallSequence(steps=tuple(step for pair in (*order[:middle], ring, *order[middle:]) for step in pair))


@cache
def _refusals(op: str, dtypes: tuple[str, ...]) -> st.SearchStrategy[tuple[Case, Case]]:
    """Return the strategy of a refused call and a legal one."""
    return st.tuples(_refused(op, dtypes), _small(op, dtypes, _is_any))


def _after_refusals(ordinary: Case, drawn: Sequence[tuple[Case, Case]]) -> Iterator[Step]:
    """Yield refused calls, and after each a legal one."""
    for place, (refused, legal) in enumerate(drawn):
        yield Step(refused)
        if place < len(AFTER_REFUSALS):
            name, number = AFTER_REFUSALS[place]
            legal = vary(VARIATIONS[name], ordinary, number)
        yield Step(legal)


def _known(case: Case, known: tuple[Known, ...]) -> tuple[Step, ...]:
    """Return the steps of one entry of ``KNOWN``; other operators, dims and causal variants only where the case has
    any."""
    found = []
    for name, number, memory, result, settings in known:
        varied = vary(VARIATIONS[name], case, number)
        if memory == "arena" and not _fits_arena(varied):
            continue
        if varied != case or name not in ("dim", "causal", "sibling"):
            found.append(Step(varied, memory, result, settings))
    return tuple(found)


def _fits_arena(case: Case) -> bool:
    """Tell whether a call has several operands, each with memory of its own, and writes none."""
    return len(cases.operands(case)) > 1 and not _is_tied(case) and not registry()[case.op].writes(case)


def _pair(name: str, case: Case, number: int) -> tuple[Case, Case]:
    """Return two calls that differ in one thing."""
    varied = vary(VARIATIONS[name], case, number)
    if name == "twin":
        return varied, vary(twin, case, (number + 1) % len(TWINS))
    if name == "zeros":
        return varied, vary(dtype, varied, number)
    return (case, varied) if number % 2 else (varied, case)


def vary(variation: Variation, case: Case, number: int) -> Case:
    """Return a variation of a case; the case itself where there is none."""
    try:
        varied = registry()[case.op].defined(variation(case, number))
        case_files.validate(varied, max_elements=8 * WIDE)
        if not cases.operands(varied):
            return case
    # An impossible recipe or layout, or no case.
    except ValueError:
        return case
    return varied


# --- variations ----------------------------------------------------------------------------------------------------


def same(case: Case, number: int) -> Case:
    """Change nothing."""
    return case


def contents(case: Case, number: int) -> Case:
    """Give the operands other contents."""
    by = 1 + number % 3
    return _each(reseeded(case, by), lambda spec: _earlier(spec, by) if _is_listed(spec) else spec)


def _is_listed(spec: TensorSpec) -> bool:
    """Tell whether its numbers are listed, as those of slots are, which have to be few."""
    return spec.values.startswith(LISTED)


def _earlier(spec: TensorSpec, by: int) -> TensorSpec:
    """Lower listed whole numbers by so many, to 0 at the least."""
    numbers = spec.values.removeprefix(LISTED).split(",")
    if is_floating(spec.dtype) or not all(number.isdecimal() for number in numbers):
        return spec
    return msgspec.structs.replace(spec, values=LISTED + ",".join(str(max(int(number) - by, 0)) for number in numbers))


def one(case: Case, number: int) -> Case:
    """Give one operand other contents."""
    return _one(case, number, lambda spec: msgspec.structs.replace(spec, seed=(spec.seed + 1) % 2**64))


def dtype(case: Case, number: int) -> Case:
    """Put another dtype in the place of the first operand's, wherever it occurs."""
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
    """Let one operand begin one element later in its storage, which aligns it to less."""
    return _one(case, number, lambda spec: _laid(spec, offset=spec.layout.offset + 1))


def order(case: Case, number: int) -> Case:
    """Store the dims of one operand in reverse."""
    return _one(case, number, lambda spec: _with(spec, Layout(order=tuple(reversed(range(len(spec.shape)))))))


def steps(case: Case, number: int) -> Case:
    """Make one operand every other element of a larger one."""
    return _one(case, number, lambda spec: _with(spec, Layout(steps=(1,) * (len(spec.shape) - 1) + (2,))))


def contiguous(case: Case, number: int) -> Case:
    """Make all operands contiguous."""
    return _each(case, lambda spec: _with(spec, CONTIGUOUS))


TWINS = (1, 1.0, True, 0.0, -0.0, 0, -1, -2, 1, 1.0, -1.0, False)
"""Numbers of which several are equal, or have one hash."""


def twin(case: Case, number: int) -> Case:
    """Put one of ``TWINS`` where a number may stand, in the place of a number or of a tensor."""
    name = _added(case, number)
    if name:
        return msgspec.structs.replace(case, kwargs={**case.kwargs, name: TWINS[number]})
    return _changed(case, lambda name, value: TWINS[number] if name in NUMBERS and value is not None else value)


def _added(case: Case, number: int) -> str:
    """Return the name of a number that the op takes by name; empty where it has none."""
    names = {"add": ("alpha",), "sub": ("alpha",), "addmm": ("alpha", "beta")}.get(case.op, ())
    return names[number % len(names)] if names and number % 3 else ""


def word(case: Case, number: int) -> Case:
    """Choose another word, or the other position of a switch."""

    def other(name: str, value: Argument) -> Argument:
        if name in SWITCHES and isinstance(value, bool):
            return not value
        words = WORDS.get(name, ())
        return words[(words.index(value) + 1) % len(words)] if value in words else value

    for name in OF_WORDS.get(case.op, ()):
        if name not in case.kwargs and parameters(case.op).index(name) >= len(case.args):
            case = msgspec.structs.replace(case, kwargs={**case.kwargs, name: WORDS[name][0]})
    return _changed(case, other)


def causal(case: Case, number: int) -> Case:
    """Drop mask and scale, and make the call causal in each of two ways, in turn; only of ops that have a switch for
    it."""
    if "is_causal" not in parameters(case.op) or "present_key" in case.kwargs:
        return case
    kwargs = {name: value for name, value in case.kwargs.items() if name not in ("attn_mask", "scale")}
    kwargs |= {"is_causal": True, "causal_variant": WORDS["causal_variant"][number % 2]}
    return msgspec.structs.replace(case, kwargs=kwargs, digests=())


def dim(case: Case, number: int) -> Case:
    """Choose another dim, or normalize one dim more or less, then without parameters of their shape."""
    known = parameters(case.op)
    if not case.args or not isinstance(case.args[0], TensorSpec) or len(case.args[0].shape) < 2:
        return case
    shape, names = case.args[0].shape, known[: len(case.args)]
    if "normalized_shape" in names and isinstance(old := case.args[1], tuple | int):
        dims = len(old) % len(shape) + 1 if isinstance(old, tuple) else 2
        kwargs = {name: value for name, value in case.kwargs.items() if not isinstance(value, TensorSpec)}
        return msgspec.structs.replace(case, args=(case.args[0], shape[-dims:]), kwargs=kwargs, digests=())

    def other(name: str, value: Argument) -> Argument:
        return (value + 1) % len(shape) if name == "dim" and type(value) is int else value

    return _changed(case, other)


def sibling(case: Case, number: int) -> Case:
    """Choose another operator that takes arguments of the same names, on the same operands, without what is
    optional."""
    wanted = parameters(case.op, required=True)
    known = [op for op in registry() if op != case.op and parameters(op, required=True) == wanted]
    if not known or len(case.args) < len(wanted):
        return case
    return msgspec.structs.replace(case, op=known[number % len(known)], args=case.args[: len(wanted)], kwargs={})


def without(case: Case, number: int) -> Case:
    """Leave out an optional argument."""
    known = [name for name in case.kwargs if name in OPTIONAL]
    if not known:
        return case
    left = known[number % len(known)]
    return msgspec.structs.replace(case, kwargs={name: v for name, v in case.kwargs.items() if name != left})


def larger(case: Case, number: int) -> Case:
    """Give the batch another size: one, one less, one more, twice as many."""
    batch = registry()[case.op].batch(case)
    return case if batch is None else _in_batch(case, (1, batch.size - 1, batch.size + 1, 2 * batch.size)[number % 4])


def fresh(case: Case, number: int) -> Case:
    """Draw ordinary numbers, of float32 where floats are drawn, in a batch of a size that no other variation has."""
    batch, known = registry()[case.op].batch(case), registry()[case.op].dtypes
    case = plain(case if batch is None else _in_batch(case, (2 + number % 2) * batch.size + 3), number)
    if is_floating(cases.dtype_of(case)) and cases.dtype_of(case) != "float32" and "float32" in known:
        others = [name for name in known if name != cases.dtype_of(case)]
        case = dtype(case, others.index("float32"))
    return case


def _in_batch(case: Case, size: int) -> Case:
    batch = registry()[case.op].batch(case)
    assert batch is not None
    along = iter(batch.operands)

    def other(spec: TensorSpec) -> TensorSpec:
        dim = next(along, None)
        if dim is None:
            return spec
        return msgspec.structs.replace(spec, shape=(*spec.shape[:dim], size, *spec.shape[dim + 1 :]))

    return _each(case, other)


def resized(case: Case, number: int) -> Case:
    """Give one of the sizes another value, wherever operands have it: one more, half of it, or one more than twice."""
    specs = cases.operands(case)
    known = sorted({size for spec in specs for size in spec.shape if size > 1}, reverse=True)
    if not known or any(map(_is_listed, specs)):
        return case
    was = known[number % len(known)]
    wanted = (was + 1, 2 * was + 1, max(was // 2, 1))[number // len(known) % 3]

    def sizes(old: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(wanted if size == was else size for size in old)

    def other(name: str, value: Argument) -> Argument:
        match value:
            case TensorSpec():
                return msgspec.structs.replace(value, shape=sizes(value.shape))
            case tuple() if name == "normalized_shape":
                return sizes(value)
        return value

    return case if _is_tied(case) else _changed(case, other)


def turned(case: Case, number: int) -> Case:
    """Reverse all shapes: as many elements, in as many dims."""
    return _each(case, lambda spec: _with(msgspec.structs.replace(spec, shape=spec.shape[::-1]), CONTIGUOUS))


def flat(case: Case, number: int) -> Case:
    """Flatten all operands to one dim: as many elements."""
    return _each(case, lambda spec: msgspec.structs.replace(spec, shape=(math.prod(spec.shape),), layout=CONTIGUOUS))


def plain(case: Case, number: int) -> Case:
    """Draw ordinary numbers, without special values."""
    return _filled(case, lambda spec: msgspec.structs.replace(spec, values=NORMAL, specials=()))


def whole(case: Case, number: int) -> Case:
    """Draw small whole numbers: others are sure to change a result, and now and then two are equal."""
    return _filled(case, lambda spec: msgspec.structs.replace(spec, values="integers", specials=()))


def zeros(case: Case, number: int) -> Case:
    """Fill operands with zeros, whose bits are those of other dtypes."""
    return _filled(case, lambda spec: msgspec.structs.replace(spec, values="zeros", specials=()))


def one_hot(case: Case, number: int) -> Case:
    """Fill operands with zeros but for a one, somewhere: contents of one sum."""
    return _filled(case, lambda spec: msgspec.structs.replace(spec, values="one_hot", specials=(), seed=number))


def tail(case: Case, number: int) -> Case:
    """Change the last element of each operand."""

    def other(spec: TensorSpec) -> TensorSpec:
        last = Special(max(math.prod(spec.shape) - 1, 0), ("max", "min")[number % 2])
        return msgspec.structs.replace(spec, specials=(*spec.specials[:2], last))

    return _each(case, other)


VARIATIONS: dict[str, Variation] = {
    variation.__name__: variation
    for variation in (same, contents, one, dtype, offset, order, steps, contiguous, twin, word, without)
}
VARIATIONS |= {
    variation.__name__: variation
    for variation in (larger, resized, turned, flat, plain, whole, zeros, one_hot, tail, dim, causal, sibling, fresh)
}


class Known(NamedTuple):
    """One step that every sequence has, of its ordinary case."""

    variation: str
    number: int
    memory: Memory
    result: Result
    settings: Settings = Settings()


_PARAMETERS, _HIGH, _THREAD = Settings(mode="parameters"), Settings(precision="high"), Settings(thread=True)
_INFERENCE, _HALF = Settings(mode="inference"), Settings(default_dtype="float16")
KNOWN: tuple[tuple[Known, ...], ...] = (
    # Results kept by the address, by that and the version counter, and by object and counter, which often recur.
    (Known("same", 0, "address", "dropped"), Known("contents", 0, "address", "kept")),
    (Known("same", 0, "same", "dropped"), Known("contents", 0, "same", "kept"), Known("contents", 1, "behind", "kept")),
    (*(Known("contents", number, "freed", "dropped") for number in range(4)),),
    # By a parameter, which an optimizer changes in place; by one of several operands, the others of which change alone.
    (*(Known("contents", number, "same", "kept", _PARAMETERS) for number in range(2)),),
    (*(Known(name, number, "same", "kept") for number in range(3) for name in ("same", "one")),),
    # By a part of the arguments.
    (*(Known(name, 0, "new", "kept") for name in ("same", "one", "word")), Known("one", 1, "new", "kept")),
    (Known("same", 0, "new", "kept"), Known("dim", 0, "new", "kept")),
    (Known("causal", 0, "new", "kept"), Known("causal", 1, "new", "kept")),
    # By some of the sizes, and not by all.
    (Known("same", 0, "new", "kept"), *(Known("resized", number, "new", "kept") for number in range(9))),
    # By the settings when a size was met first: the numbers lose bits in TF32.
    (Known("fresh", 0, "new", "kept", _HIGH), Known("fresh", 0, "new", "kept")),
    # In the other thread, with whatever a shorter call has left there.
    (*(Known(name, number, "new", "kept", _THREAD) for name, number in (("larger", 0), ("larger", 3))),),
    # In memory that another operator shares.
    (Known("same", 0, "new", "kept"), *(Known("sibling", number, "new", "kept") for number in range(12))),
    # In memory that is handed out again while the user holds it, or a view of it.
    (Known("same", 0, "new", "overwritten"), Known("same", 0, "new", "overwritten")),
    (Known("contents", 1, "new", "view"), Known("contents", 2, "new", "dropped")),
)
"""The steps that every sequence has, of its ordinary case."""
LAST: tuple[tuple[Known, ...], ...] = (
    # In memory that was allocated in inference mode, and may not be written outside of it.
    (Known("fresh", 1, "new", "kept", _INFERENCE), Known("fresh", 1, "new", "kept")),
    # With a number that is a tensor of the default dtype.
    (Known("fresh", 1, "new", "kept", _HALF),),
    # On another default device.
    (Known("fresh", 1, "new", "kept", Settings(default_device="meta")),),
    # With products of fewer bits, or of another range.
    (Known("fresh", 1, "new", "kept", Settings(precision="medium")),),
    # Of operands that are told apart by their storages.
    (Known("same", 0, "arena", "kept"),),
)
"""Those that stand in this order before the refused calls, so that the order of all others does not depend on them."""


# --- what is drawn ------------------------------------------------------------------------------------------------

_BASE, _FLAG = st.sampled_from((0, 0, 1, 2)), st.booleans()
_OFTEN = (*("contents",) * 6, "dtype", "twin", "twin", "larger", "refused")
_NAME = st.sampled_from((*_OFTEN, *VARIATIONS))
_NUMBER, _SELDOM = st.integers(0, 11), st.integers(0, 5)
_MEMORY = st.sampled_from([one for one in get_args(Memory) if one != "arena"])
_SETTINGS = st.one_of(*(st.just(Settings()),) * 2, st.sampled_from(SETTINGS))
_RESULT = st.sampled_from(("kept", *get_args(Result)))


@cache
def _small(op: str, dtypes: tuple[str, ...], wanted: Callable[[Case], bool]) -> st.SearchStrategy[Case]:
    """Return the strategy of cases of few elements."""
    spec = registry()[op]
    of = {dtype: spec.cases((dtype,)).filter(_is_small).filter(_has_room).filter(wanted) for dtype in dtypes}
    return st.sampled_from(dtypes).flatmap(of.__getitem__)


@cache
def _wide(op: str, dtypes: tuple[str, ...]) -> st.SearchStrategy[Case]:
    """Return the strategy of cases of long rows or large weights, but for float64, which takes long to judge; of few
    elements where an op has no large ones."""
    spec, affordable = registry()[op], tuple(dtype for dtype in dtypes if dtype != "float64")
    if spec.large is None or not affordable:
        return _small(op, dtypes, _is_ordinary)
    calls = spec.large(WIDE)
    of = {dtype: calls((dtype,)).filter(_has_wide_room).filter(_is_wide) for dtype in affordable}
    return st.sampled_from(affordable).flatmap(of.__getitem__)


@cache
def _refused(op: str, dtypes: tuple[str, ...]) -> st.SearchStrategy[Case]:
    return registry()[op].refused(dtypes).filter(_is_small)


def _is_any(case: Case) -> bool:
    return True


def _is_ordinary(case: Case) -> bool:
    """Tell whether a call has a result of its own that is not empty."""
    found = cases.operands(case)
    own = not cases.written(case) and not any(isinstance(x, Same | View) for x in (*case.args, *case.kwargs.values()))
    return own and bool(found) and all(0 not in spec.shape for spec in found)


def _is_small(case: Case) -> bool:
    return sum(math.prod(spec.shape) for spec in cases.operands(case)) <= ELEMENTS


def _is_wide(case: Case) -> bool:
    """Tell whether it has many elements where a library may keep a copy: in operands that are not the first."""
    rest = cases.operands(case)[1:]
    return _is_ordinary(case) and (not rest or max(math.prod(spec.shape) for spec in rest) >= ELEMENTS // 2)


def _has_wide_room(case: Case) -> bool:
    return _has_room(case, 4 * WIDE)


def _has_room(case: Case, most: int = 2 * ELEMENTS) -> bool:
    """Tell whether its variations, with their result and the memory that their operands lie in, are small too."""
    try:
        case_files.validate(case, max_elements=most)
    except cases.TooLarge:
        return False
    return True


# --- changing arguments -------------------------------------------------------------------------------------------


def _changed(case: Case, change: Callable[[str, Argument], Argument]) -> Case:
    """Return the case with each argument changed, by name: positional ones by that of torch's parameter, as far as
    known."""
    known = (*parameters(case.op), *("",) * len(case.args))
    args = tuple(change(name, value) for name, value in zip(known, case.args, strict=False))
    # In the order in which operands are numbered.
    kwargs = {name: change(name, case.kwargs[name]) for name in sorted(case.kwargs)}
    return msgspec.structs.replace(case, args=args, kwargs=kwargs, digests=())


def _each(case: Case, change: Callable[[TensorSpec], TensorSpec]) -> Case:
    """Return the case with each tensor changed; not where one argument is a part of another's memory."""
    if _is_tied(case):
        return case
    return _changed(case, lambda _, value: change(value) if isinstance(value, TensorSpec) else value)


def _is_tied(case: Case) -> bool:
    """Tell whether an argument is a part of another's memory."""
    return any(isinstance(argument, Same | View) for argument in (*case.args, *case.kwargs.values()))


def _filled(case: Case, change: Callable[[TensorSpec], TensorSpec]) -> Case:
    """Return the case with each tensor changed but those whose numbers are listed."""
    return _each(case, lambda spec: spec if _is_listed(spec) else change(spec))


def _one(case: Case, number: int, change: Callable[[TensorSpec], TensorSpec]) -> Case:
    """Return the case with one tensor changed."""
    chosen, counted = number % max(len(cases.operands(case)), 1), iter(range(cases.MAX_DIMS))
    return _each(case, lambda spec: change(spec) if next(counted) == chosen else spec)


def _laid(spec: TensorSpec, **changes: object) -> TensorSpec:
    return _with(spec, msgspec.structs.replace(spec.layout, **changes))


def _with(spec: TensorSpec, layout: Layout) -> TensorSpec:
    return msgspec.structs.replace(spec, layout=layout)


def drawn(op: str, dtypes: Sequence[str], examples: int, seed: int) -> Iterator[CallSequence]:
    """Yield so many sequences of an op, always the same ones for one seed."""
    # In rounds, as cases: from the eleventh on Hypothesis draws variations of those before.
    for start in range(0, examples, session.ROUND):
        count = min(session.ROUND, examples - start)
        # Small calls are few among those of products and attention.
        found = drawing.drawn(sequences(op, tuple(dtypes)), f"{seed}/{op}/sequences/{start}", 1 + count, filtered=True)
        # The first is the simplest there is, and the same in each round.
        for number, sequence in enumerate(found[1 : 1 + count], start):
            times = (1, (RING, WARM, 1)[number % RINGS])
            ordinary = next(step.case for step in sequence.steps if step.times == RING)
            steps = (step for step in sequence.steps if step.times in times)
            # Drawn apart, so that all else is as it would be without them.
            draws, name = _refusals(op, tuple(dtypes)), f"{seed}/{op}/refusals/{number}"
            refused = drawing.drawn(draws, name, session.ROUND, filtered=True)
            last = (step for known in LAST for step in _known(ordinary, known))
            yield CallSequence(steps=(*steps, *last, *_after_refusals(ordinary, refused[1:])))
