"""Decide whether a run is worse than another: verdicts on benchmarks and on accuracy that account for noise.

A benchmark is slower if three things hold: the interval of the ratio of medians (bootstrap, 95%) lies above 1; the
ratio exceeds the difference between two runs of one commit; and the same holds for the ratio beside torch, which both
runs timed in turn with it, so that a chip which was slower as a whole on one day changes nothing. A slowdown that is
too small to be reported in any row is reported if all rows show it: the geometric mean of the other rows is judged,
too, against a smaller difference. ``docs/benchmarks.md`` has the measurement behind the constants.
"""

from __future__ import annotations

import enum
import math
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Sequence
from functools import partial

import msgspec
import numpy as np

from ntops.timing import bootstrap
from reports.model import Device, Record, Row
from reports.read import InputError, share_text

RELATIVE = 0.02
"""The relative difference of device time between two runs of the same commit; ``ABSOLUTE`` is added to it."""
ABSOLUTE = 0.4e-6
"""Seconds; they decide for kernels of a few microseconds."""
HOST = 0.12
"""The same for host time, which depends on the placement of the process and its memory."""
TOGETHER = 0.5
"""The part of ``RELATIVE`` by which the geometric mean of many rows, beside torch, differs between two runs."""
FEWEST = 8
"""The least number of rows whose mean is judged: for fewer, an interval over rows says nothing."""
SHIFTED = 0.05
"""The largest overall difference of torch's own times between runs that the verdict does not mention."""
SHARE, SHARE_OF = 0.02, 0.10
"""The allowed growth of the largest share of the bound on the same cases: absolute, and relative."""


class Verdict(enum.StrEnum):
    WORSE = "worse"
    MISSING = "missing"
    BETTER = "better"
    SAME = "same"
    NEW = "new"


class Change(msgspec.Struct, frozen=True):
    """The result of comparing one row, or one op and dtype."""

    kind: str
    """"speed" or "accuracy"."""
    name: str
    verdict: Verdict
    before: str = ""
    after: str = ""
    ratio: float | None = None
    """The new time over the old one; more than 1 is slower."""
    interval: tuple[float, float] | None = None
    beside: float | None = None
    """The same ratio beside torch of the same runs."""
    why: str = ""


class Comparison(msgspec.Struct, frozen=True):
    """All changes, worst first, and the notes needed to read them."""

    changes: list[Change]
    notes: list[str]
    shifted: str = ""
    """A warning for the reader of the verdict: torch's own time changed, too."""

    @property
    def worse(self) -> list[Change]:
        """Return the regressions."""
        return [change for change in self.changes if change.verdict in (Verdict.WORSE, Verdict.MISSING)]

    @property
    def with_torch(self) -> list[Change]:
        """Return the rows that are slower together with torch."""
        return [change for change in self.changes if change.verdict is Verdict.SAME and change.why]


def compare(base: Device, new: Device, *, relative: float = RELATIVE, partial_run: bool = False) -> Comparison:
    """Compare everything that is in ``base``. ``partial_run``: ``new`` lacks rows on purpose.

    Raises InputError: the devices differ, or nothing is in both.
    """
    if base.name != new.name:
        raise InputError(f"two devices cannot be compared as base and new: {base.name} and {new.name}")
    speed = bool(base.rows and new.rows)
    accuracy = bool(base.records and new.records)
    if not speed and not accuracy:
        raise InputError("nothing to compare: benchmarks or metrics have to be in both")
    notes = [
        f"{name}: {base.environment[name]} before, {new.environment[name]} now"
        for name in ("driver", "torch", "cuda", "triton", "ninetoothed")
        if name in base.environment and base.environment[name] != new.environment.get(name, base.environment[name])
    ]
    changes: list[Change] = []
    shifted = ""
    if speed:
        beside = base.environment.get("torch") == new.environment.get("torch")
        judge = partial(_row, relative=relative, peer="torch" if beside else "")
        changes += _all(base.rows, new.rows, lambda row: row.name, judge, "speed")
        lines, shifted, drift = _together(base, new, changes, relative)
        notes += lines
        changes += drift
    if accuracy:
        drawn = [{key: device.about.get(key) for key in ("profile", "examples", "seed")} for device in (base, new)]
        if drawn[0] != drawn[1]:
            notes.append("the two metrics are of other cases, so only failures are compared and shares are shown")
        judge_record = partial(_record, same_cases=drawn[0] == drawn[1])
        changes += _all(
            base.records, new.records, lambda record: f"{record.op} {record.dtype}", judge_record, "accuracy"
        )
    if partial_run:
        changes = [change for change in changes if change.verdict is not Verdict.MISSING]
    order = list(Verdict)
    changes.sort(key=lambda change: (order.index(change.verdict), -(change.ratio or 0.0), change.name))
    return Comparison(changes, notes, shifted)


