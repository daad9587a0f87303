"""The suite: saved cases first, then, for each op and dtype, legal calls and calls that torch refuses; and for each op
sequences of calls.

Run it with ``pytest conformance``; conftest.py has the options.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec
import pytest

from conformance import known_failures, sequence_search, terminal
from conformance.journal import TAKEN, Found
from conformance.search_state import Report
from conformance.session import Run

Record = Callable[[str, object], None]


def test_saved(run: Run, saved: Path, record_property: Record) -> None:
    """Judge a saved case or sequence again."""
    _report(run, partial(run.replay, saved, partial(sequence_search.replay, run)), record_property)


def test_legal(run: Run, op: str, dtype: str, record_property: Record) -> None:
    """Judge calls that torch takes."""
    _report(run, partial(run.search, op, dtype), record_property)


def test_refused(run: Run, op: str, dtype: str, record_property: Record) -> None:
    """Judge calls that torch refuses."""
    _report(run, partial(run.search, op, dtype, refused=True), record_property)


def test_sequences(run: Run, whole_op: str, record_property: Record) -> None:
    """Judge calls that follow one another."""
    _report(run, partial(sequence_search.search, run, whole_op), record_property)


def _report(run: Run, judge: Callable[[], Report], record_property: Record) -> None:
    try:
        report = judge()
    except KeyboardInterrupt:
        # Whoever ends the run reads the journal.
        raise
    except BaseException:
        # A fault of the harness, of whatever kind, is raised on: the item makes no report.
        if run.journal is not None:
            run.journal.forget()
        raise
    # pytest shows it where the item fails, or at once with -s.
    with contextlib.suppress(OSError):
        print(run.output(), end="")
    found = Found(report.tally.sorted(), report.tally.coverage.seen(), known_failures.marked(report.failed, run.known))
    # First to disk: nobody may be there any more to take the report.
    if run.journal is not None:
        record_property(TAKEN, run.journal.finish(found))
    # A property travels with the report of its item, so that nothing is lost when a worker dies later.
    for name, value in (("conformance", found.records), ("coverage", found.seen), (terminal.FAILURES, found.failed)):
        record_property(name, msgspec.json.encode(value).decode())
    told = "\n".join(failure.title for failure in found.failed)
    if any(not failure.known for failure in found.failed):
        pytest.fail(told, pytrace=False)
    if found.failed:
        pytest.xfail(told)
    if report.skipped:
        pytest.skip(report.skipped)
