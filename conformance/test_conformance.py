"""The suite: saved cases first, then, for each op and dtype, legal calls and calls that torch refuses.

Run it with ``pytest conformance``; conftest.py has the options.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from conformance.session import Report, Run

Record = Callable[[str, object], None]


def test_saved(run: Run, saved: Path, record_property: Record) -> None:
    """A saved case, judged again."""
    _report(run, run.replay(saved), record_property)


def test_legal(run: Run, op: str, dtype: str, record_property: Record) -> None:
    """Calls that torch takes."""
    _report(run, run.search(op, dtype), record_property)


def test_refused(run: Run, op: str, dtype: str, record_property: Record) -> None:
    """Calls that torch refuses."""
    _report(run, run.search(op, dtype, refused=True), record_property)


def _report(run: Run, report: Report, record_property: Record) -> None:
    # pytest shows it where the item fails, or at once with -s.
    print(run.output(), end="")
    # A property travels with the report of its item, so that nothing is lost when a worker dies later.
    for name, found in (("conformance", report.tally.sorted()), ("coverage", report.tally.coverage.seen())):
        record_property(name, msgspec.json.encode(found).decode())
    if report.failures:
        pytest.fail("\n\n".join(report.failures), pytrace=False)
    if report.skipped:
        pytest.skip(report.skipped)