def _all(base, new, name, judge, kind: str) -> list[Change]:
    """Judge pairs of the same name, and report those that only one side has."""
    before, after = {name(one): one for one in base}, {name(one): one for one in new}
    found = [judge(before[key], after[key]) for key in before if key in after]
    gone = [
        Change(kind, key, Verdict.MISSING, why="not in the new run: it failed, or was not run")
        for key in before if key not in after
    ]  # fmt: skip
    return [*found, *gone, *(Change(kind, key, Verdict.NEW) for key in after if key not in before)]


def limit(row: Row, relative: float = RELATIVE) -> float:
    """Return the ratio of times up to which two runs of the same commit may differ."""
    of_host = row.clock in ("host", "first call")
    return 1 + (max(HOST, relative) if of_host else relative + ABSOLUTE / max(row.median, 1e-9))


def _row(base: Row, new: Row, *, relative: float = RELATIVE, peer: str = "torch") -> Change:
    before, after = (row.seconds or [row.median] for row in (base, new))
    verdict, why = Verdict.SAME, ""
    if base.clock != new.clock:
        why = f"{base.clock} before, {new.clock} now: {new.note or base.note or 'other clocks'}"
        return Change("speed", base.name, Verdict.WORSE, _time(base.median), _time(new.median), why=why)
    ratio = float(np.median(after) / np.median(before))
    interval = bootstrap(lambda old, now: np.median(now, axis=1) / np.median(old, axis=1), before, after)
    beside = None
    if peer in base.peers and peer in new.peers:
        beside = ratio * base.peers[peer].median / new.peers[peer].median
    most = limit(base, relative)
    nearest = ratio if beside is None else min(ratio, beside)
    farthest = ratio if beside is None else max(ratio, beside)
    if nearest > most and interval[0] > 1:
        verdict, why = Verdict.WORSE, f"{ratio - 1:.1%} slower; runs of one commit differ by up to {most - 1:.1%}"
    elif farthest < 1 / most and interval[1] < 1:
        verdict, why = Verdict.BETTER, f"{1 / ratio:.2f} times as fast"
    elif ratio > most and interval[0] > 1:
        why = f"{ratio - 1:.1%} slower, and torch beside it {ratio / (beside or 1) - 1:.1%}"
    return Change("speed", base.name, verdict, _time(base.median), _time(new.median), ratio, interval, beside, why)


def geometric_mean(values: Sequence[float]) -> float:
    """Return the geometric mean of positive numbers."""
    return math.exp(sum(map(math.log, values)) / len(values))


def _together(
    base: Device, new: Device, changes: Sequence[Change], relative: float
) -> tuple[list[str], str, list[Change]]:
    """Compare the rows as a whole. Return a line for each clock, a note on torch's own times if they changed much, and
    a regression if rows that are not slower alone are slower together."""
    lines, shifted, drift = [], [], []
    rows = {row.name: row for row in base.rows}
    after = {row.name: row for row in new.rows}
    clocks = {"host": "host time", "first call": "first calls"}
    for clock in ("device time", *clocks.values()):
        mine = [
            change for change in changes
            if change.ratio is not None and clocks.get(rows[change.name].clock, "device time") == clock
        ]  # fmt: skip
        if not mine:
            continue
        mean = geometric_mean([change.ratio or 1 for change in mine])
        line = f"{len(mine)} rows of {clock}: {mean:.3f} times as long as before"
        both = [change for change in mine if change.beside is not None]
        if both:
            ours = geometric_mean([change.beside or 1 for change in both])
            torch = geometric_mean(
                [after[c.name].peers["torch"].median / rows[c.name].peers["torch"].median for c in both]
            )
            line += f"; beside torch {ours:.3f}, torch itself {torch:.3f}"
            if abs(math.log(torch)) > math.log(1 + (HOST if clock != "device time" else SHIFTED)):
                shifted.append(f"{torch:.2f} times as long as before ({len(both)} rows of {clock})")
        lines.append(f"{line} (geometric means)")
        if clock == "device time":
            left = [change for change in mine if change.verdict is Verdict.SAME]
            drift += _drift(left, [rows[change.name] for change in left], relative)
    return lines, f"torch itself took {' and '.join(shifted)}" if shifted else "", drift


