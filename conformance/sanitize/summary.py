"""Show the findings of sanitizers as lines of text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from conformance.sanitize import controls
from conformance.sanitize.batches import Result

WIDTH = 110


def progress(result: Result) -> str:
    """Return one line about one process."""
    outcome = result.outcome
    others = [
        f"{number} {what}"
        for number, what in (
            (outcome.configurations, "in other configurations"),
            (outcome.refused, "refused"),
            (outcome.not_provided, "not provided"),
        )
        if number
    ]
    called = f"{outcome.called} called{''.join(f', {other}' for other in others)}"
    said = _first(result) or (f"cannot tell: {result.problem}" if result.problem else "nothing found")
    return f"{result.batch.tool} {result.batch.name}: {called}; {said}"


def lines(results: Sequence[Result]) -> Iterator[str]:
    """Yield a table of all results, and below it the first finding of each."""
    tools = list(dict.fromkeys(result.batch.tool for result in results))
    names = list(dict.fromkeys(result.batch.name for result in results))
    cells = {(result.batch.tool, result.batch.name): result for result in results}
    width = max(len("operator"), *map(len, names))
    yield ""
    yield f"{'operator':{width}}  {'calls':>5}" + "".join(f"  {tool:>9}" for tool in tools)
    for name in sorted(names, key=lambda name: name in (*controls.RIGHT, *controls.PLANTED.values())):
        row = [cells.get((tool, name)) for tool in tools]
        called = max(one.outcome.called for one in row if one is not None)
        yield f"{name:{width}}  {called:>5}" + "".join(f"  {_cell(one):>9}" for one in row)
    yield ""
    for result in results:
        if text := _first(result):
            yield f"{result.batch.tool} {result.batch.name}: {text}"
        if result.problem:
            yield f"{result.batch.tool} {result.batch.name}: cannot tell: {result.problem}"
        for note in result.report.notes:
            yield f"{result.batch.tool} {result.batch.name}: note: {note}"
    yield from _totals(results, tools)


def _totals(results: Sequence[Result], tools: Sequence[str]) -> Iterator[str]:
    for tool in tools:
        own = [one for one in results if one.batch.tool == tool and not one.batch.plan.control]
        found, called = sum(one.report.count for one in own), sum(one.outcome.called for one in own)
        among = sum(one.found for one in own)
        where = f", in {among} operators" if found else ""
        untold = sum(bool(one.problem) for one in own)
        end = f"; {untold} operators could not be judged" if untold else ""
        yield f"{tool}: {found} found in {called} calls of {len(own)} operators{where}{end}"
        planted = controls.PLANTED[tool]
        for one in results:
            if one.batch.tool == tool and one.batch.plan.control:
                if one.batch.name == planted and not one.found:
                    yield f"{tool} does not find {planted!r}: what it does not report may be there"
                elif one.batch.name != planted and one.found:
                    yield f"{tool} reports {one.batch.name!r}, which is right: such reports may be the tool's"


def _cell(result: Result | None) -> str:
    if result is None:
        return ""
    if result.problem:
        return f"{result.report.count}!" if result.found else "!"
    return str(result.report.count) if result.outcome.called else "-"


def _first(result: Result) -> str:
    """Say how much was found, and what was first."""
    if not result.found:
        return ""
    first = str(result.report.findings[0]) if result.report.findings else "not printed"
    return f"{result.report.count} found, first {first}"
