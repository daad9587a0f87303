"""Draw sequences that show what a library keeps from call to call: each call differs from another in one thing that a
cache may forget to look at.

The calls that show the known ways of keeping too much are in every sequence, of one ordinary case; beside them stand
variations of any cases.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from random import Random
from typing import NamedTuple, get_args

import torch
from hypothesis import strategies as st

from conformance import case_files, cases, code_draws, drawing, forms, profiles, sequence_cases, sequence_training
from conformance.case_changes import is_listed, is_tied, named_arguments, with_argument, with_size
from conformance.cases import Case, Same, View
from conformance.sequence_variations import TWINS, VARIATIONS, WIDE, dtype, fresh_size, plain, twin, vary
from conformance.sequences import CallSequence, Memory, Result, Settings, Step
from conformance.spec import parameters, registry
from strategies.specs import TensorSpec

PAIRS = 6
"""The number of pairs of calls in a sequence, of any case and a variation of it; but any two calls may disturb one
another."""
RING, RINGS = 18, 3
"""The number of results of one shape that are kept, all different, in the first of so many sequences: more than a ring
of 16 buffers holds."""
WARM = 48
"""The number of calls of one shape on the same tensors in the second of as many: a recording that is made once a call
was frequent has to be replayed with the tensors' present contents."""
OFTEN = 300
"""The most calls of one shape that are made since the implementation's code has such a number."""
OPTIONS = 24
"""The most calls of each sequence that differ from one of its calls in one option alone."""
AFTER_REFUSALS = (("dim", 0), ("word", 0), ("twin", 3), ("twin", 5), ("causal", 1))
"""The variations of the ordinary case that follow refused calls at the end of each sequence: of another dim or with
options, they may meet what the refused call has left. Any calls follow a few more."""
RELATIVES = 4
"""The number of other operators of each sequence that are called with options."""
EMPTIED = 3
"""The most sizes of such a call that are 0 in further ones, one at a time."""
TRAINED = 8
"""The number of other operators of each sequence that are differentiated between calls that are, too."""

OUT = ("float64", "float32", "int64", "bool")
"""The dtypes of an ``out``, as far as torch casts results to them."""
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


@st.composite
def sequences(draw: st.DrawFn, ordinary: Case, dtypes: tuple[str, ...]) -> CallSequence:
    """Return the strategy of sequences of calls of the op of an ordinary case, whose other cases are of ``dtypes``."""
    spec = registry()[ordinary.op]
    bases = [ordinary, *(draw(sequence_cases.small(spec.name, dtypes, sequence_cases.is_any)) for _ in range(2))]
    pairs = [_known(ordinary, known) for known in KNOWN]
    for _ in range(PAIRS):
        base, name, number = draw(_BASE), draw(_NAME), draw(_NUMBER)
        case = bases[base]
        if name == "refused":
            pair = (draw(sequence_cases.refused(spec.name, dtypes)), case)
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
    return st.tuples(sequence_cases.refused(op, dtypes), sequence_cases.small(op, dtypes, sequence_cases.is_any))


def _after_refusals(ordinary: Case, drawn: Sequence[tuple[Case, Case]]) -> Iterator[Step]:
    """Yield refused calls, and after each a legal one."""
    for place, (refused, legal) in enumerate(drawn):
        yield Step(refused)
        if place < len(AFTER_REFUSALS):
            name, number = AFTER_REFUSALS[place]
            legal = vary(VARIATIONS[name], ordinary, number)
        yield Step(legal)