def _drift(changes: Sequence[Change], rows: Sequence[Row], relative: float) -> list[Change]:
    """Return a regression of rows together, none of which is a regression alone. Independent differences of rows fall
    with the root of their number; shared ones do not. Rows of host time share too much: the placement of their
    process."""
    if len(changes) < FEWEST:
        return []
    nearest = np.log([min(c.ratio or 1, c.beside or math.inf) for c in changes])
    beside = all(change.beside is not None for change in changes)
    shared = relative * (TOGETHER if beside else 1)
    alone = sum(limit(row, relative) - 1 for row in rows) / len(rows) / math.sqrt(len(rows))
    most = 1 + max(shared, alone)
    low, high = np.exp(bootstrap(lambda drawn: drawn.mean(axis=1), nearest))
    mean = float(np.exp(nearest.mean()))
    if mean <= most or low <= 1:
        return []
    slower = f"{mean - 1:.1%} slower as a whole{', beside torch too' if beside else ''}"
    why = f"{slower}; runs of one commit differ by up to {most - 1:.1%}"
    name = f"{len(rows)} rows of device time together"
    return [Change("speed", name, Verdict.WORSE, ratio=mean, interval=(float(low), float(high)), why=why)]


def _record(base: Record, new: Record, *, same_cases: bool) -> Change:
    before, after = (record.worst.share if record.worst else None for record in (base, new))
    why, verdict = [], Verdict.SAME
    if new.failed > base.failed:
        why.append(f"{new.failed} cases fail, {base.failed} before")
    if new.not_provided > base.not_provided and same_cases:
        why.append(f"{new.not_provided} cases are not provided, {base.not_provided} before")
    if same_cases:
        if after is not None and after > (before or 0.0) * (1 + SHARE_OF) + SHARE:
            why.append(f"uses {share_text(after)} of the bound, {share_text(before)} before")
        if new.ulps is not None and base.ulps is not None and new.ulps > base.ulps * (1 + SHARE_OF) + SHARE:
            why.append(f"{new.ulps:.3g} ulp off, {base.ulps:.3g} before")
    if why:
        verdict = Verdict.WORSE
    elif new.failed < base.failed:
        verdict = Verdict.BETTER
    was = f"{base.failed} failed, share {share_text(before)}"
    now = f"{new.failed} failed, share {share_text(after)}"
    return Change("accuracy", f"{base.op} {base.dtype}", verdict, was, now, why="; ".join(why))


def _time(seconds: float) -> str:
    return f"{seconds * 1e6:.1f} us"


def text(value: str) -> str:
    """Return Markdown that shows exactly ``value``, also inside a table."""
    return "".join(character if character.isprintable() else " " for character in value).translate(_ESCAPED)


_ESCAPED = {ord(c): f"\\{c}" for c in "\\`*_{}[]|#!~"} | {ord(c): f"&#{ord(c)};" for c in "<>&"}


