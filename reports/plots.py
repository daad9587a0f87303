"""Plots as SVG that takes its colours from the page, so that one picture serves light and dark mode."""

from __future__ import annotations

import html
import io
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox

from reports.model import Record, Row
from reports.read import by_op

# Placeholders in the drawing for colours of the page's style sheet.
INK, FAINT = "#010203", "#040506"
SERIES = ("#0a0b01", "#0a0b02", "#0a0b03", "#0a0b04", "#0a0b05", "#0a0b06")
_PAGE = {INK: "var(--ink)", FAINT: "var(--line)"} | {c: f"var(--c{number})" for number, c in enumerate(SERIES, 1)}
MARKERS = "osD^vP"
EDGES = tuple(2.0**power for power in range(-10, 1))
"""Upper edges of the buckets of ``Record.shares`` after the first, which counts shares of exactly 0; a last bucket
counts shares over 1."""

Plot = tuple[str, str]
"""A wide drawing, and a narrow one for phones."""


def _figure(width: float, height: float, rows: int = 1, columns: int = 1) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False)
    for axis in axes.flat:
        axis.set_facecolor("none")
        axis.grid(color=FAINT, linewidth=0.6)
        axis.set_axisbelow(True)
        axis.tick_params(which="both", colors=INK, labelsize=9, length=0)
        for spine in axis.spines.values():
            spine.set_visible(False)
    return figure, list(axes.flat)


def _svg(figure: Figure, titles: Sequence[str] = ()) -> str:
    """Return inline SVG without a size, and only with ids that it refers to itself. ``titles`` are shown when a pointer
    is over the marks with the ids "title-0", "title-1" and so on."""
    out = io.StringIO()
    style: Any = {"svg.fonttype": "none", "svg.hashsalt": "ntops", "font.family": "sans-serif"}
    with matplotlib.rc_context(style):
        figure.savefig(out, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = out.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'<svg [^>]*?viewBox="([^"]*)"[^>]*>', r'<svg viewBox="\1" role="img">', text, count=1)
    text = re.sub(
        r'<g id="title-(\d+)">', lambda found: f"<g><title>{html.escape(titles[int(found[1])])}</title>", text
    )
    text = re.sub(r'<g id="[^"]*">', "<g>", text)
    text = re.sub(r"(\d\.\d{2})\d+", r"\1", text)
    for stand_in, colour in _PAGE.items():
        text = text.replace(stand_in, colour)
    return text


def _name(axis: Axes, x: str = "", y: str = "", title: str = "") -> None:
    for text, place in ((x, axis.set_xlabel), (y, axis.set_ylabel)):
        place(text, color=INK, fontsize=9, parse_math=False)
    if title:
        axis.set_title(title, color=INK, fontsize=10, loc="left", parse_math=False)


def _ticks(labels: Sequence[str], axis: Axes) -> None:
    axis.set_yticks(range(len(labels)), labels, fontsize=9, parse_math=False)
    axis.set_ylim(len(labels) - 0.4, -0.6)


def _legend(axis: Axes, **options) -> None:
    legend = axis.legend(frameon=False, fontsize=9, labelcolor=INK, **options)
    for text in legend.get_texts():
        text.set_parse_math(False)


def _plain(name: str) -> str:
    return "".join(character if character.isprintable() else "\ufffd" for character in name)


def short(name: str, most: int = 28) -> str:
    """Return a name short enough to leave room for the plot."""
    name = _plain(name)
    return name if len(name) <= most else name[: most - 1] + "…"


def shares(records: Sequence[Record]) -> Plot | None:
    """Plot the largest share of the bound of each op and dtype, ours and torch's; None if nothing rounds."""
    judged = [r for r in records if r.worst is not None and (r.worst.share > 0 or (r.torch_largest or 0) > 0)]
    ops = list(dict.fromkeys(r.op for r in sorted(judged, key=lambda r: -(r.worst.share if r.worst else 0))))
    if not ops:
        return None

    def draw(width: float) -> str:
        figure, (axis,) = _figure(width, 0.9 + 0.21 * len(ops))
        axis.axvline(1, color=INK, linewidth=1)
        most = 1.25
        for number, (colour, marker, name) in enumerate(((SERIES[5], "|", "torch"), (SERIES[0], "o", "ours"))):
            points = [
                (min(value, most), ops.index(r.op))
                for r in judged
                for value in [r.torch_largest if number == 0 else r.worst.share if r.worst else None]
                if value is not None
            ]
            size = 60 if marker == "|" else 22
            if points:
                x, y = zip(*points, strict=True)
                axis.scatter(x, y, s=size, c=colour, marker=marker, label=name, linewidths=1.6 if number == 0 else 0)
        _ticks([short(op) for op in ops], axis)
        axis.set_xlim(-0.02, most + 0.02)
        _name(axis, x="share of the bound; 1 fails; one mark for each dtype")
        _legend(axis, loc="lower right", bbox_to_anchor=(1, 1), ncols=2)
        return _svg(figure)

    return draw(9), draw(4.2)