def _after_relatives(
    ordinary: Case, beyond: Callable[[str], Case], dtypes: Sequence[str], seed: str, turn: int
) -> Iterator[Step]:
    """Yield calls of other operators with their options, and after each one the ordinary call: a launcher or a
    workspace that they share may be left as the last call wanted it; and then such calls of no elements, each before a
    call that ``beyond`` returns for a seed. Each ``turn`` has other operators."""
    able = {other: tuple(one for one in dtypes if one in registry()[other].dtypes) for other in relatives(ordinary.op)}
    known = [(other, shared) for other, shared in able.items() if shared]
    for place in range(min(RELATIVES, len(known))):
        other, shared = known[(RELATIVES * turn + place) % len(known)]
        draws = sequence_cases.small(other, shared, sequence_cases.is_ordinary)
        found = sequence_cases.several(draws, f"{seed}/{other}", sequence_cases.TRIES)
        if found:
            richest = vary(plain, max(found, key=sequence_cases.richness), 0)
            yield Step(richest)
            yield Step(ordinary)
            specs = cases.operands(richest)
            # Indices belong to sizes.
            sizes = [] if any(map(is_listed, specs)) else sorted({size for spec in specs for size in spec.shape})
            # With nothing to do, as of an expert without tokens, what was taken may not be given back.
            emptied = (vary(lambda one, size: with_size(one, size, 0), richest, size) for size in sizes[-EMPTIED:])
            for empty in (one for one in emptied if one != richest):
                yield Step(empty)
                yield Step(beyond(f"{seed}/{cases.case_id(empty)}"))


def _written(ordinary: Case) -> Iterator[Step]:
    """Yield calls of sizes of their own with an ``out``, of each of a few dtypes, and after each the call without: the
    dtype of the result may be kept for a shape. Nothing for an op that takes no ``out``, a call that writes an operand,
    or one of which no size can be another."""
    is_able = "out" in forms.signature(ordinary.op) and not cases.written(ordinary)
    if not is_able or vary(fresh_size, ordinary, 0) == ordinary:
        return
    for number, wanted in enumerate(OUT):
        case = vary(fresh_size, ordinary, number)
        call = case_files.on_meta(case)
        result = None if call is None else call.result
        if isinstance(result, torch.Tensor) and torch.can_cast(result.dtype, getattr(torch, wanted)):
            out = TensorSpec(tuple(result.shape), wanted, "zeros")
            yield Step(with_argument(case, "out", out))
            yield Step(case)


def _trained(op: str, dtypes: Sequence[str], seed: str) -> list[Case]:
    """Return calls of other operators that have gradients."""
    able = {name: tuple(one for one in dtypes if one in spec.dtypes) for name, spec in registry().items()}
    known = [name for name, shared in able.items() if shared and name != op and registry()[name].gradients]
    chosen = Random(seed).sample(known, min(TRAINED, len(known)))
    draws = [sequence_cases.small(name, able[name], sequence_cases.is_ordinary) for name in chosen]
    return [case for one in draws for case in sequence_cases.several(one, seed, 1)]


@cache
def relatives(op: str) -> tuple[str, ...]:
    """Return the operators that share at least two required parameter names with an operator, or all of them if it has
    fewer."""
    wanted = {*parameters(op, required=True)}
    shared = {other: len(wanted & {*parameters(other, required=True)}) for other in registry() if other != op}
    return tuple(other for other, count in shared.items() if count >= min(2, len(wanted)))


def _beyond(found: Sequence[Case], numbers: Sequence[float], seed: str) -> Case:
    """Return the first of some calls that can have sizes of one more than some numbers of the code, with these: from
    them on it may keep more. The first call itself where there are no such numbers, or all are too large."""
    random, fit = Random(seed), _sizes(numbers)
    if not fit:
        return found[0]
    # Beyond the largest one it is beyond all that count elements.
    wanted = [random.choice((max(fit), *fit)) + 1 for _ in range(random.choice((1, 1, 2, 3)))]
    sized = (one for case in found for one in code_draws.sized(case, wanted, random.randrange(60), WIDE))
    return next(filter(_is_allowed, sized), found[0])


def _is_usual(case: Case) -> bool:
    return sequence_cases.is_ordinary(case) and sequence_training.is_usual(case)


def _sizes(numbers: Sequence[float]) -> list[int]:
    """Return the numbers of the code that may be sizes."""
    known = [int(number) for number in numbers if number == int(number)]
    return [number for number in known if code_draws.LEAST <= number < WIDE]


