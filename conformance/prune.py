"""Find saved cases that show nothing beyond what the others in their folder show."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from conformance import cases, corpus, features, sequences
from conformance import spec as specs
from conformance.cases import Case
from conformance.sequences import CallSequence

Shown = frozenset[tuple[str, ...]]
"""The features and pairs of features of a case, and its note."""


def redundant(folder: Path) -> dict[Path, str]:
    """Return the files in ``folder`` that may go, each with the reason: none with a permanent case, and none that ships
    with the harness, since people chose those.

    Raises CaseError: a file holds no case.
    """
    if folder.resolve() in (corpus.SHIPPED, corpus.LARGE):
        return {}
    known = {sequences.identity(_read(path)): path for path in corpus.files([corpus.SHIPPED, corpus.LARGE])}
    saved, reasons, covered = dict[Path, Case](), dict[Path, str](), set[tuple[str, ...]]()
    for path in sorted(folder.glob("*.json")):
        try:
            one = _read(path)
        except cases.UnknownOp:
            reasons[path] = "its op is gone"
            continue
        if isinstance(one, Case):
            saved[path] = one
        # No feature tells which calls disturb one another: a sequence goes only where it is there twice.
        elif (kept := known.setdefault(sequences.identity(one), path)) != path:
            reasons[path] = f"the same sequence as {kept}"
    for path in sorted(saved, key=lambda path: _rank(saved[path])):
        case, shown = saved[path], shows(saved[path])
        identity = cases.case_id(case)
        if not case.permanent and identity in known:
            reasons[path] = f"the same case as {known[identity]}"
        elif not case.permanent and shown <= covered:
            reasons[path] = "others show all that it shows"
        else:
            known.setdefault(identity, path)
            covered |= shown
    return reasons


def shows(case: Case) -> Shown:
    """Return the features and pairs that a case shows, and its note: which check of which implementation failed."""
    names = sorted(features.names(specs.registry()[case.op].features(case)))
    pairs = ((case.op, *names) for names in itertools.combinations(names, 2))
    return frozenset({*pairs, *((case.op, name) for name in names), (case.op, f"note={case.note}")})


def drop(paths: Iterable[Path]) -> Iterator[Path]:
    """Remove case files and the scripts beside them; yield each removed file."""
    for path in paths:
        for file in (path, path.with_name(f"repro_{path.stem}.py")):
            if file.exists():
                file.unlink()
                yield file


def _rank(case: Case) -> tuple[bool, int, int, str]:
    """Return the rank by which cases are kept: permanent ones, then those that show the most, of these the smallest."""
    return not case.permanent, -len(shows(case)), cases.elements(case), cases.case_id(case)


def _read(path: Path) -> Case | CallSequence:
    # No tensor is made of it.
    return sequences.read(path, max_elements=sys.maxsize)
