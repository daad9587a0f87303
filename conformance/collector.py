"""Add up the reports of a run's items, wherever they ran; print and write the sums at its end."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import msgspec
import pytest

from conformance import corpus, coverage, interrupts, journal, known_failures, metrics, sufficiency
from conformance import spec as specs
from conformance.checks import CHECKS
from conformance.coverage import Seen
from conformance.metrics import Record, Tally
from conformance.plain_calls import PLAIN
from conformance.profiles import PROFILES
from conformance.sequence_judge import SEQUENCE
from conformance.terminal import Terminal


class Collector:
    """Adds up the reports of items, wherever they ran, and of workers that were killed."""

    def __init__(self, options: Any, tally: Tally, terminal: Terminal) -> None:
        self.options, self.tally, self.terminal = options, tally, terminal
        self.killed: list[str] = []
        self.coverage: list[coverage.Coverage] = []
        self.low: list[coverage.Coverage] = []
        """The ops below the floor."""
        self.others = 0
        """The number of tests of whole ops that were made."""
        self.session: pytest.Session | None = None
        self.complaints: list[str] = []
        """Why the run failed, beside failing cases."""
        self.measures = False
        """Whether benchmarks were run, which judge nothing."""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when != "call":
            return
        self.measures |= Path(report.fspath).parent.name == "benchmarks"
        self.others += op_of(Path(report.fspath)) is not None and not report.skipped
        for name, value in report.user_properties:
            if name == "conformance":
                self.tally.merge(msgspec.json.decode(str(value), type=list[Record]))
            elif name == "coverage":
                self.tally.coverage.merge(msgspec.json.decode(str(value), type=list[Seen]))
            elif name == journal.TAKEN:
                journal.taken(self.options.save_to, str(value))

    # Last: by then the workers have ended.
    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        options, self.session = self.options, session
        interrupted = session.exitstatus == pytest.ExitCode.INTERRUPTED
        # Reports that were on their way when the run was interrupted came to nobody.
        for left in journal.recover(options.save_to, options.implementation, options.name):
            report = options.run().salvage(left, interrupted)
            self.tally.merge(report.tally.sorted(), report.tally.coverage.seen())
            if interrupted:
                self.terminal.failures += known_failures.marked(report.failed, options.known)
            else:
                self.killed.append("\n\n".join((f"worker {left.header.worker} was killed", *report.failures)))
        if options.makes_folder:
            # Fails where something was saved.
            with contextlib.suppress(OSError):
                options.save_to.rmdir()
        collected = session.testscollected and not session.config.option.collectonly
        if collected and not self.measures and session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
            judged = options.child.implementation
            self.complaints = sufficiency.complaints(
                self.tally.by_op(),
                judged,
                # In a shard, other parts may have the items of an op.
                options.asked if options.shard is None else (),
                self.others,
            )
        if interrupted:
            self.complaints.append("the run was interrupted: not all was judged that was asked for")
            # A search that is interrupted between its failures has saved one, and reports those that its journal shows.
            told = "\n".join(failure.message for failure in self.terminal.failures)
            found = sorted({*options.save_to.glob("*.json")} - options.saved_before)
            self.complaints += [f"saved {path}" for path in found if path.stem not in told]
        # Written now, so that a run that is stopped while coverage is counted keeps its results; the slow part comes
        # after it.
        self._write_metrics(whole=False)
        if interrupted:
            return
        # A run of few cases leaves out much anyway.
        if options.settings.max_examples >= PROFILES["ci"].max_examples:
            self._cover(session)
        if options.floor:
            self.low = coverage.below_floor(self.tally.coverage, self.coverage)
        if (self.killed or self.low or self.complaints) and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def _cover(self, session: pytest.Session) -> None:
        """Count the coverage, unless the run is interrupted before that or meanwhile."""
        # The workers have ended by now.
        processes = getattr(session.config.option, "numprocesses", None) or 1
        try:
            interrupts.release()
            self.coverage = self.tally.coverage.coverage(processes)
        except KeyboardInterrupt:
            session.exitstatus = pytest.ExitCode.INTERRUPTED
            self.complaints.append("the run was interrupted: its coverage was not counted")
        finally:
            interrupts.hold()

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        options, tally = self.options, self.tally
        self.terminal.show(terminalreporter)
        for line in self._known():
            terminalreporter.line(line)
        for gone in options.gone:
            terminalreporter.line(f"a saved case was not judged: {gone}", yellow=True)
        if self.killed:
            terminalreporter.section("processes that were killed while they judged")
            terminalreporter.line("\n\n".join(self.killed))
        if not tally.records:
            self._complain(terminalreporter)
            return
        terminalreporter.section(f"conformance of {options.implementation} on {options.child.about.device_name}")
        for line in metrics.table(tally.by_op()):
            terminalreporter.line(line)
        if self.coverage:
            terminalreporter.section("coverage of pairs of features")
            for line in coverage.table(self.coverage):
                terminalreporter.line(line)
        for found in self.low:
            terminalreporter.line(coverage.complaint(found), red=True)
        self._complain(terminalreporter)
        if options.metrics is not None:
            whole = self.session is None or self.session.exitstatus != pytest.ExitCode.INTERRUPTED
            if self._write_metrics(whole):
                terminalreporter.line(f"metrics written to {options.metrics}")

    def _complain(self, terminalreporter: pytest.TerminalReporter) -> None:
        for complaint in self.complaints:
            terminalreporter.line(complaint, red=True)

    def _known(self) -> list[str]:
        """Return lines about known failures, and write those of this run where the user asks for it."""
        options = self.options

        def judged(one: known_failures.Entry) -> bool:
            return (one.op, one.dtype) in options.pairs and (options.checks is None or one.check in options.checks)

        lines, failures = known_failures.told(options.known, self.terminal.failures, judged)
        if options.write_known is not None:
            data = known_failures.encode(options.implementation, failures)
            if self._write("known failures", options.write_known, data):
                lines.append(f"{len(failures)} known failures written to {options.write_known}")
        return lines

    def _write(self, what: str, path: Path, data: bytes) -> bool:
        """Write a file; where that fails, add a complaint, fail the run and return False."""
        try:
            corpus.write(path, data)
        except OSError as error:
            complaint = f"{what} cannot be written to {path}: {error.strerror}"
            self.complaints += [complaint] if complaint not in self.complaints else []
            if self.session is not None and self.session.exitstatus == pytest.ExitCode.OK:
                self.session.exitstatus = pytest.ExitCode.TESTS_FAILED
            return False
        return True

    def _write_metrics(self, whole: bool = True) -> bool:
        options = self.options
        if options.metrics is None or not self.tally.records:
            return False
        about = {
            "implementation": options.implementation,
            "device": options.child.about.device,
            "semantics": options.semantics,
            "profile": options.profile,
            "max_examples": options.settings.max_examples,
            "seed": options.seed,
            "checks": list(options.checks or (*CHECKS, SEQUENCE, PLAIN)),
            **({"workloads": [str(one) for one in options.workloads]} if options.workloads else {}),
            **({} if options.shard is None else {"shard": str(options.shard)}),
        }
        data = metrics.document(self.tally.sorted(), about, self.coverage, self.complaints, whole)
        return self._write("metrics", options.metrics, data)


def op_of(path: Path) -> str | None:
    """Return the op whose own tests a file holds; None for other files."""
    op = path.stem.removeprefix("test_")
    return op if op in specs.registry() else None