def _is_allowed(case: Case) -> bool:
    return code_draws.is_allowed(registry()[case.op], case, 4 * WIDE)


def _with_options(ordinary: Case, others: Sequence[Case]) -> Iterator[Step]:
    """Yield a call, and then calls that differ from it in one option: an optional tensor is left out, or
    another argument is as in one of the other calls. What was made ready for a shape may depend on any of them."""
    required, given = parameters(ordinary.op, required=True), named_arguments(ordinary)
    found = [
        with_argument(ordinary, name, None)
        for name, value in given.items()
        if name not in required and isinstance(value, TensorSpec)
    ]
    for other in others:
        options = {name: value for name, value in named_arguments(other).items() if not isinstance(value, _OF_MEMORY)}
        found += [with_argument(ordinary, name, value) for name, value in options.items() if given.get(name) != value]
        found += [with_argument(ordinary, name, None) for name in ordinary.kwargs if name not in named_arguments(other)]
    known = {cases.case_id(ordinary)}
    for case in found:
        if len(known) <= OPTIONS and cases.case_id(case) not in known and _is_allowed(case):
            if len(known) == 1:
                yield Step(ordinary)
            known.add(cases.case_id(case))
            yield Step(case)


def _between(calls: Iterable[Step], refused: Sequence[Step], first: int) -> Iterator[Step]:
    """Yield a refused call before every other one of ``calls``: what it leaves may undo the options of the next call,
    or hide that an earlier one is remembered."""
    for place, call in enumerate(calls, first):
        if refused and place % 2:
            yield refused[place // 2 % len(refused)]
        yield call


_OF_MEMORY = TensorSpec | Same | View


def _known(case: Case, known: tuple[Known, ...]) -> tuple[Step, ...]:
    """Return the steps of one entry of ``KNOWN``; other operators, dims, causal variants and caches only where the case
    has any."""
    found = []
    for name, number, memory, result, settings in known:
        varied = vary(VARIATIONS[name], case, number)
        if memory == "arena" and not _fits_arena(varied):
            continue
        if varied != case or name not in ("dim", "from_end", "causal", "decoding", "sibling", "regrouped"):
            found.append(Step(varied, memory, result, settings))
    return tuple(found)


def _fits_arena(case: Case) -> bool:
    """Tell whether a call has several operands, each with memory of its own, and writes none."""
    return len(cases.operands(case)) > 1 and not is_tied(case) and not registry()[case.op].writes(case)


def _pair(name: str, case: Case, number: int) -> tuple[Case, Case]:
    """Return two calls that differ in one thing."""
    varied = vary(VARIATIONS[name], case, number)
    if name == "twin":
        return varied, vary(twin, case, (number + 1) % len(TWINS))
    if name == "zeros":
        return varied, vary(dtype, varied, number)
    return (case, varied) if number % 2 else (varied, case)


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
    # While rows are appended, though rows of the cache are changed in between, as a beam search reorders them.
    (*(Known("decoding", number, "same", "dropped") for number in range(5)),),
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
    # By contents that have one sum and one largest element, by equal ones, and by numbers that are almost equal.
    (*(Known("one_hot", number, "new", "dropped") for number in range(4)),),
    (Known("zeros", 0, "new", "dropped"), Known("negative_zeros", 0, "new", "dropped")),
    # By a hash.
    (Known("from_end", 0, "new", "dropped"), Known("from_end", 1, "new", "dropped")),
    (*(Known("close", number, "new", "dropped") for number in range(6)),),
    # In memory that was allocated in inference mode, and may not be written outside of it.
    (Known("fresh", 1, "new", "kept", _INFERENCE), Known("fresh", 1, "new", "kept")),
    # With a number that is a tensor of the default dtype.
    (Known("fresh", 1, "new", "kept", _HALF),),
    # On another default device.
    (Known("fresh", 1, "new", "kept", Settings(default_device="meta")),),
    # With products of fewer bits, or of another range.
    (Known("fresh", 1, "new", "kept", Settings(precision="medium")),),
    # By the number of rows in all batches, or of elements.
    (Known("same", 0, "new", "dropped"), *(Known("regrouped", number, "new", "dropped") for number in range(4))),
    # Of operands that are told apart by their storages.
    (Known("same", 0, "arena", "kept"),),
)
"""Those that stand in this order before the refused calls, so that the order of all others does not depend on them."""


