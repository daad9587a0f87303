"""Run the suite's search on many implementations of one op at once, each judged on the same cases in the same order.

Which cases the suite draws does not depend on what is judged until something fails, so they are drawn, and prepared,
once for all.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache
from types import SimpleNamespace

import hypothesis
import msgspec
import torch

from conformance import cases, code_search, drawing, huge_calls, long_calls, profiles, runner
from conformance import spec as specs
from conformance.cases import Case
from conformance.checks import (
    CHECKS,
    DERIVED,
    DEVIATION,
    FAILED,
    OF_HUGE,
    RARE,
    UNCLAIMED,
    Outcome,
    Trial,
    least_tried,
    malformed,
)
from conformance.checks.result import judged
from conformance.implementations import Implementation
from conformance.runner import Prepared, Verdict
from conformance.selftest import defect_registry
from conformance.selftest.controls import controls
from conformance.selftest.correct import here
from conformance.selftest.defect_registry import Defect
from conformance.selftest.differentiable import differentiable

CPU = torch.device("cpu")
UNWATCHED = tuple(check for check in CHECKS if check != "memory")


class Result(msgspec.Struct, frozen=True):
    """What came of one planted defect."""

    name: str
    op: str
    kind: str
    check: str
    """The check that has to catch it."""
    about: str
    examples: int
    """How many cases it took; of a survivor, how many there were."""
    case: Case | None = None
    """The case that caught it; None: it survived."""
    first: str = ""
    """What the failure is called: the first check that failed in that case."""
    otherwise: tuple[str, ...] = ()
    """Other checks that it failed, in that case or before."""

    @property
    def killed(self) -> bool:
        return self.case is not None


def suite_cases(op: str, settings: hypothesis.settings, seed: int = 0) -> Iterator[Case]:
    """The cases that the suite judges of an op, all its dtypes, legal and refused; none twice.

    The suite goes through one dtype after the other; here each has a round in turn, so that what shows with the last
    dtype alone need not wait for all the others. The cases are the same.
    """
    dtypes = specs.registry()[op].dtypes
    searches = [
        profiles.rounds(op, dtype, refused, dtypes, settings, seed, runner.LARGE[""])
        for dtype in dtypes
        for refused in (False, True)
    ]
    seen: set[str] = set()
    for turn in itertools.zip_longest(*searches):
        for part in filter(None, turn):
            for case in drawing.drawn(part.draws, part.seed, part.examples):
                identity = cases.case_id(case)
                if identity not in seen:
                    seen.add(identity)
                    yield case


def code_cases(op: str, settings: hypothesis.settings, seed: int, implementation: Implementation) -> Iterator[Case]:
    """The cases that the suite judges of an op, of all its dtypes, at the numbers of an implementation's code, and at
    places of that to which no other case comes."""
    numbers, calls = implementation.numbers(op), settings.max_examples * profiles.EXPLORED
    known = {dtype: list(found) for dtype, found in _legal_cases(op, settings.max_examples, seed).items()}
    for dtype, found in known.items():
        for part in profiles.rounds(op, dtype, False, list(known), settings, seed, runner.LARGE[""], numbers):
            if part.kind == "code":
                drawn = drawing.drawn(part.draws, part.seed, part.examples)
                found += drawn
                yield from drawn
    for dtype, found in known.items():
        name = f"{seed}/{op}/{dtype}/explored"
        yield from code_search.search(found, implementation, CPU, calls, runner.LARGE[""], name)


def huge_cases(op: str, settings: hypothesis.settings, seed: int) -> Iterator[Case]:
    """The cases that the suite judges of an op, of all its dtypes, without a short dim and past all sizes that are
    drawn."""
    spec = specs.registry()[op]
    for dtype, found in _legal_cases(op, settings.max_examples, seed).items():
        yield from long_calls.calls(spec, found, spec.dtypes, dtype)
        yield from huge_calls.calls(spec, found, spec.dtypes, dtype)


@cache
def _legal_cases(op: str, examples: int, seed: int) -> dict[str, list[Case]]:
    """The legal cases of an op that do not depend on an implementation, by dtype."""
    dtypes, settings = specs.registry()[op].dtypes, drawing.settings(examples)
    return {
        dtype: [
            case
            for part in profiles.rounds(op, dtype, False, dtypes, settings, seed, runner.LARGE[""])
            for case in drawing.drawn(part.draws, part.seed, part.examples)
        ]
        for dtype in dtypes
    }


class Shared(Prepared, frozen=True):
    """What many implementations are judged on: the oracle is asked once, and so are the calls that follow."""

    following: dict[str, Shared] = msgspec.field(default_factory=dict)

    def derived(self, case: Case) -> Shared:
        identity = cases.case_id(case)
        if identity not in self.following:
            self.following[identity] = prepare(case, self.device)
        return self.following[identity]


def prepare(case: Case, device: torch.device = CPU) -> Shared:
    """As the runner does, to be shared by implementations."""
    return Shared(**msgspec.structs.asdict(runner.shared(runner.prepare(case, device))))


@cache
def right(op: str) -> Implementation:
    """The right implementation that an op's defects are built on."""
    return Implementation("conformance.selftest.correct", SimpleNamespace(**{op: here(differentiable(op))}), {op: ()})


