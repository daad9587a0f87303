"""``python -m conformance.selftest``: how many planted defects the judge catches, and whether it cries wolf."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from conformance import runner

# First: the kernels among the defects are interpreted, also where there is a GPU.
runner.resolve_device("cpu")

from conformance import environment  # noqa: E402
from conformance.names import unknown_name  # noqa: E402
from conformance.selftest import defect_registry, report, search, workers  # noqa: E402
from conformance.selftest.defect_registry import Defect  # noqa: E402
from conformance.selftest.search import Control, Result  # noqa: E402

CONTROLLED = 300
PASSED, FAILED, BAD_INPUT = 0, 1, 2


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status: 0 every defect caught and no false alarm, 1 otherwise, 2 bad input."""
    options = _parser().parse_args(arguments)
    try:
        chosen = _chosen(options.op, options.defect)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return BAD_INPUT
    if options.json is not None and not options.json.absolute().parent.is_dir():
        print(f"error: --json {options.json}: there is no folder {options.json.parent}", file=sys.stderr)
        return BAD_INPUT
    controlled = 0 if options.defect else options.controls
    if options.controls_only:
        chosen = {op: [] for op in chosen}
    results, tallies = run(chosen, controlled, options.seed, options.n, Console(stderr=True))
    print("\n".join(report.tables(results, tallies)))
    if options.json is not None:
        whole = {"schema": 1, "controlled": controlled, "seed": options.seed, **environment.environment()}
        options.json.write_bytes(report.as_json(whole, results, tallies))
        print(f"written to {options.json}")
    return PASSED if report.is_clean(results, tallies) else FAILED


def run(
    chosen: dict[str, list[Defect]], controlled: int, seed: int, processes: int, console: Console
) -> tuple[list[Result], list[Control]]:
    """Study the ops, each in one of so many processes; a progress bar on ``console``."""
    results: list[Result] = []
    tallies: list[Control] = []
    # Those that take longest first, so that no process is left alone with one at the end.
    ops = sorted(chosen, key=lambda op: -len(chosen[op]))
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("operators", total=len(ops))
        for found in workers.study({op: [d.name for d in chosen[op]] for op in ops}, controlled, seed, processes):
            results.extend(found[0])
            tallies.extend(found[1])
            progress.advance(task)
    order = {name: number for number, name in enumerate(defect_registry.bank())}
    return sorted(results, key=lambda r: order[r.name]), sorted(tallies, key=lambda t: (t.name, t.op))


def _chosen(ops: Sequence[str] | None, names: Sequence[str] | None) -> dict[str, list[Defect]]:
    """The defects asked for, by op. Raises ValueError, naming what is near."""
    found = defect_registry.bank()
    valid = sorted({defect.op for defect in found.values()})
    if unknown := [op for op in ops or () if op not in valid]:
        raise ValueError(unknown_name("op", unknown[0], valid))
    if unknown := [name for name in names or () if name not in found]:
        near = [name for name in found if name.startswith(unknown[0].partition("_")[0])]
        raise ValueError(f"unknown defect {unknown[0]!r}; of that op there are {', '.join(near) or 'none'}")
    wanted = [found[name] for name in names] if names else list(found.values())
    return search.by_op(defect for defect in wanted if not ops or defect.op in ops)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m conformance.selftest", description=__doc__)
    parser.add_argument("--op", action="append", metavar="NAME", help="this op only; repeatable")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--defect", action="append", metavar="NAME", help="this defect only, no controls; repeatable")
    what.add_argument("--controls-only", action="store_true", help="no defects, which take most of the time")
    number = "cases for each right implementation of each op; 0: none (default: %(default)s)"
    parser.add_argument("--controls", type=int, default=CONTROLLED, metavar="N", help=number)
    parser.add_argument("--seed", type=int, default=0, help="of the cases (default: %(default)s, as in CI)")
    parser.add_argument(
        "-n", type=int, default=os.cpu_count() or 1, metavar="N", help="processes (default: %(default)s)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what came of each defect and control here")
    return parser


if __name__ == "__main__":
    sys.exit(main())
