"""Write reports as files: one self-contained HTML page, Markdown, and JSON that can be read again."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jinja2
import markupsafe
import msgspec

from reports import plots, summary
from reports.compare import Comparison, compare, text
from reports.model import SCHEMA, Device
from reports.read import InputError, share_text, slug

TEMPLATES = Path(__file__).parent / "templates"


class Section(msgspec.Struct, frozen=True):
    """A device as it is shown, with changes since a baseline, and files that could not be read."""

    device: Device
    comparison: Comparison | None
    findings: list[summary.Finding]


def sections(devices: Sequence[Device], baseline: Sequence[Device], problems: Sequence[str]) -> list[Section]:
    """Pair each device with the baseline of the same device; mismatches become findings."""
    found = []
    before = {device.name: device for device in baseline}
    for device in devices:
        comparison, notes = None, list(problems)
        if device.name in before:
            try:
                comparison = compare(before[device.name], device)
            except InputError as error:
                notes.append(f"baseline: {error}")
        elif baseline:
            notes.append(f"baseline: it is of {', '.join(before)}")
        found.append(Section(device, comparison, summary.findings(device, comparison, notes)))
    return found


def html(title: str, found: Sequence[Section]) -> str:
    """Return the page. Everything that comes from a file is escaped, and the page allows no script at all."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES), autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True
    )
    environment.filters.update(
        share=share_text, us=microseconds, times=times, percent=percent, breakable=breakable, slug=slug, ulp=ulp
    )
    page = environment.get_template("report.html").render(
        title=title, sections=found, summary=summary, plots=plots, plot=_plot, side_by_side=side_by_side
    )
    # Characters that UTF-8 cannot hold (half of a surrogate pair in a hostile name) become question marks.
    return page.encode("utf-8", "replace").decode()


def _plot(draw: Callable[..., plots.Plot | None], *arguments: Any) -> dict[str, Any] | None:
    """Return a drawing of ``reports.plots``, whose text matplotlib has escaped."""
    drawn = draw(*arguments)
    return None if drawn is None else dict(zip(("wide", "narrow"), map(markupsafe.Markup, drawn), strict=True))


def microseconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1e6:,.1f}"


def ulp(error: float | None) -> str:
    return "-" if error is None else "\N{INFINITY}" if error > 1e300 else f"{error:.3g}"


def times(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.2f}\N{MULTIPLICATION SIGN}"


def breakable(name: str) -> markupsafe.Markup:
    """Return a name that a narrow page may break after its underscores."""
    return markupsafe.Markup(str(markupsafe.escape(name)).replace("_", "_<wbr>"))


def percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.0%}"


def side_by_side(found: Sequence[Section]) -> list[tuple[str, list[dict[str, Any] | None]]]:
    """Return each op with every device's result, or None if a device lacks it; ops that fail anywhere come first."""
    table: dict[str, list[dict[str, Any] | None]] = {}
    for column, section in enumerate(found):
        for whole, dtypes in summary.accuracy(section.device):
            cell = table.setdefault(whole.op, [None] * len(found))
            share = summary.furthest(dtypes).share
            cell[column] = {"failed": whole.failed, "share": share, "ratio": None}
        for group in summary.speed(section.device):
            cells = table.setdefault(group.op, [None] * len(found))
            cells[column] = {"failed": 0, "share": None, **(cells[column] or {}), "ratio": group.mean or group.host}

    def order(item: tuple[str, list[dict[str, Any] | None]]) -> tuple[int, float, str]:
        cells = [cell for cell in item[1] if cell]
        return (
            -sum(cell["failed"] for cell in cells),
            min((cell["ratio"] or 9.0 for cell in cells), default=9.0),
            item[0],
        )

    return sorted(table.items(), key=order)


def markdown(title: str, found: Sequence[Section]) -> str:
    """Return the report for a terminal or a pull request, without plots."""
    lines = [f"# {text(title)}", ""]
    for section in found:
        device = section.device
        lines += [f"## {text(device.name)}", ""]
        lines += [
            f"- {'**' if f.level == 'bad' else ''}{text(f.text)}{'**' if f.level == 'bad' else ''}"
            for f in section.findings
        ]
        about = {**device.about, **device.environment}
        lines += ["", text(", ".join(f"{name} {value}" for name, value in about.items() if value)), ""]
        if device.records:
            rows = [
                (whole.op, whole.judged, whole.failed, whole.refused, whole.not_provided, whole.deviated, shown.dtype,
                 share_text(shown.share), share_text(shown.torch_largest), ulp(shown.ulps),
                 (shown.worst.id if shown.worst else "") or "-")
                for whole, dtypes in summary.accuracy(device) for shown in [summary.furthest(dtypes)]
            ]  # fmt: skip
            head = ("op", "cases", "failed", "refused", "not provided", "excused", "furthest beyond torch",
                    "share of the bound", "torch's", "largest error, ulp", "in")  # fmt: skip
            lines += _table("Accuracy", head, rows)
        if device.rows:
            peers = list(dict.fromkeys(peer for row in device.rows for peer in row.peers))
            head = ("op", "dtype", "operands", "clock", "us", *peers, *(f"vs {p}" for p in peers), "roofline")
            rows = [
                (row.op, row.dtype, row.label, row.clock, microseconds(row.median),
                 *(microseconds(row.peers[p].median) if p in row.peers else "-" for p in peers),
                 *(times(row.times_as_fast(p)) for p in peers),
                 percent(row.share))
                for group in summary.speed(device) for row in group.rows
            ]  # fmt: skip
            lines += _table("Speed: slowest first; a ratio over 1 is faster than the peer", head, rows)
        if device.coverage:
            rows = [
                (p.op, p.feasible, p.hit, percent(p.hit / p.feasible if p.feasible else None)) for p in device.coverage
            ]
            lines += _table("Coverage of pairs of features", ("op", "feasible", "hit", "share"), rows)
        if device.selftest:
            rows = [
                (f"{p.of} {p.name}", p.planted, p.killed, "-" if p.examples is None else f"{p.examples:g}",
                 ", ".join(p.survivors) or "-")
                for p in device.selftest
            ]  # fmt: skip
            lines += _table("Self-test", ("of", "planted", "found", "cases it took, median", "not found"), rows)
            if device.false_alarms is not None:
                lines += [
                    f"{device.false_alarms} false alarms in {device.controlled} cases on correct implementations",
                    "",
                ]
    return "\n".join(lines).rstrip() + "\n"


def _table(title: str, head: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[str]:
    lines = [f"### {text(title)}", "", "| " + " | ".join(map(text, head)) + " |", "|" + " --- |" * len(head)]
    return [*lines, *("| " + " | ".join(text(str(cell)) for cell in row) + " |" for row in rows), ""]


def write(folder: Path, title: str, found: Sequence[Section]) -> list[Path]:
    """Write ``report.html``, ``report.md`` and ``report.json`` to ``folder``; all are made before any is written."""
    whole = {"schema": SCHEMA, "devices": [section.device for section in found]}
    contents = {
        "report.html": html(title, found).encode(),
        "report.md": markdown(title, found).encode("utf-8", "replace"),
        "report.json": msgspec.json.encode(whole) + b"\n",
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        handle, temporary = tempfile.mkstemp(dir=folder, suffix=".part")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
            os.chmod(temporary, 0o644)
            os.replace(temporary, folder / name)
        except OSError:
            os.unlink(temporary)
            raise
    return [folder / name for name in contents]
