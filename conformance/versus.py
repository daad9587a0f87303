"""The same cases made by several implementations: who disagrees with whom, and who with the oracle.

N-version testing (A. Avizienis, The N-Version Approach to Fault-Tolerant Software, 1985): where all others agree with
each other and not with the oracle, it is the oracle that has to be looked at.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import hypothesis
import msgspec
import torch

from conformance import cases, corpus, drawing, failure_causes, float_formats, messages, runner
from conformance import spec as specs
from conformance.cases import Case, CaseError
from conformance.checks import FAILED, PASSED, Finding, Trial, malformed
from conformance.checks.result import errors, judged
from conformance.compare import compare
from conformance.implementations import Implementation, ImplementationError
from conformance.judged_process import Ended, JudgedProcess
from conformance.names import unknown_name
from conformance.profiles import PROFILES, rounds
from conformance.runner import CRASH, NOT_PROVIDED, TIMEOUT, Prepared
from conformance.semantics import CUDA
from conformance.spec import Expected

ORACLE = "oracle"
"""Its name among the sides."""
PRINTED = 6
"""Lines that are shown of what is said of a process that died."""
KIND = 3
"""Features that are told of a dispute that is alone."""
ANY = "any"
"""A kind of input: all calls of the operator and dtype."""
OUTVOTED = "the oracle is outvoted: look at it"


class Count(msgspec.Struct):
    """What came of all calls of one implementation. ``share``: the largest share of the bound that a right one used."""

    implementation: str
    agreed: int = 0
    disagreed: int = 0
    not_provided: int = 0
    share: float = 0.0


class Group(msgspec.Struct, frozen=True):
    """Cases of one operator and dtype in which the same implementations are on the same sides.

    ``sides``: the oracle and who agrees with it, then the others. ``disputed`` of ``cases`` with this kind of input are
    in the group. The simplest of them is ``case``, saved as ``path``; ``messages`` has what each implementation did
    that is not on the oracle's side.
    """

    op: str
    dtype: str
    kind: str
    sides: tuple[tuple[str, ...], ...]
    outvoted: bool
    disputed: int
    cases: int
    case: str
    path: str
    call: str
    messages: Mapping[str, str]


class Report(msgspec.Struct):
    """The findings of ``compare_all``."""

    implementations: Mapping[str, str]
    """The full names by the short ones, which stand everywhere else."""
    device: str
    seed: int
    examples: int
    counts: list[Count]
    groups: list[Group] = []
    cases: int = 0
    semantics: str = CUDA

    def lines(self) -> Iterator[str]:
        """Yield the lines of the report, as Markdown."""
        yield "| implementation | agrees with the oracle | disagrees | not provided | most of the bound used |"
        yield "| --- | --- | --- | --- | --- |"
        for one in self.counts:
            yield (f"| {one.implementation} | {one.agreed} | {one.disagreed} | {one.not_provided} | {one.share:.2g} |")
        if not self.groups:
            return
        yield ""
        yield "| operator | dtype | kind of input | sides | cases | simplest case |"
        yield "| --- | --- | --- | --- | --- | --- |"
        for group in self.groups:
            marked = f"{_written(group.sides)}{f' ({OUTVOTED})' if group.outvoted else ''}"
            of = f"{group.disputed} of {group.cases}"
            yield f"| {group.op} | {group.dtype} | {group.kind} | {marked} | {of} | {group.case} |"
        for group in self.groups:
            yield f"\n{group.case} ({group.path}), {_written(group.sides)}: {group.call}"
            yield from (f"  {name}: {message}" for name, message in group.messages.items())


@dataclasses.dataclass(frozen=True)
class _Made:
    """The answer of one implementation to a case."""

    status: str
    """``PASSED``: it agrees with the oracle; ``FAILED``; ``NOT_PROVIDED``."""
    message: str = ""
    share: float = 0.0
    results: tuple[torch.Tensor, ...] = ()
    """Of a call that disagrees in values."""
    instead: str = ""
    """What it did, where it returned no values."""


@dataclasses.dataclass(frozen=True)
class _Dispute:
    """A case on which not all agree with the oracle."""

    case: Case
    sides: tuple[tuple[str, ...], ...]
    outvoted: bool
    messages: Mapping[str, str]


def compare_all(
    names: Sequence[str],
    ops: Sequence[str],
    dtypes: Sequence[str] = (),
    *,
    device: str = "auto",
    examples: int = PROFILES["smoke"].max_examples,
    seed: int = 0,
    timeout: float = 0.0,
    folder: Path = corpus.FAILURES,
    semantics: str = CUDA,
) -> Report:
    """Let the implementations called so make the legal cases that the suite draws for a seed, each in its own process.

    ``dtypes``: of the ops, all where none is named. ``examples``: cases of each op and dtype. ``timeout``: seconds for
    a case, 0 is no limit. ``folder``: where the simplest case of each group goes. ``semantics``: as of
    ``runner.choose_semantics``.
    Raises CaseError, ImplementationError and runner.DeviceError: names that are none.
    """
    pairs, mixed = _asked(ops, dtypes)
    short = _short(names)
    where = runner.resolve_device(device)
    runner.choose_semantics(semantics, where)
    counts = [Count(name) for name in short]
    report = Report(short, messages.device_name(where), seed, examples, counts, semantics=semantics)
    with contextlib.ExitStack() as stack:
        processes = {
            name: stack.enter_context(contextlib.closing(JudgedProcess(full, where, timeout)))
            for name, full in short.items()
        }
        for op, dtype in pairs:
            disputes, kinds, made = [], Counter[str](), 0
            for case in _drawn(op, dtype, mixed, examples, seed):
                answers, expected = _made_by_all(runner.shared(runner.prepare(case, where)), processes)
                made += 1
                kinds.update(failure_causes.notable(case))
                _count(report.counts, answers)
                if dispute := _dispute(case, answers, expected):
                    disputes.append(dispute)
            report.cases += made
            report.groups += _groups(op, dtype, disputes, kinds, made, folder)
            print(f"{op} ({dtype}): {made} cases, {len(disputes)} disputed", file=sys.stderr, flush=True)
    return report


def _written(sides: Sequence[Sequence[str]]) -> str:
    return " / ".join(", ".join(side) for side in sides)


def _asked(ops: Sequence[str], dtypes: Sequence[str]) -> tuple[list[tuple[str, str]], list[str]]:
    """Return the pairs of op and dtype that are asked for, and the dtypes that may be mixed in one call."""
    known = specs.registry()
    for op in ops:
        if op not in known:
            raise CaseError(unknown_name("op", op, sorted(known)))
        if not known[op].drawn:
            raise CaseError(f"no calls of {op} are drawn: its saved cases alone are judged")
        if "distribution" in known[op].checks:
            raise CaseError(f"results of {op} are random: implementations need not agree")
    valid = list(dict.fromkeys(dtype for spec in known.values() for dtype in spec.dtypes))
    for dtype in dtypes:
        if dtype not in valid:
            raise CaseError(unknown_name("dtype", dtype, valid))
    pairs = [(op, dtype) for op in dict.fromkeys(ops) for dtype in known[op].dtypes if not dtypes or dtype in dtypes]
    if not pairs:
        takes = "; ".join(f"{op} takes {', '.join(known[op].dtypes)}" for op in ops)
        raise CaseError(f"no op that was asked for takes the dtypes that were asked for: {takes}")
    return pairs, list(dtypes) or valid


def _short(names: Sequence[str]) -> dict[str, str]:
    """Return the names by their last parts; by themselves, where others have the same. Raises ImplementationError."""
    if len({*names}) < max(len(names), 2):
        raise ImplementationError("versus takes at least two implementations, each once")
    last = {name: re.split(r"[.:/]", name.removesuffix(".py"))[-1] for name in names}
    times = Counter([ORACLE, *last.values()])
    return {short if times[short] == 1 else name: name for name, short in last.items()}


def _drawn(op: str, dtype: str, mixed: Sequence[str], examples: int, seed: int) -> list[Case]:
    settings = hypothesis.settings(PROFILES["smoke"], max_examples=examples)
    found = (
        case
        for part in rounds(op, dtype, False, mixed, settings, seed)
        for case in drawing.drawn(part.draws, part.seed, part.examples)
    )
    return [*{cases.case_id(case): case for case in found}.values()]


def _made_by_all(
    prepared: Prepared, processes: Mapping[str, JudgedProcess]
) -> tuple[dict[str, _Made], tuple[Expected, ...]]:
    """Return what each made of a case, and the oracle's answer, where one disagrees in values."""
    answers, expected = {}, ()

    def make(implementation: Implementation) -> _Made:
        nonlocal expected
        made, asked = _made(prepared, implementation)
        expected = expected or asked
        return made

    for name, process in processes.items():
        try:
            answers[name] = process.asked(make)
        except Ended as end:
            told = "\n".join(str(end).splitlines()[:PRINTED])
            answers[name] = _Made(FAILED, f"{end.check}: {told}", instead=end.check)
    return answers, expected


