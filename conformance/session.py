"""One run of the harness: its options, and the two sources of cases, saved and searched."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Sequence
from functools import cache
from pathlib import Path

import hypothesis
import msgspec
import torch
from hypothesis import Phase, strategies
from hypothesis.database import ExampleDatabase
from hypothesis.errors import Flaky
from hypothesis.strategies import SearchStrategy

from conformance import (
    cases,
    code_search,
    corpus,
    database,
    drawing,
    failure_causes,
    huge_calls,
    long_calls,
    repro,
    runner,
    sequences,
)
from conformance import spec as specs
from conformance.cases import Case, CaseError
from conformance.checks import CHECKS, DERIVED, OF_HUGE, PASSED, RARE, least_tried
from conformance.failure_causes import Failed
from conformance.implementations import Implementation
from conformance.journal import Journal, Left
from conformance.known_failures import Entry
from conformance.plain_calls import PLAIN, SHARE, Pool
from conformance.profiles import EXPLORED, EXPLORED_OF_DEAR, FEW_ELEMENTS, PROFILES, ROUND, rounds
from conformance.runner import CRASH, LARGE, OUT_OF_MEMORY, TIMEOUT, Verdict
from conformance.search_state import FATAL, Report, Search
from conformance.sequences import CallSequence
from conformance.worker import Child

SHRINKING = {CRASH: 8, TIMEOUT: 1}
"""The most cases of ``FATAL`` that one round may meet: a crash is shrunk within that, a hang is not shrunk."""


class CaseFailed(AssertionError):
    """Raised to show Hypothesis a failure. It takes failures of one class for one bug, so each check has a class of its
    own, and a failure of one check never shrinks to that of another."""


class _Stop(BaseException):
    """Ends a search at once: not an Exception, since those Hypothesis would shrink."""


@cache
def _failed(check: str) -> type[CaseFailed]:
    return type(f"CaseFailed_{check}", (CaseFailed,), {})


@dataclasses.dataclass(frozen=True)
class Run:
    """A run: the implementation to judge, and how."""

    implementation: Implementation
    device: torch.device
    dtypes: Sequence[str]
    """The dtypes that may be mixed in one call."""
    checks: Sequence[str] | None
    """None: all that apply."""
    save_to: Path
    """The folder for failing cases."""
    settings: hypothesis.settings
    seed: int
    max_elements: int = cases.MAX_ELEMENTS
    """Saved cases that need more elements are skipped."""
    child: Child | None = None
    """The process in which cases are judged. None: this one, for implementations that cannot be imported elsewhere;
    nothing then survives a crash, and no case has a time limit."""
    journal: Journal | None = None
    """The journal that notes each case before it is judged."""
    large: int = 0
    """The most elements that a large call may have; 0: none is drawn."""
    database: ExampleDatabase | None = None
    """The database that keeps failing examples, which are tried first."""
    pool: Pool = dataclasses.field(default_factory=Pool)
    """The cases that a script may make once more."""
    known: frozenset[Entry] = frozenset()
    """Failures that are no news."""
    workloads: Sequence[Path] = ()
    """Folders of cases of models."""

    def judge(
        self, case: Case, thorough: bool = True, checks: Sequence[str] | None = None, search: str = ""
    ) -> Verdict:
        """Return the verdict on one case; the death of the process that judges it, or its timeout, is a failure.

        ``checks``: other checks than the run's. ``search``: the name of the search that draws it."""
        if self.journal is not None:
            self.journal.begin(case)
        if self.child is None:
            if not thorough:
                least_tried.within(search)
            verdict = runner.judge(case, self.implementation, self.device, checks or self.checks, thorough)
        else:
            verdict = self.child.judge(case, thorough, checks, search)
        if self.journal is not None:
            self.journal.end(verdict)
        return verdict

    @property
    def is_dear(self) -> bool:
        """Tells whether calls may take long: the first of a shape on a GPU, and each of interpreted kernels."""
        return self.device.type == "cuda" or self.large < LARGE[""]

    @property
    def _is_quick(self) -> bool:
        """Tells whether the run draws fewer cases than ``ci``."""
        return self.settings.max_examples < PROFILES["ci"].max_examples

    def numbers(self, op: str) -> Sequence[float]:
        """Return the numbers in the implementation's code of an op."""
        return self.implementation.numbers(op) if self.child is None else self.child.numbers(op)

    def replay(self, path: Path, follow: Callable[[CallSequence, Path], Report]) -> Report:
        """Judge the case or the sequence in one file. ``follow``: judges a sequence."""
        report = Report()
        try:
            case = sequences.read(path, max_elements=self.max_elements)
        except (cases.TooLarge, cases.UnknownOp) as error:
            report.skipped = str(error)
            return report
        except CaseError as error:
            report.failed.append(Failed(f"damaged case file: {error}"))
            return report
        if isinstance(case, CallSequence):
            return follow(case, path)
        # A case that failed for this user, or is of a model, is judged whole; quick runs judge those that come with
        # the harness in part.
        own = path.parent == self.save_to
        whole = own or path.parent in self.workloads or not self._is_quick
        verdict = self.judge(case, whole, search=f"saved/{corpus.name(path)}")
        report.tally.add(case, verdict)
        self.pool.take(case, verdict, own)
        if verdict.failure:
            report.failed.append(self.save(case, self._confirmed(case, verdict), path))
        elif verdict.status == runner.NOT_PROVIDED:
            report.skipped = f"not provided by {self.implementation.name}: {case.op}"
        elif verdict.status == OUT_OF_MEMORY:
            report.skipped = f"not judged: torch itself ran out of memory for this case of {case.op}"
        self._done(report)
        return report

    def search(self, op: str, dtype: str, refused: bool = False) -> Report:
        """Draw legal cases of an op and dtype, or calls that torch refuses; shrink and save what fails.

        Failures of different checks are shrunk and saved each for itself. The journal holds the findings of an
        interrupted search. A case that crashes or hangs is one failure; those after it are judged in a fresh
        process.
        """
        search = Search(legal=not refused)
        report = search.report
        least_tried.anew()
        if self.implementation.function(op) is None:
            # Counted once for both searches.
            if not refused:
                report.tally.lacks(op, dtype)
            report.skipped = f"not provided by {self.implementation.name}: {op}"
            return report
        try:
            numbers = () if refused else self.numbers(op)
            for part in rounds(op, dtype, refused, self.dtypes, self.settings, self.seed, self.large, numbers):
                settings = drawing.settings(part.examples)
                if self.database is not None:
                    known = database.Search(self.database, f"{op}/{dtype}/{part.kind}{part.sort}")
                    phases = (*(() if part.start else (Phase.reuse,)), *settings.phases)
                    settings = hypothesis.settings(settings, database=known, phases=phases)
                # A crash or a hang ends a round: it is drawn once more, this time past them, all else as before.
                while self._round(part.draws, part.seed, settings, search):
                    pass
                if search.given_up():
                    break
            if search.legal and not search.failing:
                self._beyond(search, op, dtype)
            if search.legal and not search.failing:
                self._explore(search, op, dtype)
                report.tally.coverage.searched(op, dtype)
            self._tell(search, op, dtype)
        except KeyboardInterrupt:
            # Whoever ends the run reads the journal.
            raise
        except BaseException:
            # A fault of the harness; what was found before is saved.
            self._tell(search, op, dtype)
            raise
        return report

    def plain(self) -> list[Failed]:
        """Report what the import changed. Judge some cases that passed once more, by a script, and save the smallest
        that fails of each op and dtype."""
        wanted = self.checks is None or PLAIN in self.checks
        each = self.settings.max_examples // SHARE
        chosen = self.pool.chosen(self.pool.few, each) if wanted and self.child is not None else []
        if wanted and self.child is not None and (changed := self.child.about.changed):
            told = f"importing {self.implementation.name} changed {', '.join(changed)}"
            return [Failed(told), *self._plain(chosen)]
        return self._plain(chosen)

    def _plain(self, chosen: Sequence[Case]) -> list[Failed]:
        verdicts = self.child.plain(chosen) if self.child is not None else []
        known, smallest = {cases.case_id(case): case for case in chosen}, {}
        failing = [(known[verdict.id], verdict) for verdict in verdicts if verdict.failure]
        for case, verdict in sorted(failing, key=lambda pair: cases.size(pair[0])):
            smallest.setdefault((case.op, cases.dtype_of(case)), (case, verdict))
        return [self.save(*pair) for pair in smallest.values()]

    def _beyond(self, search: Search, op: str, dtype: str) -> None:
        """Judge a few calls without a short dim, and some past all sizes that are drawn, where calls are quick."""
        checks = [check for check in OF_HUGE if self.checks is None or check in self.checks]
        # What is rare shows in the few huge calls, and what is kept of weights; of many long ones both take minutes.
        wanted = {"long": [check for check in checks if check not in ("bare", "distribution")], "huge": checks}
        if self._is_quick or self.large < LARGE[""] or not checks:
            return
        spec = specs.registry()[op]
        dtypes = [one for one in spec.dtypes if one in self.dtypes]
        kinds = {"long": long_calls.calls, "huge": huge_calls.calls}
        for kind, calls in kinds.items():
            if search.failing or not wanted[kind] or not (found := calls(spec, search.passed, dtypes, dtype)):
                continue
            draws, name = strategies.sampled_from(found), f"{self.seed}/{op}/{dtype}/{kind}/0"
            while self._round(draws, name, drawing.settings(len(found)), search, checks=wanted[kind]):
                pass

    def _explore(self, search: Search, op: str, dtype: str) -> None:
        """Judge calls that come to places of the implementation's code to which no drawn call came."""
        if self._is_quick:
            return
        calls = self.settings.max_examples * (EXPLORED_OF_DEAR if self.is_dear else EXPLORED)
        how = calls, self.large or FEW_ELEMENTS, f"{self.seed}/{op}/{dtype}/explored"
        if self.child is not None:
            found = self.child.explore(search.passed, *how)
        else:
            found = code_search.search(search.passed, self.implementation, self.device, *how)
        for start in range(0, len(found), ROUND):
            part, name = found[start : start + ROUND], f"{self.seed}/{op}/{dtype}/explored/{start}"
            while self._round(strategies.sampled_from(part), name, drawing.settings(len(part)), search, thorough=True):
                pass

    def _tell(self, search: Search, op: str, dtype: str) -> None:
        """Count, save and report the findings of a search."""
        report = search.report
        for case, verdict in search.told():
            report.tally.add(case, verdict, search.legal)
            report.failed.append(self.save(case, self._confirmed(case, verdict)))
        if reason := search.given_up():
            check = next(iter(FATAL.keys() & search.failing.keys()), "")
            report.failed.append(Failed(f"{op} ({dtype}): {reason}", op, dtype, check))
        self._done(report)

    def salvage(self, left: Left, interrupted: bool = False) -> Report:
        """Count, save and report what a process left that was killed, or ``interrupted``. Nothing is judged here: it
        might kill this process."""
        report = Report()
        if left.found is not None:
            report.tally.merge(left.found.records, left.found.seen)
            report.failed += left.found.failed
            return report
        if interrupted:
            # The running case was not at fault.
            left.running = None
        for case, verdict in left.judged:
            if verdict.failure:
                # The rest are steps of the shrinking.
                break
            report.tally.add(case, verdict)
        for case, verdict in left.failing():
            report.tally.add(case, verdict)
            report.failed.append(self.save(case, verdict, interrupted=interrupted))
        return report

    def output(self) -> str:
        """Return what was printed while judging."""
        return self.child.output() if self.child is not None else ""

    def save(self, case: Case, verdict: Verdict, replayed: Path | None = None, interrupted: bool = False) -> Failed:
        """Save a failing case, and return the message about it. ``interrupted``: without asking torch for a script."""
        script_of = repro.script if self.child is None else self.child.script
        if interrupted:
            script_of = _no_script
        where = "" if self.child is None else self.child.about.device_name
        message = corpus.save(case, verdict, self.implementation, self.device, self.save_to, replayed, script_of, where)
        return failure_causes.of(case, verdict, message)

    def _confirmed(self, case: Case, verdict: Verdict) -> Verdict:
        """Return the verdict; on a case that crashed it says if the crash does not happen again."""
        if self.child is None or verdict.failure is None or verdict.failure.check != CRASH:
            return verdict
        self.child.close()
        again = self.child.judge(case)
        if again.failure and again.failure.check == CRASH:
            return verdict
        note = f"\n    Judged again, alone in a fresh process, it {again.status}: what ran before it may be the cause."
        finding = msgspec.structs.replace(verdict.failure, message=verdict.failure.message + note)
        return msgspec.structs.replace(verdict, findings=(finding,))

    def _smaller(self, case: Case, failing: Collection[str]) -> Verdict:
        """Judge a case that may be a smaller one in which one of the checks ``failing`` fails.

        Of the checks of calls that follow, which take most of the time of a thorough judgement, and of the rare ones
        only those that failed are made, and where one of the former fails again those before it: a failure is named
        after the first check that fails.
        """
        if not CHECKS.keys() >= {*failing}:
            # A crash or a hang may come from any check.
            return self.judge(case)
        order = [check for check in CHECKS if self.checks is None or check in self.checks]
        verdict = self.judge(
            case,
            checks=[check for check in order if check not in (*DERIVED, *RARE) or check in failing],
        )
        if verdict.failure and verdict.failure.check in DERIVED:
            earlier = [check for check in order[: order.index(verdict.failure.check)] if check in DERIVED]
            if others := [check for check in earlier if check not in failing]:
                called = self.judge(case, checks=others)
                return called if called.failure else verdict
        return verdict

    def _done(self, report: Report) -> None:
        if self.journal is not None and (trouble := self.journal.trouble()):
            report.failed.append(Failed(trouble))

    def _round(
        self,
        draws: SearchStrategy[Case],
        seed: str,
        settings: hypothesis.settings,
        search: Search,
        thorough: bool = False,
        checks: Sequence[str] | None = None,
    ) -> bool:
        """Draw some cases, and shrink one that fails a check that nothing has failed so far. Return whether that ended
        a process, so that cases after it were not drawn. ``thorough``, ``checks``: as for ``judge``; cases with checks
        of their own are no starts of other searches."""
        known, shrinking, ends = set(search.failing), False, 0
        name = seed.rpartition("/")[0]

        def one(case: Case) -> None:
            nonlocal shrinking, ends
            identity = cases.case_id(case)
            if identity in search.seen:
                return
            failing = search.failing.keys() - known
            verdict = search.fatal.get(identity)
            if verdict is None:
                smaller = checks is None and failing
                verdict = self._smaller(case, failing) if smaller else self.judge(case, thorough, checks, name)
            check = verdict.failure.check if verdict.failure else None
            if check in FATAL and identity not in search.fatal:
                search.fatal[identity] = verdict
                ends += 1
                if search.given_up():
                    search.note(check, case, verdict)
                    raise _Stop
            if check is None or check in known:
                if check not in FATAL:
                    search.seen.add(identity)
                # Once something has failed, the judged cases are steps of the shrinking.
                if check is None and not shrinking:
                    if checks is None:
                        if search.legal and verdict.status == PASSED:
                            search.passed.append(case)
                        self.pool.take(case, verdict)
                    search.report.tally.add(case, verdict, search.legal, alone=checks is None)
                return
            search.note(check, case, verdict)
            shrinking = True
            if check in FATAL and ends >= SHRINKING[check]:
                raise _Stop
            raise _failed(check)

        try:
            drawing.run(one, draws, seed, settings)
        except (CaseFailed, Flaky, _Stop):
            pass
        except BaseExceptionGroup as group:
            # The group holds failures of different checks; anything else in it is a fault of the harness.
            if rest := group.split((CaseFailed, Flaky))[1]:
                raise rest from None
        return bool(FATAL.keys() & (search.failing.keys() - known)) and not search.given_up()


def _no_script(*_: object) -> str:
    raise repro.ReproError("since the run was interrupted; replaying the case makes one")
