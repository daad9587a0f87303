"""``python -m reports build|compare|merge|rates``."""

from __future__ import annotations

import argparse
import io
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from reports import compare, page, read
from reports.model import Device
from reports.read import InputError

RESULTS = Path(__file__).parent / "results"


def main(arguments: Sequence[str] | None = None) -> int:
    """Return the exit code: 0, 1 for a regression alone, or 2 with one line on stderr if there is no verdict."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    options = _parser().parse_args(arguments)
    try:
        code = options.run(options)
        if sys.stdout is not None:
            sys.stdout.flush()
        return code
    except InputError as error:
        return _refused(str(error))
    except OSError as error:
        if sys.stdout is not None and not _flushes():
            # The rest of the output has no reader, also when Python exits.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.__stdout__.fileno() if sys.__stdout__ else 1)
        return _refused(f"{error.filename or 'standard output'}: {error.strerror or error}")
    except Exception as error:  # noqa: BLE001 - a mistake in here must not look like a regression either
        place = traceback.extract_tb(error.__traceback__)[-1]
        return _refused(f"{DEFECT}, in {place.filename}:{place.lineno}: {type(error).__name__}: {error}")


DEFECT = "a mistake of this program"


def _refused(message: str) -> int:
    print(f"python -m reports: {_line(message)}", file=sys.stderr)
    return 2


def _line(message: str) -> str:
    """Return the text in one line, whatever names are in it."""
    return "".join(character if character.isprintable() else " " for character in message)


def _flushes() -> bool:
    try:
        sys.stdout.flush()
    except OSError:
        return False
    return True


class _Parser(argparse.ArgumentParser):
    """A parser that reports a wrong option in one line."""

    def error(self, message: str) -> NoReturn:
        sys.exit(_refused(f"{message} (--help tells the options)"))


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="python -m reports", description=__doc__)
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
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 10:
        raise argparse.ArgumentTypeError(f"{text}: not a share like 0.05")
    return value


def _usable(paths: Sequence[Path]) -> tuple[list[Device], list[str]]:
    devices, problems = read.read(paths)
    if not devices:
        raise InputError("; ".join(problems) or "nothing that a report can be made of")
    return devices, problems


def _write(folder: Path, title: str, devices: Sequence[Device], problems: Sequence[str], baseline: Path | None) -> None:
    before, more = _usable([baseline]) if baseline else ([], [])
    for path in page.write(folder, title, page.sections(devices, before, problems)):
        print(f"wrote {path}")
    for problem in (*problems, *more):
        print(f"warning: {_line(problem)}", file=sys.stderr)


def _build(options: argparse.Namespace) -> int:
    inputs = [options.input] if options.input else [[path] for path in sorted(RESULTS.glob("*/"))]
    if not inputs:
        raise InputError(f"{RESULTS}: holds no results; name the files to read")
    for paths in inputs:
        devices, problems = _usable(paths)
        folder = options.out or (paths[0] if len(paths) == 1 and paths[0].is_dir() else Path("report"))
        for device in devices:
            # One page for each device; with several devices, each in a folder of its own.
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
    print(summary, end="", flush=True)
    for path, content in ((options.markdown, summary.encode()), (options.junit, compare.junit(found))):
        if path is not None:
            path.write_bytes(content)
            print(f"wrote {path}", file=sys.stderr)
    return 1 if found.worse else 0


def _one(paths: Sequence[Path]) -> Device:
    """Return the one device of the files. Refuse an unreadable file: a gate must not guess."""
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