def markdown(comparison: Comparison) -> str:
    """Return a summary for a pull request: the verdict, worse rows, then better rows; the rest is counted."""
    worse, changes = comparison.worse, comparison.changes
    counts = {verdict: sum(change.verdict is verdict for change in changes) for verdict in Verdict}
    head = f"**{len(worse) or 'No'} regression{'s' if len(worse) > 1 else ''}**"
    if comparison.with_torch:
        number = len(comparison.with_torch)
        head += f", **but {number} row{'s are' if number > 1 else ' is'} slower with torch beside them**"
    counted = ", ".join(f"{count} {verdict}" for verdict, count in counts.items() if count)
    lines = [f"{head} ({counted})", ""]
    if comparison.shifted:
        lines += [f"**{text(comparison.shifted)}**: another chip, clock or driver, or torch is slower or faster", ""]
    lines += [f"- {text(note)}" for note in comparison.notes]
    lines += [""] if comparison.notes else []
    better = [change for change in changes if change.verdict is Verdict.BETTER]
    for shown, title in ((worse, "Worse"), (comparison.with_torch, "Slower, and torch too"), (better, "Better")):
        if not shown:
            continue
        lines += [f"### {title}", "", "| | before | now | ratio (95% interval) | beside torch | |"]
        lines += ["| --- | ---: | ---: | ---: | ---: | --- |"]
        for change in shown:
            ratio = "" if change.ratio is None else f"{change.ratio:.3f}"
            ratio += f" ({change.interval[0]:.3f} to {change.interval[1]:.3f})" if change.interval else ""
            beside = "" if change.beside is None else f"{change.beside:.3f}"
            cells = (change.name, change.before, change.after, ratio, beside, change.why)
            lines.append("| " + " | ".join(text(cell) for cell in cells) + " |")
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def junit(comparison: Comparison) -> bytes:
    """Return JUnit XML: one test for each row or op and dtype, failed if it is a regression."""
    suite = ET.Element("testsuite", name="compare", tests=str(len(comparison.changes)))
    suite.set("failures", str(len(comparison.worse)))
    for change in comparison.changes:
        case = ET.SubElement(suite, "testcase", classname=change.kind, name=_xml(change.name))
        if change in comparison.worse:
            summary = f"{change.verdict}: {change.why}"
            failure = ET.SubElement(case, "failure", message=_xml(summary))
            failure.text = _xml(f"{summary}\nbefore {change.before}, now {change.after}, ratio {change.ratio}")
    return ET.tostring(suite, encoding="utf-8", xml_declaration=True)


def _xml(value: str) -> str:
    """Remove the characters that XML cannot hold."""
    return "".join(c if c in "\n\t" or c.isprintable() else "\ufffd" for c in value)


def rates(runs: Sequence[Device], slowed: str) -> list[tuple[str, float, float, float]]:
    """Measure the gate's error rates on runs of one commit that contain ``slowed``, a slower variant, as a peer.

    Each run is compared with the next (the last with the first), once as it is and once with the slowed times instead
    of its own. Each row has its name, the slowdown (the median of the pairs), the share of runs called worse, and the
    share of slowed runs called worse.
    """
    if len(runs) < 2:
        raise InputError("at least two runs are needed")
    found = []
    tables = [{row.name: row for row in run.rows} for run in runs]
    lacking = [row.name for run in runs for row in run.rows if slowed not in row.peers]
    if lacking:
        raise InputError(f"{lacking[0]}: was not timed beside {slowed}")
    following = [*tables[1:], tables[0]]
    for name in tables[0]:
        pairs = [(a[name], b[name]) for a, b in zip(tables, following, strict=True) if name in a and name in b]
        if not pairs:
            continue
        false = [_row(a, b).verdict is Verdict.WORSE for a, b in pairs]
        seen = [_row(a, _slowed(b, slowed)).verdict is Verdict.WORSE for a, b in pairs]
        shares = [b.peers[slowed].median / b.median - 1 for _, b in pairs]
        found.append((name, float(np.median(shares)), sum(false) / len(false), sum(seen) / len(seen)))
    if not found:
        raise InputError("no row is in one run and in the next")
    return found


def _slowed(row: Row, name: str) -> Row:
    peer = row.peers[name]
    return msgspec.structs.replace(row, seconds=peer.seconds, median=peer.median)


def rates_table(found: Iterable[tuple[str, float, float, float]]) -> str:
    """Return the rates as a Markdown table."""
    lines = ["| row | made slower by | called, same commit | called, made slower |", "| --- | ---: | ---: | ---: |"]
    lines += [f"| {text(name)} | {by:.1%} | {false:.0%} | {seen:.0%} |" for name, by, false, seen in found]
    return "\n".join(lines) + "\n"
