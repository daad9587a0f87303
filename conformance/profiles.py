"""Decide how many cases of which kinds a run draws of an op and dtype, and in which rounds."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from functools import cache

import hypothesis
import msgspec
from hypothesis import HealthCheck, strategies
from hypothesis.strategies import SearchStrategy

from conformance import cases, code_draws, forms, meta_calls
from conformance import spec as specs
from conformance.cases import Case
from conformance.runner import LARGE
from conformance.sequence_variations import VARIATIONS, vary

# The time of an example depends on the machine's load. Cases have a limit of their own, which is for hangs. What
# Hypothesis explains of a failure, by more calls, is in no message of ours.
_TIMELESS = hypothesis.settings(
    deadline=None,
    suppress_health_check=(HealthCheck.too_slow,),
    phases=[phase for phase in hypothesis.Phase if phase is not hypothesis.Phase.explain],
)
PROFILES = {
    "smoke": hypothesis.settings(_TIMELESS, max_examples=15),
    "ci": hypothesis.settings(_TIMELESS, max_examples=100, derandomize=True),
    "deep": hypothesis.settings(_TIMELESS, max_examples=1000),
}
"""Profiles by name: the number of legal cases for each op and dtype, and whether they are always the same."""
QUICK_CASES, FEWEST = 2000, 5
"""About so many legal cases ``smoke`` draws of all pairs of op and dtype, and at least so many of each."""
REFUSED_SHARE = 4
"""One refused call is drawn for so many legal ones: they vary less, and cost less."""
LARGE_SHARE, LARGE_SHARE_OF_DEAR, LARGE_SHARE_OF_QUICK = 4, 5, 10
"""One large call is drawn for so many others: there are fewer where kernels are interpreted, and still fewer in
profiles that have to be quick."""
SCENES_SHARE = 6
"""One call of a model's scenes is drawn for so many legal ones."""
CODE_SHARE, CODE_SHARE_OF_QUICK = 4, 10
"""One call at a number of the implementation's code is drawn for so many legal ones, as of large ones."""
EQUAL_SHARE = 10
"""One call in which two sizes are equal is drawn for so many legal ones: of drawn sizes few are."""
PLAIN_SHARE = 8
"""One call of at most one optional argument is drawn for so many legal ones, where an operator has ``SEVERAL``: few
calls lack nearly all, and such calls go the ways that authors made fast."""
SEVERAL = 3
EXPLORED, EXPLORED_OF_DEAR = 15, 1
"""So many changed calls are made for a legal one in search of new places of the code: not in profiles that have to be
quick, and fewer on a GPU and where kernels are interpreted."""
FEW_ELEMENTS = 1 << 14
"""The most elements of such a call where there are no large ones."""

ROUND = 10
"""Cases that Hypothesis draws in one go. From the eleventh on it draws most of them as variations of those before, and
for cases, which have few parts, that gives the same ones over and over: fresh rounds find more."""