def _made(prepared: Prepared, implementation: Implementation) -> tuple[_Made, tuple[Expected, ...]]:
    if implementation.function(prepared.case.op) is None:
        return _Made(NOT_PROVIDED), ()
    assert implementation.judged is not None
    implementation.judged.forget()
    trial = runner.tried(prepared, implementation)
    if trial.left_out:
        return _Made(NOT_PROVIDED), ()
    if trial.ours.error is not None or trial.refusal is not None:
        found = errors(trial)
        took = "takes it" if trial.ours.error is None else f"raises {type(trial.ours.error).__name__}"
        return _Made(found.status, _told(trial, found), instead=took), ()
    if wrong := malformed(trial.ours.value, trial.reference.value):
        return _Made(FAILED, wrong, instead=wrong), ()
    found = judged(trial, trial.ours)
    if found.status == PASSED:
        return _Made(PASSED, share=found.share or 0.0), ()
    pairs = zip(trial.ours.tensors(), trial.reference.tensors(), strict=True)
    sample = trial.sample
    # Of one of another shape there is no such sample.
    results = (ours if sample is None or ours.shape != theirs.shape else sample.of(ours) for ours, theirs in pairs)
    return _Made(FAILED, _told(trial, found), results=tuple(one.detach().cpu() for one in results)), trial.expected


