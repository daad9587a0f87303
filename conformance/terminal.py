"""Print failures: the first when it is found, and at the end one message for each cause."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import msgspec
import pytest

from conformance import failure_causes
from conformance.failure_causes import Failed

FAILURES = "failures"
"""The property with which an item reports its failures."""
AFTERWARDS = "failures afterwards"
"""The property with which the last item that a process ran reports failures of the run."""
PRINTED = 25
"""The most lines of an item's output that are shown with its failure."""


class Terminal:
    """Shows failures by cause, in place of pytest's lists of failed items; with ``-vv`` beside them."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.failures: list[Failed] = []
        self._reports: dict[int, pytest.TestReport] = {}
        """The reports with failures that are shown here, by their identity."""
        self._printed: dict[str, str] = {}
        """The output of items, by the message of their first failure."""

    @property
    def _whole(self) -> bool:
        return self.config.option.tbstyle not in ("no", "line")

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        wanted = {"call": FAILURES, "teardown": AFTERWARDS}.get(report.when or "")
        values = [str(value) for name, value in report.user_properties if name == wanted]
        if not values:
            return
        found = [failure for value in values for failure in msgspec.json.decode(value, type=list[Failed])]
        first = next((failure for failure in found if not failure.known), None)
        reporter: Any = self.config.pluginmanager.get_plugin("terminalreporter")
        if first and self._whole and reporter and not any(not failure.known for failure in self.failures):
            reporter.ensure_newline()
            reporter.write_line(f"the first failure, in {report.nodeid}:", red=True)
            reporter.write_line(first.message)
        self.failures += found
        self._reports[id(report)] = report
        if found and (printed := report.capstdout.strip()):
            self._printed[found[0].message] = printed

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_terminal_summary(self, terminalreporter: Any) -> Generator[None, None, None]:
        told = {kind: terminalreporter.stats.get(kind, []) for kind in ("failed", "error")}
        if not self._reports or self.config.option.verbose >= 2:
            return (yield)
        # pytest lists what it finds here, item by item.
        for kind, reports in told.items():
            terminalreporter.stats[kind] = [report for report in reports if id(report) not in self._reports]
        try:
            return (yield)
        finally:
            # Restored for the counts.
            terminalreporter.stats |= told

    def show(self, terminalreporter: Any) -> None:
        """Write a message for each cause of the failures that are not known."""
        news = failure_causes.groups(failure for failure in self.failures if not failure.known)
        if not news:
            return
        count = sum(len(group.failures) for group in news)
        failures, kinds = (f"{n} {what}{'s' * (n > 1)}" for n, what in ((count, "failure"), (len(news), "cause")))
        terminalreporter.section(f"{failures}, {kinds}")
        for number, group in enumerate(news, 1):
            terminalreporter.line(f"[{number}] {group.title}", red=True)
            first = group.failures[0]
            if self._whole and first.message != group.title:
                terminalreporter.line(first.message)
                if printed := self._printed.get(first.message, ""):
                    terminalreporter.line("it printed last:")
                    terminalreporter.line("\n".join(f"    {line}" for line in printed.splitlines()[-PRINTED:]))
            if group.others:
                terminalreporter.line(f"also {group.others}")
            terminalreporter.line("")