def histogram(records: Sequence[Record]) -> Plot | None:
    """Plot how the shares of all cases are distributed, for each op; None if the metrics lack them."""
    ops = [r for r in by_op(records) if sum(r.shares[1:])]
    if not ops:
        return None
    ops.sort(key=lambda r: -max(k for k, count in enumerate(r.shares) if count))
    names = ["0", *(f"1/{1 / edge:.0f}" for edge in EDGES[:-1]), "1", ">1"]

    def draw(width: float) -> str:
        figure, (axis,) = _figure(width, 0.9 + 0.21 * len(ops))
        axis.grid(visible=False)
        for y, record in enumerate(ops):
            whole = sum(record.shares)
            for x, count in enumerate(record.shares[: len(names)]):
                if count:
                    # The square root keeps a single case in a thousand visible.
                    axis.barh(y, 0.94, left=x - 0.47, height=0.86, color=SERIES[1 if x == len(names) - 1 else 0],
                              alpha=0.12 + 0.88 * math.sqrt(count / whole))  # fmt: skip
        _ticks([short(r.op) for r in ops], axis)
        axis.set_xticks(range(len(names)), names, fontsize=8, rotation=90 if width < 6 else 0)
        axis.set_xlim(-0.6, len(names) - 0.4)
        _name(axis, x="share of the bound, up to; darker: more of the op's cases")
        return _svg(figure)

    return draw(9), draw(4.2)


LOW = 0.8
"""The share of the roofline below which a row is named in the drawing."""


def roofline(rows: Sequence[Row]) -> Plot | None:
    """Plot achieved rate over arithmetic intensity, under the rates that this chip reached in the same run. A pointer
    over a point shows the row; the lowest points carry their operators' names, as far as there is room."""
    found = [row for row in rows if row.clock == "events" and row.ceilings and row.bytes and row.flops]
    if not found:
        return None
    copy = found[0].ceilings["copy"]
    peaks = {name: rate for name, rate in found[0].ceilings.items() if name != "copy"}
    dtypes = list(dict.fromkeys(row.dtype for row in found))
    titles = [f"{_plain(row.name)}: {row.flops / row.median / 1e12:.3g} TFLOP/s" for row in found]

    def draw(width: float) -> str:
        figure, (axis,) = _figure(width, 5.2)
        x = [row.flops / row.bytes for row in found]
        low, high = min(x) / 2, max(*x, 1000) * 2
        intensities = np.geomspace(low, high, 200)
        best = max(peaks.values(), default=copy * high)
        for number, (name, peak) in enumerate(sorted(peaks.items(), key=lambda item: -item[1])):
            axis.plot(intensities, np.minimum(intensities * copy, peak) / 1e12, color=INK, linewidth=1.2, alpha=0.9)
            if number in (0, len(peaks) - 1):
                note = f"{name}{' (TF32)' if name == 'float32' else ''} {peak / 1e12:.0f} TFLOP/s"
                knee = peak / copy / 1.15
                axis.text(knee, peak / 1e12, note, ha="right", va="center", fontsize=8, color=INK, parse_math=False)
        axis.text(low * 2, low * 8 * copy / 1e12, f"{copy / 1e12:.2f} TB/s", fontsize=8, color=INK, ha="left")
        points = [(row.flops / row.bytes, row.flops / row.median / 1e12) for row in found]
        style: dict[str, dict[str, Any]] = {
            dtype: {"s": 20, "c": SERIES[k % len(SERIES)], "marker": MARKERS[k % len(MARKERS)], "linewidths": 0}
            for k, dtype in enumerate(dtypes)
        }
        for dtype in dtypes:
            axis.scatter([], [], label=short(dtype), **style[dtype])
        for number, (row, (x_of, y_of)) in enumerate(zip(found, points, strict=True)):
            axis.scatter([x_of], [y_of], **style[row.dtype]).set_gid(f"title-{number}")
        axis.set_xscale("log")
        axis.set_yscale("log")
        axis.set_xlim(low, high)
        axis.set_ylim(bottom=min(row.flops / row.median for row in found) / 2e12, top=best / 1e12 * 2)
        _name(axis, x="FLOP per byte that must move", y="TFLOP/s")
        _legend(axis, loc="lower right")
        lowest = sorted((found[k].share or 0.0, k) for k in range(len(found)))
        _names(axis, points, {k: short(found[k].op) for share, k in lowest if share < LOW})
        return _svg(figure, titles)

    return draw(9), draw(4.2)


