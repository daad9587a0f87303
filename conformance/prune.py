"""Which saved cases may go: those that show nothing that others in their folder do not show."""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from conformance import cases, corpus, features, sequences
from conformance import spec as specs
from conformance.cases import Case
from conformance.sequences import CallSequence

Shown = frozenset[tuple[str, ...]]
"""Features and pairs of features that a case has; and what it was kept for."""


def redundant(folder: Path) -> dict[Path, str]:
    """The files in ``folder`` that may go, each with the reason. None that holds a permanent case, and none of those
    that ship with the harness, which people chose.

    Raises CaseError: a file holds no case.
    """
    if folder.resolve() in (corpus.SHIPPED, corpus.LARGE):
        return {}
    known = {sequences.identity(_read(path)): path for path in corpus.files([corpus.SHIPPED, corpus.LARGE])}
    saved, reasons, covered = dict[Path, Case](), dict[Path, str](), set[tuple[str, ...]]()
    for path in corpus.files([folder]):
        try:
            one = _read(path)
        except cases.UnknownOp:
            reasons[path] = "its op is gone"
            continue
        if isinstance(one, Case):
            saved[path] = one
        # Which calls disturb one another no feature tells: a sequence goes only where it is there twice.
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
    """What a case shows: of a failure, which check of whom failed belongs to it."""
    names = sorted(features.names(specs.registry()[case.op].features(case)))
    pairs = ((case.op, *names) for names in itertools.combinations(names, 2))
    return frozenset({*pairs, *((case.op, name) for name in names), (case.op, f"note={case.note}")})


def drop(paths: Iterable[Path]) -> Iterator[Path]:
    """Remove case files and the scripts beside them; yields what was removed."""
    for path in paths:
        for file in (path, path.with_name(f"repro_{path.stem}.py")):
            if file.exists():
                file.unlink()
                yield file


def _rank(case: Case) -> tuple[bool, int, int, str]:
    """In which order cases are kept: permanent ones, then those that show the most, of these the smallest."""
    elements = sum(math.prod(spec.shape) for spec in cases.operands(case))
    return not case.permanent, -len(shows(case)), elements, cases.case_id(case)


def _read(path: Path) -> Case | CallSequence:
    # No tensor is made of it.
    return sequences.read(path, max_elements=sys.maxsize)