def of_run(profile: str, pairs: int) -> hypothesis.settings:
    """Return the settings of a profile for a run of so many pairs of op and dtype: of a whole library ``smoke`` draws
    fewer cases for each, since it has to be quick."""
    chosen = PROFILES[profile]
    if profile != "smoke":
        return chosen
    examples = max(FEWEST, QUICK_CASES // max(pairs, 1))
    return hypothesis.settings(chosen, max_examples=min(chosen.max_examples, examples))


@dataclasses.dataclass(frozen=True)
class Round:
    """A few cases that Hypothesis draws in one go."""

    kind: str
    """"legal", "refused", "large", "equal", "plain", "scenes" or "code"."""
    start: int
    """The number of cases of the kind that were drawn before."""
    examples: int
    draws: SearchStrategy[Case]
    seed: str
    sort: str = ""
    """The number of the sort, for scenes that are drawn apart; else empty."""


def rounds(
    op: str,
    dtype: str,
    refused: bool,
    dtypes: Sequence[str],
    settings: hypothesis.settings,
    seed: int,
    large: int = 0,
    numbers: Sequence[float] = (),
) -> Iterator[Round]:
    """Yield the rounds of one op and dtype.

    ``refused``: calls that torch refuses. ``dtypes``: the dtypes that may be mixed in one call. ``large``: after the
    others, calls of up to so many elements. ``numbers``: those of the implementation's code.

    After these come calls in which sizes are equal, and calls of few optional arguments; where the op has scenes, they
    follow, those that are ``apart`` as many as all others; and last, calls at ``numbers``.
    """
    spec, all_examples = specs.registry()[op], settings.max_examples
    # Calls that torch refuses may mix what legal ones do not.
    others = [d for d in dtypes if d in spec.dtypes] if spec.mixes or refused else []

    def of(kind: str, calls: specs.Cases, examples: int) -> Iterator[Round]:
        return _in_rounds(kind, _of_dtype(calls, dtype, others), examples, f"{seed}/{op}/{dtype}/{kind}")

    if refused:
        yield from of("refused", spec.refused, -(-all_examples // REFUSED_SHARE))
        return
    yield from of("legal", spec.cases, all_examples)
    quick = all_examples < PROFILES["ci"].max_examples
    share = LARGE_SHARE_OF_DEAR if large < LARGE[""] else LARGE_SHARE
    if quick:
        share = LARGE_SHARE_OF_QUICK
    if large and spec.large is not None:
        yield from of("large", spec.large(large), all_examples // share)
    yield from of("equal", _of_equal_sizes(spec), -(-all_examples // EQUAL_SHARE))
    if (plain := all_examples // PLAIN_SHARE) and len(_optional(op)) >= SEVERAL:
        yield from of("plain", _of_plain_calls(spec), plain)
    # The last, in rounds of their own: what else is drawn and tried stays as it is without them.
    if spec.scenes is not None or spec.apart:
        scenes = -(-all_examples // SCENES_SHARE)
        apart = [calls for calls in (one((dtype,)) for one in spec.apart) if not calls.is_empty]
        yield from of("scenes", spec.all_scenes(dtype), scenes - scenes // 2 if apart else scenes)
        for place, calls in enumerate(apart):
            # One more: the first is the simplest there is.
            examples = 1 - (-scenes // (2 * len(apart)))
            yield from _in_rounds("scenes", calls, examples, f"{seed}/{op}/{dtype}/scenes {place}", str(place))
    if found := code_draws.calls(spec, numbers, large or FEW_ELEMENTS):
        yield from of("code", found, all_examples // (CODE_SHARE_OF_QUICK if quick else CODE_SHARE))


def _in_rounds(kind: str, draws: SearchStrategy[Case], examples: int, name: str, sort: str = "") -> Iterator[Round]:
    if kind not in ("legal", "refused") and draws.is_empty:
        # Of float64 there may be no large calls. An operator without legal ones is an error.
        return
    for start in range(0, examples, ROUND):
        # The first case of each round is the simplest there is, and the same in all rounds.
        yield Round(kind, start, min(ROUND, examples - start) + (start > 0), draws, f"{name}/{start}", sort)


def _of_equal_sizes(spec: specs.OpSpec) -> specs.Cases:
    """Return the op's calls with two sizes made equal; of three drawn ones the first of which that can be said. Where a
    size follows from others, as a table's does, torch takes none that is changed alone."""

    def equal(drawn: Sequence[Case]) -> Case:
        changed = ((case, vary(VARIATIONS["equal"], case, cases.seed(case))) for case in drawn)
        return next((one for case, one in changed if one != case and meta_calls.result(one) is not None), drawn[0])

    return lambda dtypes: strategies.tuples(*[spec.cases(dtypes)] * 3).map(equal)


def _optional(op: str) -> list[str]:
    """Return the parameters that a call may leave out, but for those that say where the result is written."""
    signature = forms.signature(op).items()
    return [name for name, one in signature if one.default is not one.empty and name not in ("out", "inplace")]


def _of_plain_calls(spec: specs.OpSpec) -> specs.Cases:
    """Return the op's calls without the optional arguments that are given by name, or with one of them; of three drawn
    ones the first of which that can be said."""
    optional = {*_optional(spec.name)}

    def plain(drawn: Sequence[Case]) -> Case:
        for case in drawn:
            given = sorted(optional & case.kwargs.keys())
            left = {*given} - {*given[cases.seed(case) % (len(given) + 1) :][:1]}
            kwargs = {name: value for name, value in case.kwargs.items() if name not in left}
            changed = spec.defined(msgspec.structs.replace(case, kwargs=kwargs))
            if left and meta_calls.result(changed) is not None:
                return changed
        return drawn[0]

    return lambda dtypes: strategies.tuples(*[spec.cases(dtypes)] * 3).map(plain)


def _of_dtype(cases_of: specs.Cases, dtype: str, dtypes: Sequence[str]) -> SearchStrategy[Case]:
    """Return a strategy of cases of ``dtype`` alone, and as many in which it may meet another one; the former are
    simpler."""
    alone, others = cases_of((dtype,)), [other for other in dtypes if other != dtype]
    if not others:
        return alone

    # Cached: Hypothesis spends more time on validating a strategy than on drawing from it.
    @cache
    def mix(other: str) -> SearchStrategy[Case]:
        def mixed(case: Case) -> bool:
            found = [spec.dtype for spec in cases.operands(case)]
            return dtype in found and (other in found or len(found) == 1)

        return cases_of((dtype, other)).filter(mixed)

    return strategies.one_of(alone, strategies.sampled_from(others).flatmap(mix))
