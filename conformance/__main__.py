"""``python -m conformance run|reproduce|versus|show|export-onnx|trace|list|corpus``: the suite, and saved cases."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import NoReturn

import msgspec

from conformance import (
    cases,
    corpus,
    flashinfer_dataset,
    messages,
    onnx_tests,
    plain_calls,
    prune,
    pytest_plugin,
    runner,
    semantics,
    sequences,
    spec_files,
)
from conformance import spec as specs
from conformance.cases import Case, CaseError
from conformance.implementations import DEFAULT, ImplementationError
from conformance.names import unknown_name
from conformance.profiles import PROFILES
from conformance.sequences import CallSequence
from conformance.versus import compare_all
from conformance.worker import CASE_TIMEOUT, IMPORT_LIMIT, Child, HarnessError, seconds
from strategies.stored import StoredError

PASSED, FAILED, BAD_INPUT = 0, 1, 2
RUN = "run"
_BAD = CaseError, HarnessError, ImplementationError, runner.DeviceError, specs.SpecError, StoredError


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status: 0 passed (or shown, or listed), 1 failed, 2 bad input, argparse's own among it."""
    given = sys.argv[1:] if arguments is None else arguments
    if [*given[:1]] == [RUN]:
        run(given[1:])
    options = _parser().parse_args(given)
    try:
        with contextlib.ExitStack() as only_here:
            only_here.callback(specs.forget, spec_files.bring(getattr(options, "specs", ())))
            only_here.enter_context(semantics.within(getattr(options, "semantics", semantics.CUDA)))
            return options.command(options)
    except _BAD as error:
        print(f"error: {error}", file=sys.stderr)
        return BAD_INPUT


def run(arguments: Sequence[str]) -> NoReturn:
    """Become pytest, which runs the suite with its own and the suite's options, from any folder."""
    # The plugin is named, since the environment may keep pytest from loading any by itself.
    suite = ("-p", pytest_plugin.__name__, "--pyargs", pytest_plugin.SUITE)
    os.execv(sys.executable, [sys.executable, "-m", "pytest", *suite, *arguments])


def reproduce(options: argparse.Namespace) -> int:
    """Replay a saved case or sequence, in a process of its own, and say what came of it."""
    case = _read(options)
    how = {"timeout": options.case_timeout, "import_timeout": options.import_timeout, "semantics": options.semantics}
    with contextlib.closing(Child(options.implementation, options.device, **how)) as child:
        verdict = child.judge(case) if isinstance(case, Case) else child.play(case)
        if isinstance(case, Case) and plain_calls.fits(case, verdict):
            # Of a call that resizes there is none.
            verdict = next((again for again in child.plain([case]) if again.failure), verdict)
        print(child.output(), end="")
    name, device = options.implementation, child.about.device
    print(messages.told(case))
    if verdict.status == runner.NOT_PROVIDED:
        raise ImplementationError(f"{name} does not provide this call of {verdict.op}")
    if verdict.status == runner.OUT_OF_MEMORY:
        raise runner.DeviceError(f"{device}: torch itself runs out of memory for this case")
    if text := messages.findings(verdict):
        print(text)
    share = (
        "" if verdict.share is None else f", {verdict.share:.4g} of the bound used (torch: {verdict.torch_share:.4g})"
    )
    refused = ", a call that torch refuses" if verdict.refused else ""
    print(f"{verdict.id}: {verdict.status} for {name} on {device}{refused}{share}{messages.by_semantics()}")
    return FAILED if verdict.failure else PASSED


def versus(options: argparse.Namespace) -> int:
    """Let several implementations make the same cases, and print who disagrees with whom and with the oracle."""
    report = compare_all(
        options.implementations,
        options.op,
        options.dtype,
        device=options.device,
        examples=options.examples,
        seed=options.seed,
        timeout=options.case_timeout,
        folder=options.folder,
        semantics=options.semantics,
    )
    print("\n".join(report.lines()))
    if options.json is not None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        corpus.write(options.json, msgspec.json.format(msgspec.json.encode(report), indent=2))
        print(f"\nwrote {options.json}")
    return FAILED if report.groups else PASSED


def show(options: argparse.Namespace) -> int:
    """Print a saved case for reading, with the elements of its operands."""
    found = _read(options)
    print(f"{sequences.identity(found)}{': ' if found.note else ''}{found.note}")
    print(messages.told(found))
    for place, case in enumerate(sequences.calls(found)):
        of = "" if isinstance(found, Case) else f" of step {place + 1}"
        for number, tensor in enumerate(cases.materialize(case)[2]):
            print(f"operand {number}{of}: {tensor}")
    return PASSED


def export_onnx(options: argparse.Namespace) -> int:
    """Write a saved case as a test of an ONNX backend."""
    found = _read(options)
    if not isinstance(found, Case):
        raise CaseError(f"{options.case}: a sequence of calls, and a model has one")
    try:
        folder = onnx_tests.write(found, options.out)
    except CaseError as error:
        raise CaseError(f"{options.case}: {error}") from None
    print(f"wrote {folder}")
    return PASSED