def _names(axis: Axes, points: Sequence[tuple[float, float]], names: Mapping[int, str]) -> None:
    """Name some points, to the right, the left or below, wherever nothing was drawn before; else not at all."""
    figure = axis.get_figure(root=True)
    assert figure is not None
    figure.draw_without_rendering()
    pixels, size = figure.dpi / 72, 7.5
    frame, legend = axis.get_window_extent(), axis.get_legend()
    taken = [text.get_window_extent() for text in axis.texts] + ([legend.get_window_extent()] if legend else [])
    marks = axis.transData.transform(points)
    for number, name in names.items():
        left, bottom = marks[number]
        wide, high = 0.62 * size * len(name) * pixels, 1.1 * size * pixels
        for across, up in ((5 * pixels, -high / 2), (-wide - 5 * pixels, -high / 2), (-wide / 2, -high - 5 * pixels)):
            box = Bbox.from_bounds(left + across, bottom + up, wide, high)
            inside = frame.x0 <= box.x0 and box.x1 <= frame.x1 and frame.y0 <= box.y0 and box.y1 <= frame.y1
            if inside and not any(map(box.overlaps, taken)) and not any(box.contains(x, y) for x, y in marks):
                offset = (across / pixels, (up + high / 2) / pixels)
                axis.annotate(name, points[number], offset, textcoords="offset points", va="center", fontsize=size,
                              color=INK, parse_math=False)  # fmt: skip
                taken.append(box)
                break


def sizes(rows: Sequence[Row]) -> Plot | None:
    """Plot how many times as fast as each peer ours is, for every op and dtype with three sizes or more, by bytes."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        if row.clock == "events" and row.peers:
            groups.setdefault(f"{row.op} {row.dtype}", []).append(row)
    groups = {name: sorted(found, key=lambda r: (r.bytes, r.flops)) for name, found in groups.items() if len(found) > 2}
    peers = list(dict.fromkeys(peer for found in groups.values() for row in found for peer in row.peers))
    if not groups:
        return None
    # A line for the name of each group, then its rows.
    lines = [(name, row) for name, found in groups.items() for row in (None, *found)]

    def draw(width: float, most: int) -> str:
        figure, (axis,) = _figure(width, 0.8 + 0.19 * len(lines))
        axis.grid(axis="y", visible=False)
        axis.axvline(1, color=INK, linewidth=1)
        for number, peer in enumerate(peers):
            points = [
                (ratio, y) for y, (_, row) in enumerate(lines) if row and (ratio := row.times_as_fast(peer)) is not None
            ]
            x, y = zip(*points, strict=True) if points else ((), ())
            marker, colour = MARKERS[number % len(MARKERS)], SERIES[number % len(SERIES)]
            axis.scatter(x, y, s=22, c=colour, marker=marker, label=short(f"vs {peer}"), linewidths=0)
        _ticks([short(name if row is None else row.label, most) for name, row in lines], axis)
        for label, (_, row) in zip(axis.get_yticklabels(), lines, strict=True):
            label.set_fontweight("bold" if row is None else "normal")
        axis.set_xlim(left=0)
        _name(axis, x="times as fast as the peer")
        _legend(axis, loc="lower right", bbox_to_anchor=(1, 1), ncols=len(peers))
        return _svg(figure)

    return draw(9, 44), draw(4.2, 22)