def failed(verdict: Verdict, *, strict: bool = False) -> set[str]:
    """The checks that failed, or (not ``strict``) that found a property broken that nobody claims."""
    wanted = (FAILED,) if strict else (FAILED, UNCLAIMED)
    return {finding.check for finding in verdict.findings if finding.status in wanted}


class Control(msgspec.Struct):
    """What came of one right implementation of one op."""

    name: str
    op: str
    cases: int = 0
    sequences: int = 0
    deviations: int = 0
    """Cases in which torch itself is excused."""
    alarms: int = 0
    case: Case | None = None
    """The first case that failed; None: no false alarm."""
    message: str = ""


def study(
    op: str,
    defects: Sequence[Defect],
    implementations: Sequence[Implementation],
    settings: hypothesis.settings,
    *,
    controlled: int = 0,
    seed: int = 0,
    note: Callable[[str, Case, int], object] = lambda name, case, examples: None,
) -> tuple[list[Result], list[Control]]:
    """Judge every defect of an op on the suite's cases until the check that has to catch it does, and the right
    implementations on the first ``controlled`` of them.

    A case in which ``sound.right`` fails a check too is no catch for that check. ``note``: called before each is
    judged, with its name, the case and its number.
    """
    alive, results = {defect.name: defect for defect in defects}, []
    others: dict[str, set[str]] = {name: set() for name in alive}
    tallies = [Control(implementation.name, op) for implementation in implementations]
    least_tried.anew()
    count = 0

    def meet(prepared: Prepared, count: int, defects: Mapping[str, Defect], made: Sequence[str] | None = None) -> None:
        """Judge the defects on a case, by the checks ``made`` or as the suite does, and note those that are caught."""
        case = prepared.case
        note(right(op).name, case, count)
        wrong = failed(runner.judge_prepared(prepared, right(op), made, thorough=False)) if defects else set()
        plain = runner.tried(prepared, right(op), thorough=False) if defects else None
        for defect in list(defects.values()):
            note(defect.name, case, count)
            if defect.check in wrong or not _suspect(prepared, defect, plain):
                continue
            # Those that are rare are made of each case here.
            checks = (defect.check,) if defect.check in RARE else made
            verdict = runner.judge_prepared(prepared, defect.implementation, checks, thorough=False)
            if verdict.failure and verdict.failure.check == "memory" != defect.check:
                # After it nothing else is judged; but it is the interpreter's, and on a GPU others have to see it.
                others[defect.name].add("memory")
                verdict = runner.judge_prepared(prepared, defect.implementation, UNWATCHED)
            found = failed(verdict) - wrong
            others[defect.name] |= found - {defect.check}
            if defect.check in failed(verdict, strict=True) - wrong and verdict.failure:
                del alive[defect.name]
                told = others[defect.name], cases.canonical(case), verdict.failure.check
                results.append(result(defect, count, *told))

    with warnings.catch_warnings(action="ignore"):
        for case in suite_cases(op, settings, seed):
            if not alive and count >= controlled:
                break
            count += 1
            prepared = prepare(case)
            if count <= controlled:
                for tally, implementation in zip(tallies, implementations, strict=True):
                    note(tally.name, case, count)
                    _control(tally, prepared, implementation)
            meet(prepared, count, alive)
        # Of those that are left each has the calls that its own code leads to.
        for one in list(alive.values()):
            for count_of_own, case in enumerate(code_cases(op, settings, seed, one.implementation), count + 1):
                meet(prepare(case), count_of_own, {one.name: one})
                if one.name not in alive:
                    break
        reached = {name: one for name, one in alive.items() if one.check in OF_HUGE}
        for count_of_own, case in enumerate(huge_cases(op, settings, seed) if reached else (), count + 1):
            if left := {name: one for name, one in reached.items() if name in alive}:
                meet(prepare(case), count_of_own, left, OF_HUGE)
    results += [result(defect, count, others[defect.name]) for defect in alive.values()]
    return results, tallies