def write_trace(options: argparse.Namespace) -> int:
    """Write saved cases as a data set of FlashInfer Trace."""
    paths = dict.fromkeys(path for one in options.cases for path in _all_in(one))
    found = []
    for path in paths:
        one = sequences.read(path, max_elements=options.max_elements)
        if isinstance(one, Case):
            found.append((path, one))
        else:
            print(f"left out {path}: a sequence of calls, and a workload is one call")
    with _writing(options.out):
        lines = flashinfer_dataset.write(found, options.out)
    print("\n".join(lines))
    return PASSED


def read_trace(options: argparse.Namespace) -> int:
    """Write the workloads of a definition of FlashInfer Trace as saved cases."""
    # What derives bounds takes a while to import, and other commands need none of it.
    from conformance import flashinfer_trace

    limits = {"limit": options.limit, "max_elements": options.max_elements}
    try:
        with _writing(options.out):
            lines = flashinfer_trace.save_workloads(options.definition, options.out, **limits)
    except flashinfer_trace.ArgumentError as error:
        raise CaseError(str(error)) from None
    print("\n".join(lines))
    return PASSED


def list_(options: argparse.Namespace) -> int:
    """Print the ops with their dtypes, and the saved cases."""
    known = specs.registry()
    if options.op is not None and options.op not in known:
        raise CaseError(unknown_name("op", options.op, sorted(known)))
    for name in [options.op] if options.op else sorted(known):
        print(f"{name}: {', '.join(known[name].dtypes)}")
    for path in corpus.files([options.corpus] if options.corpus else [corpus.SHIPPED, corpus.FAILURES]):
        try:
            found = sequences.read(path)
        except CaseError as error:
            print(error)
            continue
        if options.op in (None, *(case.op for case in sequences.calls(found))):
            print(f"{path}{': ' if found.note else ''}{found.note}")
    return PASSED


def add_(options: argparse.Namespace) -> int:
    """Move saved cases into the JSONL files of a folder."""
    for path in corpus.add(options.cases, options.folder):
        print(f"added {path}")
    return PASSED


def prune_(options: argparse.Namespace) -> int:
    """Remove the saved cases that show nothing that others do not; or say which they are."""
    reasons: dict[Path, str] = {}
    for folder in options.folders or [corpus.FAILURES]:
        if not folder.is_dir():
            raise CaseError(f"{folder}: there is no such folder")
        reasons |= prune.redundant(folder)
    for path, reason in reasons.items():
        print(f"{path}: {reason}")
    if options.dry_run:
        print(f"{len(reasons)} would be removed")
        return PASSED
    for path in prune.drop(reasons):
        print(f"removed {path}")
    print(f"{len(reasons)} removed")
    return PASSED


def _read(options: argparse.Namespace) -> Case | CallSequence:
    return sequences.read(_found(options.case), max_elements=options.max_elements, max_bytes=options.max_bytes)


@contextlib.contextmanager
def _writing(path: Path) -> Generator[None]:
    try:
        yield
    except OSError as error:
        raise CaseError(f"{path}: cannot be written: {error.strerror}") from None


def _found(path: Path) -> Path:
    return path if path.exists() else corpus.find(str(path), (corpus.SHIPPED, corpus.LARGE, corpus.FAILURES)) or path


def _all_in(path: Path) -> list[Path]:
    """Return the saved cases of a folder or a JSONL file, or the one that is named."""
    if path.is_dir() and not corpus.files([path]):
        raise CaseError(f"{path}: no saved case is there")
    if path.is_dir():
        return corpus.files([path])
    return [Path(f"{path}#{line.id}") for line in cases.lines(path)] if path.suffix == cases.LINES else [_found(path)]