def _told(trial: Trial, found: Finding) -> str:
    name = trial.excuse(trial.case, found.check) if found.status == FAILED else None
    return f"{found.message}\n    a named deviation of torch: {name}" if name else found.message


def _count(counts: Sequence[Count], answers: Mapping[str, _Made]) -> None:
    for count in counts:
        made = answers[count.implementation]
        count.agreed += made.status == PASSED
        count.disagreed += made.status == FAILED
        count.not_provided += made.status == NOT_PROVIDED
        count.share = max(count.share, made.share)


def _dispute(case: Case, answers: Mapping[str, _Made], expected: Sequence[Expected]) -> _Dispute | None:
    """Return the sides of a case, if there are others than the oracle's.

    Those within the bound of the oracle are on its side. Of the others those are on one side that lie within twice the
    bound of each other, or that did the same instead of returning values.
    """
    found = [[ORACLE, *(name for name, made in answers.items() if made.status == PASSED)]]
    others: list[list[str]] = []
    for name, made in answers.items():
        if made.status == FAILED:
            side = next((side for side in others if _alike(made, answers[side[0]], expected)), None)
            if side is None:
                others.append(side := [])
            side.append(name)
    if not others:
        return None
    voted = len(found[0]) == 1 and len(others) == 1 and len(others[0]) > 1
    return _Dispute(
        case,
        tuple(map(tuple, found + others)),
        # Those that end so need not have the same reason.
        voted and answers[others[0][0]].instead not in (CRASH, TIMEOUT),
        {name: made.message for name, made in answers.items() if made.status == FAILED},
    )


