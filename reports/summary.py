"""Summarise a device, worst first, for both HTML and Markdown."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable

import msgspec

from reports.compare import Comparison, geometric_mean
from reports.model import Device, Failure, Record, Row, Worst
from reports.read import COMMIT, by_op, share_text

SLOW = 0.98
"""The least ratio to the best peer at which a row counts as equally fast: smaller differences are noise."""
MOST = 8
"""The number of findings of one kind that are named; the others are counted."""


class Finding(msgspec.Struct, frozen=True):
    """A finding that a reader should know first. ``level`` is "bad", "warn" or "good"; ``where`` is an anchor."""

    level: str
    text: str
    where: str


class OpSpeed(msgspec.Struct, frozen=True):
    """An op's rows, slowest against the best peer first."""

    op: str
    rows: list[Row]
    worst: float | None
    mean: float | None
    """The geometric mean of the ratios of device time to the best peer's."""
    host: float | None
    share: float | None
    """The largest share of the roofline."""


def beyond_torch(record: Record) -> float:
    """Return by how much the largest share of the bound exceeds torch's own. This tells more than the share: rounding
    the right result to a half type uses nearly all of the bound."""
    if record.worst is None:
        return -2.0
    return record.worst.share - min(record.torch_largest or 0.0, 1.0)


def _distance(record: Record) -> tuple[bool, float, float]:
    """Return a sort key for a record's distance from being right: first records that round, then those furthest beyond
    torch, then those nearest to the bound. An exact dtype beside a rounding one (bool of ``mm``) tells nothing."""
    return max(record.share or 0.0, record.torch_largest or 0.0) > 0, beyond_torch(record), record.share or 0.0


def furthest(records: Iterable[Record]) -> Record:
    """Return the dtype, of those that round, that goes furthest beyond torch."""
    return max(records, key=_distance)


def accuracy(device: Device) -> list[tuple[Record, list[Record]]]:
    """Return each op with its dtypes: failing ones first, then those furthest beyond torch's own error."""

    def order(record: Record) -> tuple[int, tuple[bool, float, float], str]:
        rounds, beyond, share = _distance(record)
        return -record.failed, (not rounds, -beyond, -share), record.dtype

    found: dict[str, list[Record]] = {}
    for record in device.records:
        found.setdefault(record.op, []).append(record)
    dtypes = {op: sorted(records, key=order) for op, records in found.items()}
    ops = sorted(by_op(device.records), key=lambda o: (-o.failed, order(furthest(dtypes[o.op]))[1], o.op))
    return [(whole, dtypes[whole.op]) for whole in ops]


def speed(device: Device) -> list[OpSpeed]:
    """Return each op with its rows, slowest first."""
    groups: dict[str, list[Row]] = {}
    for row in device.rows:
        groups.setdefault(row.op, []).append(row)
    found = []
    for op, rows in groups.items():
        on_device = [row.ratio for row in rows if row.ratio and row.clock != "host"]
        host = [row.ratio for row in rows if row.ratio and row.clock == "host"]
        mean = geometric_mean(on_device) if on_device else None
        share = max((row.share for row in rows if row.share is not None), default=None)
        rows = sorted(rows, key=lambda row: (row.ratio is None, row.ratio or 0.0))
        found.append(OpSpeed(op, rows, min(on_device or host, default=None), mean, min(host, default=None), share))
    return sorted(found, key=lambda group: (group.worst is None, group.worst or 0.0))