# --- what is drawn ------------------------------------------------------------------------------------------------

_BASE = st.sampled_from((0, 0, 1, 2))
_OFTEN = (*("contents",) * 6, "dtype", "twin", "twin", "larger", "refused")
_NAME = st.sampled_from((*_OFTEN, *VARIATIONS))
_NUMBER, _SELDOM = st.integers(0, 11), st.integers(0, 5)
_MEMORY = st.sampled_from([one for one in get_args(Memory) if one != "arena"])
_SETTINGS = st.one_of(*(st.just(Settings()),) * 2, st.sampled_from(SETTINGS))
_RESULT = st.sampled_from(("kept", *get_args(Result)))


def drawn(
    op: str, dtypes: Sequence[str], examples: int, seed: int, numbers: Sequence[float] = ()
) -> Iterator[CallSequence]:
    """Yield so many sequences of an op, always the same ones for one seed. From the third on they also have one more
    call of one shape than one of ``numbers``, those of the implementation's code, and one more again."""
    often = [int(number) for number in numbers if number == int(number) and RING - 2 < number <= OFTEN]
    # In rounds, as cases: from the eleventh on Hypothesis draws variations of those before.
    for start in range(0, examples, profiles.ROUND):
        count = min(profiles.ROUND, examples - start)
        ordinary_calls = sequence_cases.ordinary(op, tuple(dtypes), count, f"{seed}/{op}/ordinary/{start}")
        for number, ordinary in enumerate(ordinary_calls, start):
            sequence = sequence_cases.one(sequences(ordinary, tuple(dtypes)), f"{seed}/{op}/sequences/{number}")
            times = (1, (RING, WARM, 1)[number % RINGS])
            steps = [step for step in sequence.steps if step.times in times]
            # Calls of the first operator are judged.
            steps[:0] = [Step(ordinary)] * (steps[0].case.op != op)
            # Drawn apart, so that all else is as it would be without them.
            draws, name = _refusals(op, tuple(dtypes)), f"{seed}/{op}/refusals/{number}"
            refused = drawing.drawn(draws, name, profiles.ROUND, filtered=True)
            last = (step for known in LAST for step in _known(ordinary, known))
            legal = [one for _, one in refused[1:]]
            # Only an option that a call has can be left out, and only of many elements something depends on it.
            able = (ordinary, *filter(sequence_cases.is_ordinary, legal))
            rich = [vary(plain, case, 0) for case in sorted(able, key=sequence_cases.richness, reverse=True)]
            further = functools.partial(_beyond, rich, numbers)
            beyond = further(f"{seed}/{op}/beyond/{number}")
            count_up = (Step(beyond, times=most + 2) for most in often[number - 2 :][:1] if number > 1)
            options = _between(_with_options(beyond, legal), [Step(one) for one, _ in refused[1:]], number)
            relatives_too = _after_relatives(ordinary, further, dtypes, f"{seed}/{op}/relatives/{number}", number)
            usual = sequence_cases.small(op, tuple(dtypes), _is_usual)
            few = sequence_cases.several(usual, f"{seed}/{op}/usual/{number}", sequence_cases.TRIES)
            trained = [*[beyond] * (number % 3 > 0), *few, ordinary, *rich]
            others = _trained(op, tuple(dtypes), f"{seed}/{op}/trained/{number}")
            training = sequence_training.steps(trained, others, dtypes, _sizes(numbers))
            after = (
                *_after_refusals(ordinary, refused[1:]),
                *relatives_too,
                *_written(max((ordinary, *few), key=_is_usual)),
                *training,
            )
            yield CallSequence(steps=(*steps, *count_up, *options, *last, *after))
