"""``python -m conformance reproduce|show|list|corpus``: saved cases and sequences."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Sequence
from pathlib import Path

from conformance import cases, corpus, messages, plain, prune, runner, sequences
from conformance import spec as specs
from conformance.cases import Case, CaseError
from conformance.child import CASE_TIMEOUT, IMPORT_LIMIT, Child, HarnessError, seconds
from conformance.implementations import DEFAULT, ImplementationError
from conformance.names import unknown_name
from conformance.sequences import CallSequence

PASSED, FAILED, BAD_INPUT = 0, 1, 2


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status: 0 passed (or shown, or listed), 1 failed, 2 bad input, argparse's own among it."""
    options = _parser().parse_args(arguments)
    try:
        return options.command(options)
    except (CaseError, HarnessError, ImplementationError, runner.DeviceError) as error:
        print(f"error: {error}", file=sys.stderr)
        return BAD_INPUT


def reproduce(options: argparse.Namespace) -> int:
    """Replay a saved case or sequence, in a process of its own, and say what came of it."""
    case = _read(options)
    limits = {"timeout": options.case_timeout, "import_timeout": options.import_timeout}
    with contextlib.closing(Child(options.implementation, options.device, **limits)) as child:
        verdict = child.judge(case) if isinstance(case, Case) else child.play(case)
        if isinstance(case, Case) and plain.fits(case, verdict):
            again = child.plain([case])[0]
            verdict = again if again.failure else verdict
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
    print(f"{verdict.id}: {verdict.status} for {name} on {device}{refused}{share}")
    return FAILED if verdict.failure else PASSED


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
    return sequences.read(options.case, max_elements=options.max_elements, max_bytes=options.max_bytes)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m conformance", description="Saved cases.")
    commands = parser.add_subparsers(required=True, metavar="reproduce|show|list|corpus")
    file = argparse.ArgumentParser(add_help=False)
    file.add_argument("case", type=Path, metavar="CASE.json")
    file.add_argument("--max-elements", type=int, default=cases.MAX_ELEMENTS, help="limit (default: %(default)s)")
    file.add_argument("--max-bytes", type=int, default=cases.MAX_BYTES, help="of the file (default: %(default)s)")
    one = commands.add_parser(
        "reproduce", parents=[file], help="replay a case: exit 1 if it fails, 2 if it cannot be run"
    )
    one.add_argument("--implementation", default=DEFAULT, help="module, module:object or torch (default: %(default)s)")
    one.add_argument("--device", default="auto", help="auto, cpu or cuda (default: %(default)s)")
    limit = "a case that takes longer has failed; 0 is no limit (default: %(default)g)"
    one.add_argument("--case-timeout", type=seconds, default=CASE_TIMEOUT, metavar="SECONDS", help=limit)
    one.add_argument("--import-timeout", type=seconds, metavar="SECONDS", help=IMPORT_LIMIT)
    one.set_defaults(command=reproduce)
    commands.add_parser("show", parents=[file], help="print a case for reading").set_defaults(command=show)
    all_ = commands.add_parser("list", help="print the ops, their dtypes and the saved cases")
    all_.add_argument("--op", help="this op only")
    all_.add_argument("--corpus", type=Path, help="the saved cases of this folder")
    all_.set_defaults(command=list_)
    kept = commands.add_parser("corpus", help="folders of saved cases").add_subparsers(required=True, metavar="prune")
    pruned = kept.add_parser("prune", help="remove cases that show nothing that others in their folder do not show")
    pruned.add_argument("folders", nargs="*", type=Path, metavar="FOLDER", help=f"default: {corpus.FAILURES}")
    pruned.add_argument("--dry-run", action="store_true", help="say which, and remove nothing")
    pruned.set_defaults(command=prune_)
    return parser


if __name__ == "__main__":
    sys.exit(main())
