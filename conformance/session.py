"""One run of the harness: what was asked for, and the two ways in which cases come, saved and searched for."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import hypothesis
import torch
from hypothesis import HealthCheck, Phase, Verbosity, strategies
from hypothesis.errors import Flaky
from hypothesis.strategies import SearchStrategy

from conformance import cases, corpus, limits, runner
from conformance import spec as specs
from conformance.cases import Case, CaseError
from conformance.checks import FAILED, Finding
from conformance.implementations import Implementation
from conformance.metrics import Tally
from conformance.runner import Verdict

PROFILES = {
    "smoke": hypothesis.settings(max_examples=20),
    "ci": hypothesis.settings(max_examples=100, derandomize=True),
    "deep": hypothesis.settings(max_examples=1000),
}
"""Depths by name: how many legal cases are drawn for each op and dtype, and whether always the same ones."""
REFUSED_SHARE = 4
"""One refused call is drawn for so many legal ones: they vary less, and cost less."""


ROUND = 10
"""Cases that Hypothesis draws in one go. From the eleventh on it draws most of them as variations of those before, and
for cases, which have few parts, that gives the same ones over and over: fresh rounds find more."""


class CaseFailed(AssertionError):
    """Raised where Hypothesis is to see a failure. It takes failures of one class for one bug, so that each check has
    a class of its own, and a failure of one check never shrinks to that of another."""


class _Stop(BaseException):
    """Ends a search at once: not an Exception, since those Hypothesis would shrink."""


@cache
def _failed(check: str) -> type[CaseFailed]:
    return type(f"CaseFailed_{check}", (CaseFailed,), {})


@dataclasses.dataclass
class Report:
    """What came of one item: its counts, a message for each failure, and the files written."""

    tally: Tally = dataclasses.field(default_factory=Tally)
    failures: list[str] = dataclasses.field(default_factory=list)
    skipped: str = ""


@dataclasses.dataclass(frozen=True)
class Run:
    """What is judged, and how."""

    implementation: Implementation
    device: torch.device
    dtypes: Sequence[str]
    """Those that may be mixed in one call."""
    checks: Sequence[str] | None
    """None: all that apply."""
    save_to: Path
    """Where failing cases go."""
    settings: hypothesis.settings
    seed: int
    timeout: float = 0.0
    """Seconds for one case; 0 is no limit."""
    log: int | None = None
    """File descriptor for the stacks of a case that hangs in native code."""

    def judge(self, case: Case) -> Verdict:
        """The verdict on one case; running out of time is a failure."""
        try:
            with limits.limit(self.timeout, self.log):
                return runner.judge(case, self.implementation, self.device, self.checks)
        except limits.CaseTimeout as error:
            return Verdict(cases.case_id(case), case.op, FAILED, (Finding("timeout", FAILED, str(error)),))

    def replay(self, path: Path) -> Report:
        """Judge one saved case."""
        report = Report()
        try:
            case = cases.read(path)
        except CaseError as error:
            report.failures.append(f"damaged case file: {error}")
            return report
        verdict = self.judge(case)
        report.tally.add(case, verdict)
        if verdict.failure:
            message = corpus.save(case, verdict, self.implementation, self.device, self.save_to, replayed=path)
            report.failures.append(message)
        elif verdict.status == runner.NOT_PROVIDED:
            report.skipped = f"not provided by {self.implementation.name}: {case.op}"
        return report

    def search(self, op: str, dtype: str, refused: bool = False) -> Report:
        """Draw legal cases of an op and dtype, or calls that torch refuses; shrink and save what fails.

        Failures of different checks are shrunk and saved each for itself. What was found is saved also when the search
        is interrupted.
        """
        report, spec = Report(), specs.registry()[op]
        if self.implementation.function(op) is None:
            # Once for both searches.
            if not refused:
                report.tally.lacks(op, dtype)
            report.skipped = f"not provided by {self.implementation.name}: {op}"
            return report
        draws = _of_dtype(spec.refused if refused else spec.cases, dtype, [d for d in self.dtypes if d in spec.dtypes])
        examples = self.settings.max_examples
        if refused:
            examples = -(-examples // REFUSED_SHARE)
        seen: set[str] = set()
        failing: dict[str, tuple[Case, Verdict]] = {}
        try:
            for start in range(0, examples, ROUND):
                seed = f"{self.seed}/{op}/{dtype}/{'refused' if refused else 'legal'}/{start}"
                self._round(draws, seed, min(ROUND, examples - start), report.tally, seen, failing)
        except _Stop:
            pass
        finally:
            for case, verdict in failing.values():
                report.tally.add(case, verdict)
                message = corpus.save(case, verdict, self.implementation, self.device, self.save_to)
                report.failures.append(message)
        return report

    def _round(
        self,
        draws: SearchStrategy[Case],
        seed: str,
        examples: int,
        tally: Tally,
        seen: set[str],
        failing: dict[str, tuple[Case, Verdict]],
    ) -> None:
        """Draw some cases, and shrink what fails a check that nothing in ``failing`` fails."""
        known, shrinking = set(failing), False

        def one(case: Case) -> None:
            nonlocal shrinking
            identity = cases.case_id(case)
            if identity in seen:
                return
            verdict = self.judge(case)
            if verdict.failure is None or verdict.failure.check in known:
                seen.add(identity)
                # Once something has failed, what is judged are steps of the shrinking.
                if verdict.failure is None and not shrinking:
                    tally.add(case, verdict)
                return
            # The last failure of each check is the shrunk one: Hypothesis ends with a replay of each.
            failing[verdict.failure.check] = (case, verdict)
            shrinking = True
            if verdict.failure.check == "timeout":
                raise _Stop
            raise _failed(verdict.failure.check)

        test = self._settings(examples)(hypothesis.given(draws)(one))
        try:
            hypothesis.seed(seed)(test)()
        except (CaseFailed, Flaky):
            pass
        except BaseExceptionGroup as group:
            # Of several failures of different checks; anything else in it is a fault of the harness.
            if rest := group.split((CaseFailed, Flaky))[1]:
                raise rest from None

    def _settings(self, examples: int) -> hypothesis.settings:
        return hypothesis.settings(
            self.settings,
            max_examples=examples,
            # The seed makes a run repeatable, saved cases are replayed from their own files, and cases have their own
            # time limit.
            database=None,
            derandomize=False,
            deadline=None,
            print_blob=False,
            report_multiple_bugs=True,
            phases=(Phase.generate, Phase.shrink),
            verbosity=Verbosity.quiet,
            # Judging runs inside of the draw's test, and an interpreted kernel is slow by nature.
            suppress_health_check=(HealthCheck.too_slow,),
        )


def _of_dtype(
    cases_of: Callable[[Sequence[str]], SearchStrategy[Case]], dtype: str, dtypes: Sequence[str]
) -> SearchStrategy[Case]:
    """Cases of ``dtype`` alone, and as many in which it may meet another one; the former are the simpler ones."""
    alone, others = cases_of((dtype,)), [other for other in dtypes if other != dtype]
    if not others:
        return alone

    def mix(other: str) -> SearchStrategy[Case]:
        def mixed(case: Case) -> bool:
            found = [spec.dtype for spec in cases.operands(case)]
            return dtype in found and (other in found or len(found) == 1)

        return cases_of((dtype, other)).filter(mixed)

    return strategies.one_of(alone, strategies.sampled_from(others).flatmap(mix))
