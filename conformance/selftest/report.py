"""What a self-test found, as lines of text."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence

import msgspec

from conformance import cases, messages
from conformance.selftest import families
from conformance.selftest.search import Control, Result


def is_clean(results: Sequence[Result], controls: Sequence[Control]) -> bool:
    """Whether every defect was caught and no right implementation alarmed."""
    return all(result.killed for result in results) and not any(control.alarms for control in controls)


def tables(results: Sequence[Result], controls: Sequence[Control]) -> list[str]:
    """Defects by op and by check, the right implementations, and each survivor and false alarm by name."""
    head = ("planted", "caught", "rate", "median", "most", "longest")
    lines = []
    for name, key in _KEYS.items():
        if counted := [result for result in results if key(result)]:
            lines += [*_table((name, *head), _rows(counted, key)), ""]
    if controls:
        names = sorted({control.name for control in controls})
        rows = [[control for control in controls if control.name == name] for name in names]
        columns = [
            (name, len(row), sum(c.cases for c in row), sum(c.deviations for c in row), sum(c.alarms for c in row))
            for name, row in zip(names, rows, strict=True)
        ]
        lines += [*_table(("control", "ops", "cases", "known deviations", "false alarms"), columns), ""]
    for result in results:
        if not result.killed:
            seen = f"; it failed {', '.join(result.otherwise)}" if result.otherwise else ""
            what = f"{result.check} does not see {result.about!r} in {result.examples} cases{seen}"
            lines += [f"SURVIVED {result.name}: {what}", ""]
    for control in controls:
        if control.case is not None:
            case = messages.call(control.case)
            lines += [f"FALSE ALARM {control.name}, {control.alarms} times: {case}\n  {control.message}", ""]
    caught, alarms = sum(result.killed for result in results), sum(control.alarms for control in controls)
    judged = sum(control.cases for control in controls)
    return [*lines, f"{caught} of {len(results)} defects caught, {alarms} false alarms in {judged} cases"]


def as_json(about: Mapping[str, object], results: Sequence[Result], controls: Sequence[Control]) -> bytes:
    """``about`` the run, and what came of each defect and control, one a line; of the case that caught a defect its id,
    since ``--defect`` finds it again."""
    told = [
        {**msgspec.structs.asdict(result), "case": result.case and cases.case_id(result.case)} for result in results
    ]
    parts = [msgspec.json.encode(about)[:-1]]
    for name, lines in (("defects", told), ("controls", controls)):
        parts.append(b'"%s":[\n' % name.encode() + b",\n".join(map(msgspec.json.encode, lines)) + b"\n]")
    return b",\n".join(parts) + b"}\n"


_KEYS: dict[str, Callable[[Result], tuple[str, ...]]] = {
    "op": lambda result: (result.op,),
    "check": lambda result: (result.check,),
    "kind": lambda result: (result.kind,),
    "backward pass": lambda result: families.of_backward(result.op, result.check, result.kind),
}
"""What each table counts by; a result without a name is in none."""


def _rows(results: Sequence[Result], key: Callable[[Result], tuple[str, ...]]) -> list[tuple[object, ...]]:
    """By ``key``: how many there are and were caught, and the cases that it took: median, most, and of which."""
    rows: list[tuple[object, ...]] = []
    for name in [*sorted({one for result in results for one in key(result)}), "all"]:
        group = [result for result in results if name in ("all", *key(result))]
        caught = [result for result in group if result.killed]
        longest = max(caught, key=lambda result: result.examples, default=None)
        took = [result.examples for result in caught] or [0]
        rate = f"{100 * len(caught) / len(group):.4g}%" if group else "-"
        where = longest.name if longest else "-"
        rows.append((name, len(group), len(caught), rate, f"{statistics.median(took):g}", max(took), where))
    return rows


def _table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
    cells = [tuple(map(str, row)) for row in (head, *rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(head))]
    last = len(head) - 1
    return [
        "  ".join(
            cell.ljust(width) if column == 0 or (column == last and head[-1] == "longest") else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in cells
    ]
