"""The state of one search for failing cases: what it has judged, what has failed, and whether it is given up."""

from __future__ import annotations

import dataclasses

from conformance import cases
from conformance.cases import Case
from conformance.failure_causes import Failed
from conformance.metrics import Tally
from conformance.runner import CRASH, TIMEOUT, Verdict

FATAL = {CRASH: 12, TIMEOUT: 3}
"""Failures that cost a process, with the number of such cases after which a search is given up: a fresh process takes
seconds, and a case that hangs all of ``--case-timeout``."""


@dataclasses.dataclass
class Report:
    """The report of one item: its counts, a message for each failure, and the files written."""

    tally: Tally = dataclasses.field(default_factory=Tally)
    failed: list[Failed] = dataclasses.field(default_factory=list)
    skipped: str = ""

    @property
    def failures(self) -> list[str]:
        """The messages of the failures."""
        return [failure.message for failure in self.failed]


@dataclasses.dataclass
class Search:
    """The state of one search."""

    legal: bool = True
    """Tells whether it draws calls that torch takes."""
    report: Report = dataclasses.field(default_factory=Report)
    seen: set[str] = dataclasses.field(default_factory=set)
    """Ids of cases that need no judging again."""
    passed: list[Case] = dataclasses.field(default_factory=list)
    """Legal calls that have passed."""
    failing: dict[str, tuple[Case, Verdict]] = dataclasses.field(default_factory=dict)
    """The smallest failing case so far, by check."""
    fatal: dict[str, Verdict] = dataclasses.field(default_factory=dict)
    """The cases that ended the process that judged them, by id: once is enough."""

    def note(self, check: str, case: Case, verdict: Verdict) -> None:
        """Note a failure. The last one of a check is the shrunk one, since Hypothesis ends with a replay of each, but
        not where the shrinking was cut short."""
        if check not in FATAL or check not in self.failing or cases.size(case) <= cases.size(self.failing[check][0]):
            self.failing[check] = (case, verdict)

    def told(self) -> list[tuple[Case, Verdict]]:
        """Return the failures, without those of a call that follows from a case and is told as a case of its own."""
        told = {cases.case_id(case) for case, verdict in self.failing.values() if not _derived_id(verdict)}
        return [(case, verdict) for case, verdict in self.failing.values() if _derived_id(verdict) not in told]

    def given_up(self) -> str:
        """Return why no more cases are drawn, or an empty string."""
        ends = [verdict.failure.check for verdict in self.fatal.values() if verdict.failure]
        for check, most in FATAL.items():
            if ends.count(check) >= most:
                return f"{most} cases failed with {check}; the search was given up after {len(self.seen)} others"
        return ""


def _derived_id(verdict: Verdict) -> str:
    """Return the id of the call that failed, if it follows from the case; else an empty string."""
    derived = verdict.failure.case if verdict.failure is not None else None
    return cases.case_id(derived) if derived is not None else ""