def _alike(one: _Made, other: _Made, expected: Sequence[Expected]) -> bool:
    if not one.results or not other.results:
        return one.instead == other.instead and one.results == other.results
    pairs = list(zip(one.results, other.results, expected, strict=True))
    return all(_near(a, b, answer) for a, b, answer in pairs) or all(_near(b, a, answer) for a, b, answer in pairs)


def _near(one: torch.Tensor, other: torch.Tensor, expected: Expected) -> bool:
    """Tell whether a result is as near to another one as two may be that are right."""
    if (one.shape, one.dtype) != (other.shape, other.dtype):
        return False
    if one.shape != expected.value.shape:
        return torch.equal(one, other)
    plain = dataclasses.replace(expected, value=other, low=None, rounded=(), instead=None, also=())
    if expected.bound is None or one.dtype not in float_formats.FORMATS:
        return compare(one, dataclasses.replace(plain, bound=None)).passed
    step = torch.from_numpy(float_formats.ulp(expected.value.numpy(), one.dtype))
    # Where the oracle is not finite it has no bound.
    known = torch.isfinite(expected.value) & torch.isfinite(expected.bound)
    bound = torch.where(known, 2 * expected.bound + step, 0.0)
    return compare(one, dataclasses.replace(plain, value=other.double(), bound=bound)).passed


def _groups(
    op: str, dtype: str, disputes: Sequence[_Dispute], kinds: Mapping[str, int], made: int, folder: Path
) -> list[Group]:
    """Group disputes by their sides and by kind of input; save the simplest case of each group."""
    found = []
    by_sides: dict[tuple[tuple[tuple[str, ...], ...], bool], list[_Dispute]] = {}
    for dispute in disputes:
        by_sides.setdefault((dispute.sides, dispute.outvoted), []).append(dispute)
    for (sides, outvoted), rest in by_sides.items():
        for kind, alike in _by_kind(rest, kinds, made):
            simplest = min(alike, key=lambda one: cases.size(one.case))
            path = corpus.keep(simplest.case, f"versus: {_written(sides)}", folder)
            found.append(
                Group(
                    op=op,
                    dtype=dtype,
                    kind=kind,
                    sides=sides,
                    outvoted=outvoted,
                    disputed=len(alike),
                    cases=kinds.get(kind, made),
                    case=cases.case_id(simplest.case),
                    path=str(path),
                    call=messages.call(simplest.case),
                    messages=simplest.messages,
                )
            )
    return sorted(found, key=lambda group: -group.disputed)


def _by_kind(rest: list[_Dispute], kinds: Mapping[str, int], made: int) -> Iterator[tuple[str, list[_Dispute]]]:
    """Yield disputes by the feature that tells most of them from the other cases, and so on with the rest.

    That is the feature with the largest product of two shares: of the disputes that have it, and of the cases with it
    that are disputed. ``ANY`` stands for no feature; of a dispute that is alone a few features are told.
    """
    while rest:
        counts = Counter(feature for dispute in rest for feature in failure_causes.notable(dispute.case))
        shared = {feature: count**2 / kinds[feature] for feature, count in counts.items() if count > 1}
        told = {ANY: len(rest) ** 2 / made} | shared
        kind = max(told, key=lambda one: told[one])
        alike = [one for one in rest if kind == ANY or kind in failure_causes.notable(one.case)]
        yield (_features(alike[0].case) if len(alike) == 1 else kind), alike
        rest = [one for one in rest if one not in alike]


def _features(case: Case) -> str:
    shown = failure_causes.notable(case)
    # What operands hold tells more than how they lie.
    held = [one for one in shown if one.partition("=")[0] in ("size", "specials", "values")]
    return ", ".join([*held, *(one for one in shown if one not in held)][:KIND]) or ANY