def findings(device: Device, comparison: Comparison | None, problems: Iterable[str]) -> list[Finding]:
    """Return the findings, worst first: failures, regressions, unreadable files, slow rows, missing parts."""
    found = [
        Finding("bad", f"{whole.op}: {whole.failed} of {whole.judged} cases fail", "accuracy")
        for whole, _ in accuracy(device)
        if whole.failed
    ]
    found = _few(found, "more ops fail", "accuracy")
    found += [Finding("bad", complaint, "accuracy") for complaint in device.complaints]
    if comparison is not None:
        found += _few(
            [Finding("bad", f"{c.name}: {c.why}", "changes") for c in comparison.worse], "more regressions", "changes"
        )
        if comparison.shifted:
            found.append(Finding("warn", comparison.shifted, "changes"))
    survivors = [name for planted in device.selftest if planted.of == "op" for name in planted.survivors]
    if survivors:
        found.append(Finding("bad", f"{len(survivors)} planted defects were not found", "selftest"))
    if device.false_alarms:
        found.append(Finding("bad", f"{device.false_alarms} false alarms of the harness", "selftest"))
    found += [Finding("bad", problem, "environment") for problem in problems]
    slow = [
        Finding("warn", f"{row.op} {row.dtype} {row.label}: {row.ratio:.2f} times as fast as {row.best_peer}", "speed")
        for row in sorted(device.rows, key=lambda row: row.ratio or 9.0)
        if row.ratio is not None and row.ratio < SLOW and row.clock != "host"
    ]
    found += _few(slow, "more rows are slower than the best peer", "speed", 3)
    host = sorted((row.ratio, row.op) for row in device.rows if row.ratio is not None and row.clock == "host")
    if host and host[0][0] < SLOW:
        text = f"small calls cost the host up to {1 / host[0][0]:.1f} times as much as the best peer's ({host[0][1]})"
        found.append(Finding("warn", text, "speed"))
    largest = max(device.records, key=beyond_torch, default=None)
    if largest is not None and largest.worst is not None and beyond_torch(largest) > 0:
        text = (
            f"furthest beyond torch's own error: {largest.op} {largest.dtype} uses {share_text(largest.worst.share)} "
        )
        text += f"of its bound, torch {share_text(largest.torch_largest)}"
        found.append(Finding("warn", text, "accuracy"))
    commits = device.environment.get(COMMIT, "")
    if ", " in commits:
        found.append(Finding("warn", f"measured at several commits: {commits}", "environment"))
    found += [Finding("warn", f"no {name} in these files: {how}", "environment") for name, how in missing(device)]
    if device.records and not any(record.failed for record in device.records) and not device.complaints:
        cases = sum(record.judged for record in device.records)
        found.append(
            Finding("good", f"no failure in {cases:,} cases of {len(by_op(device.records))} operators", "accuracy")
        )
    return found


def _few(found: list[Finding], others: str, where: str, most: int = MOST) -> list[Finding]:
    if len(found) <= most:
        return found
    return [*found[:most], Finding(found[0].level, f"{len(found) - most} {others}", where)]


def missing(device: Device) -> list[tuple[str, str]]:
    """Return the parts that this report lacks, each with the command that makes it."""
    parts = (
        (device.records, "accuracy", "nox -s conformance -- --metrics metrics.json"),
        (device.rows, "benchmarks", "nox -s bench -- --benchmark-json bench.json"),
        (device.coverage, "coverage of pairs", "the metrics of this run do not hold it"),
        (device.selftest, "self-test", "nox -s selftest -- --json selftest.json"),
    )
    return [(name, how) for part, name, how in parts if not part]


def reproduce(kept: Worst | Failure, implementation: str) -> str:
    """Return one shell line that writes the case to a file and replays it; "" if there is no case."""
    raw = bytes(kept.case)
    if raw in (b"", b"null"):
        return ""
    case = msgspec.json.encode(msgspec.json.decode(raw)).decode()
    name = (re.sub(r"[^A-Za-z0-9_.-]+", "_", kept.id).lstrip("-.") or "case") + ".json"
    chosen = f" --implementation {shlex.quote(implementation)}" if implementation else ""
    return f"printf '%s' {shlex.quote(case)} > {name} && python -m conformance reproduce {name}{chosen}"


def describe(case: msgspec.Raw) -> str:
    """Return a case's arguments in short; "" if it is not a case."""
    try:
        whole = msgspec.json.decode(bytes(case))
        arguments = [("", argument) for argument in whole["args"]] + sorted(whole.get("kwargs", {}).items())
        return ", ".join(f"{name}={_argument(value)}" if name else _argument(value) for name, value in arguments)
    except (msgspec.DecodeError, KeyError, TypeError, AttributeError):
        return ""


def _argument(value: object) -> str:
    if not isinstance(value, dict):
        return str(value)
    if value.get("type") == "tensor":
        special = " with " + ", ".join(str(s["value"]) for s in value["specials"]) if value.get("specials") else ""
        layout = " strided" if value.get("layout") else ""
        return f"{value.get('dtype')}{value.get('shape')}{layout} {value.get('values', 'normal')}{special}"
    return str(value.get("value", value.get("name", f"operand {value.get('operand')}")))
