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
from conformance.search_state import Report
from conformance.session import Run

Record = Callable[[str, object], None]


def test_saved(run: Run, saved: Path, record_property: Record) -> None:
    """Judge a saved case or sequence again."""
    _report(run, run.replay(saved, partial(sequence_search.replay, run)), record_property)


def test_legal(run: Run, op: str, dtype: str, record_property: Record) -> None:
    """Judge calls that torch takes."""
    _report(run, run.search(op, dtype), record_property)


def test_refused(run: Run, op: str, dtype: str, record_property: Record) -> None:
    """Judge calls that torch refuses."""
    _report(run, run.search(op, dtype, refused=True), record_property)


def test_sequences(run: Run, whole_op: str, record_property: Record) -> None:
    """Judge calls that follow one another."""
    _report(run, sequence_search.search(run, whole_op), record_property)


def _report(run: Run, report: Report, record_property: Record) -> None:
    # pytest shows it where the item fails, or at once with -s.
    with contextlib.suppress(OSError):
        print(run.output(), end="")
    # A property travels with the report of its item, so that nothing is lost when a worker dies later.
    for name, found in (("conformance", report.tally.sorted()), ("coverage", report.tally.coverage.seen())):
        record_property(name, msgspec.json.encode(found).decode())
    failed = known_failures.marked(report.failed, run.known)
    record_property(terminal.FAILURES, msgspec.json.encode(failed).decode())
    told = "\n".join(failure.title for failure in failed)
    if any(not failure.known for failure in failed):
        pytest.fail(told, pytrace=False)
    if failed:
        pytest.xfail(told)
    if report.skipped:
        pytest.skip(report.skipped)