def study_op(
    op: str,
    names: Sequence[str],
    controlled: int,
    seed: int,
    note: Callable[[str, Case, int], object],
    without: Collection[str] = (),
) -> tuple[list[Result], list[Control]]:
    """``study`` of an op's defects of these names in the ci profile, and of its controls, in whatever process.

    ``without``: names of controls that are left out."""
    torch.set_num_threads(1)
    defects = [defect_registry.bank()[name] for name in names]
    implementations = [control for control in controls(op) if control.name not in without] if controlled else []
    ci, dtypes = profiles.PROFILES["ci"], len(specs.registry()[op].dtypes)
    if controlled <= ci.max_examples * dtypes:
        return study(op, defects, implementations, ci, controlled=controlled, seed=seed, note=note)
    # The profile has fewer cases than are to be controlled; defects get no more than those.
    # Half as many again are drawn as are judged, since a third may have been drawn before.
    more = hypothesis.settings(ci, max_examples=-(-3 * controlled // (2 * dtypes)))
    found, _ = study(op, defects, (), ci, seed=seed, note=note)
    return found, study(op, (), implementations, more, controlled=controlled, seed=seed, note=note)[1]


def _suspect(prepared: Prepared, defect: Defect, right: Trial | None) -> bool:
    """Whether the check that has to catch it fails when it is made alone: all the others cost several times as much.

    Of calls that follow some take their turn as it is, and ``values`` looks at one call in ordinary memory first.
    ``right``: what came of the right implementation."""
    if defect.check in DERIVED:
        return True
    if defect.check == "values" and right is not None and right.refusal is None and right.ours.error is None:
        ours = prepared.invoke(defect.implementation.maker(defect.op))
        if ours.error is None and _of_one_form(ours, right.reference):
            return judged(right, ours, (right.expected, right.sample)).status == FAILED
    return defect.check in failed(runner.judge_prepared(prepared, defect.implementation, (defect.check,)), strict=True)


def _of_one_form(first: Outcome, second: Outcome) -> bool:
    if malformed(first.value, second.value):
        return False
    forms = ([(tensor.shape, tensor.dtype) for tensor in outcome.tensors()] for outcome in (first, second))
    return next(forms) == next(forms)


def result(defect: Defect, examples: int, others: set[str], case: Case | None = None, first: str = "") -> Result:
    """What came of a defect after so many examples."""
    known = tuple(sorted(others))
    return Result(defect.name, defect.op, defect.kind, defect.check, defect.about, examples, case, first, known)


def _control(tally: Control, prepared: Prepared, implementation: Implementation) -> None:
    verdict = runner.judge_prepared(prepared, implementation, thorough=False)
    tally.cases += 1
    tally.deviations += verdict.status == DEVIATION
    if verdict.failure:
        tally.alarms += 1
        tally.case = tally.case or cases.canonical(prepared.case)
        tally.message = tally.message or f"{verdict.failure.check}: {verdict.failure.message}"


def by_op(defects: Iterable[Defect]) -> dict[str, list[Defect]]:
    """The defects of each op."""
    found: dict[str, list[Defect]] = {}
    for defect in defects:
        found.setdefault(defect.op, []).append(defect)
    return found