def _positive(text: str) -> int:
    if int(text) < 1:
        raise ValueError(text)
    return int(text)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m conformance", description="The suite, and saved cases.")
    commands = parser.add_subparsers(required=True, metavar="run|reproduce|versus|show|export-onnx|trace|list|corpus")
    # ``main`` takes it, with options that are pytest's; here it is for those who ask for help.
    commands.add_parser(RUN, help="judge: takes the options of pytest, as pytest --pyargs conformance does")
    known = argparse.ArgumentParser(add_help=False)
    also = "a module or file *.py with OpSpecs, known beside those of the package; repeatable"
    known.add_argument("--specs", action="append", default=[], metavar="MODULE", help=also)
    file = argparse.ArgumentParser(add_help=False, parents=[known])
    file.add_argument("case", type=Path, metavar="CASE", help="a file, FILE.jsonl#ID, or the id of a saved case")
    file.add_argument("--max-elements", type=int, default=cases.MAX_ELEMENTS, help="limit (default: %(default)s)")
    file.add_argument("--max-bytes", type=int, default=cases.MAX_BYTES, help="of the file (default: %(default)s)")
    meant = argparse.ArgumentParser(add_help=False)
    meant.add_argument(semantics.OPTION, choices=semantics.NAMES, default=semantics.CUDA, help=semantics.HELP)
    one = commands.add_parser(
        "reproduce", parents=[file, meant], help="replay a case: exit 1 if it fails, 2 if it cannot be run"
    )
    one.add_argument("--implementation", default=DEFAULT, help="module, module:object or torch (default: %(default)s)")
    device = "auto, cpu or cuda (default: %(default)s)"
    one.add_argument("--device", default="auto", help=device)
    limit = "a case whose calls take longer has failed; 0 is no limit (default: %(default)g)"
    one.add_argument("--case-timeout", type=seconds, default=CASE_TIMEOUT, metavar="SECONDS", help=limit)
    one.add_argument("--import-timeout", type=seconds, metavar="SECONDS", help=IMPORT_LIMIT)
    one.set_defaults(command=reproduce)
    several = commands.add_parser(
        "versus", parents=[known, meant], help="the same cases made by several implementations: exit 1 if they disagree"
    )
    several.add_argument("implementations", nargs="+", metavar="IMPLEMENTATION", help="module, module:object or torch")
    several.add_argument("--op", action="append", required=True, metavar="NAME", help="repeatable")
    several.add_argument("--dtype", action="append", default=[], metavar="NAME", help="repeatable (default: all)")
    several.add_argument("--device", default="auto", help=device)
    drawn = "cases of each op and dtype (default: %(default)s)"
    several.add_argument("--examples", type=_positive, default=PROFILES["smoke"].max_examples, metavar="N", help=drawn)
    several.add_argument("--seed", type=int, default=0, metavar="S", help="of what is drawn (default: %(default)s)")
    several.add_argument("--case-timeout", type=seconds, default=CASE_TIMEOUT, metavar="SECONDS", help=limit)
    kept = "where the simplest case of each disagreement goes (default: %(default)s)"
    several.add_argument("--folder", type=Path, default=corpus.FAILURES, help=kept)
    several.add_argument("--json", type=Path, metavar="FILE", help="write the report as JSON, too")
    several.set_defaults(command=versus)
    commands.add_parser("show", parents=[file], help="print a case for reading").set_defaults(command=show)
    exported = commands.add_parser(
        "export-onnx", parents=[file], help="write a case as a test of an ONNX backend (needs ntops[onnxruntime])"
    )
    exported.add_argument("out", type=Path, metavar="OUT", help="the folder in which the test has one of its own")
    exported.set_defaults(command=export_onnx)
    traces = commands.add_parser("trace", help="data sets of FlashInfer Trace, the format of flashinfer-bench")
    ways = traces.add_subparsers(required=True, metavar="write|read")
    limited = argparse.ArgumentParser(add_help=False)
    limited.add_argument("--max-elements", type=int, default=cases.MAX_ELEMENTS, help="limit (default: %(default)s)")
    written = ways.add_parser("write", parents=[known, limited], help="write cases as definitions and workloads")
    saved = "a file, FILE.jsonl, FILE.jsonl#ID, the id of a saved case, or a folder of cases"
    written.add_argument("cases", nargs="+", type=Path, metavar="CASES", help=saved)
    written.add_argument("--out", type=Path, required=True, metavar="DATASET", help="a new folder")
    written.set_defaults(command=write_trace)
    read = ways.add_parser("read", parents=[limited], help="write the workloads of a definition as cases")
    read.add_argument("definition", type=Path, metavar="DEFINITION.json", help="in its data set; its reference is run")
    read.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="a new folder, for --workload")
    read.add_argument("--limit", type=_positive, metavar="N", help="the first N workloads (default: all)")
    read.set_defaults(command=read_trace)
    all_ = commands.add_parser("list", parents=[known], help="print the ops, their dtypes and the saved cases")
    all_.add_argument("--op", help="this op only")
    all_.add_argument("--corpus", type=Path, help="the saved cases of this folder")
    all_.set_defaults(command=list_)
    folders = commands.add_parser("corpus", help="folders of saved cases")
    kept = folders.add_subparsers(required=True, metavar="add|prune")
    pruned = kept.add_parser(
        "prune", parents=[known], help="remove cases that show nothing that others in their folder do not show"
    )
    pruned.add_argument("folders", nargs="*", type=Path, metavar="FOLDER", help=f"default: {corpus.FAILURES}")
    pruned.add_argument("--dry-run", action="store_true", help="say which, and remove nothing")
    pruned.set_defaults(command=prune_)
    into = kept.add_parser("add", parents=[known], help="move cases into the JSONL file of their op, a line each")
    into.add_argument("cases", nargs="+", type=Path, metavar="CASE.json")
    into.add_argument("--folder", type=Path, default=corpus.SHIPPED, help="default: the cases of the package")
    into.set_defaults(command=add_)
    return parser


if __name__ == "__main__":
    sys.exit(main())
