"""``python -m reports build|compare|merge|rates``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from reports import compare, page, read
from reports.read import Device, InputError

RESULTS = Path(__file__).parent / "results"


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code: 0, 1 for a regression, 2 for input that cannot be used."""
    options = _parser().parse_args(arguments)
    try:
        return options.run(options)
    except InputError as error:
        print(f"python -m reports: {error}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m reports", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="build|merge|compare|rates")
    what = "metrics, benchmarks, self-test or earlier report (JSON), or a folder of them"

    build = commands.add_parser("build", help="one page for each device")
    build.add_argument("input", nargs="*", type=Path, help=f"{what}; default: the folders of reports/results")
    where = "folder of report.html, .md and .json; default: that of the input, if it is one folder, else report/"
    build.add_argument("--out", type=Path, metavar="DIR", help=where)
    build.set_defaults(run=_build)

    merge = commands.add_parser("merge", help="one page for all devices, side by side, shards of one device joined")
    merge.add_argument("input", nargs="+", type=Path, help=what)
    merge.add_argument("--out", type=Path, metavar="DIR", default=Path("report"), help="default: %(default)s")
    merge.set_defaults(run=_merge)
    for command in (build, merge):
        command.add_argument("--baseline", type=Path, metavar="PATH", help="show what changed since these files")
        command.add_argument("--title", help="of the page")

    gate = commands.add_parser("compare", help="is NEW worse than BASE? exit code 1 if so")
    gate.add_argument("base", nargs="?", type=Path, metavar="BASE", help=what)
    gate.add_argument("new", nargs="?", type=Path, metavar="NEW", help=what)
    gate.add_argument("--metrics", nargs=2, type=Path, metavar=("BASE", "NEW"), help="compare these metrics files too")
    gate.add_argument("--markdown", type=Path, metavar="FILE", help="write the summary here, for a pull request")
    gate.add_argument("--junit", type=Path, metavar="FILE", help="write JUnit XML here, for CI")
    share = "how much slower is a regression, beside the noise of the clock (default: %(default)g)"
    gate.add_argument("--tolerance", type=_share, default=compare.RELATIVE, metavar="SHARE", help=share)
    gate.add_argument("--partial", action="store_true", help="NEW leaves rows out on purpose")
    gate.set_defaults(run=_compare)

    rates = commands.add_parser("rates", help="how often compare errs, from repeated runs of one commit")
    rates.add_argument(
        "repeated", nargs="+", type=Path, metavar="RUN", help="runs with the slowed implementation as a peer"
    )
    rates.add_argument(
        "--slowed", default="conformance.benchmarks.slowed", metavar="MODULE", help="default: %(default)s"
    )
    rates.set_defaults(run=_rates)
    return parser


def _share(text: str) -> float:
    value = float(text)
    if not 0 <= value < 10:
        raise argparse.ArgumentTypeError(f"{text}: a share like 0.05")
    return value


def _usable(paths: Sequence[Path]) -> tuple[list[Device], list[str]]:
    devices, problems = read.read(paths)
    for problem in problems:
        print(f"warning: {problem}", file=sys.stderr)
    if not devices:
        raise InputError("nothing that a report can be made of; the lines above say why")
    return devices, problems


def _write(folder: Path, title: str, devices: Sequence[Device], problems: Sequence[str], baseline: Path | None) -> None:
    before = _usable([baseline])[0] if baseline else []
    for path in page.write(folder, title, page.sections(devices, before, problems)):
        print(f"wrote {path}")


def _build(options: argparse.Namespace) -> int:
    inputs = [[path] for path in sorted(RESULTS.iterdir()) if path.is_dir()] if not options.input else [options.input]
    for paths in inputs:
        devices, problems = _usable(paths)
        folder = options.out or (paths[0] if len(paths) == 1 and paths[0].is_dir() else Path("report"))
        for device in devices:
            # One page for each device; of several, each in a folder of its own.
            mine = folder / read.slug(device.name) if len(devices) > 1 or (options.out and len(inputs) > 1) else folder
            implementation = device.about.get("implementation", "")
            title = options.title or f"{implementation or 'Report'} on {device.name}"
            _write(mine, title, [device], problems, options.baseline)
    return 0


def _merge(options: argparse.Namespace) -> int:
    devices, problems = _usable(options.input)
    title = options.title or ", ".join(device.name for device in devices)
    _write(options.out, title, devices, problems, options.baseline)
    return 0


def _compare(options: argparse.Namespace) -> int:
    pairs = [pair for pair in ((options.base, options.new), options.metrics) if pair and all(pair)]
    if not pairs or (options.base and not options.new):
        raise InputError("compare needs BASE and NEW, or --metrics BASE NEW")
    sides = [_one([pair[side] for pair in pairs]) for side in (0, 1)]
    found = compare.compare(*sides, relative=options.tolerance, partial_run=options.partial)
    summary = compare.markdown(found)
    for path, content in ((options.markdown, summary.encode()), (options.junit, compare.junit(found))):
        if path is not None:
            path.write_bytes(content)
            print(f"wrote {path}", file=sys.stderr)
    print(summary, end="")
    return 1 if found.worse else 0


def _one(paths: Sequence[Path]) -> Device:
    """The one device that the files are about. A file that cannot be read is refused: a gate must not guess."""
    devices, problems = read.read(paths)
    if problems:
        raise InputError("; ".join(problems))
    if len(devices) != 1:
        names = ", ".join(device.name for device in devices)
        raise InputError(
            f"{', '.join(map(str, paths))}: of {len(devices)} devices ({names}), and one is compared at a time"
        )
    return devices[0]


def _rates(options: argparse.Namespace) -> int:
    runs = [_one([path]) for path in read.files(options.repeated)]
    print(compare.rates_table(compare.rates(runs, options.slowed)), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
