"""Known failures of an implementation: with them a run fails only on new ones.

A failure is known by its op, dtype, check and exception, and by the features of its call that a simple call has not
(``causes``); not by its case: another run may draw another one for the same mistake. A call with more features is taken
to fail for the same reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import msgspec

from conformance import cases
from conformance import spec as specs
from conformance.failure_causes import Failed
from conformance.names import unknown_name
from conformance.plain_calls import PLAIN
from conformance.runner import CRASH, TIMEOUT
from conformance.sequence_judge import SEQUENCE

SCHEMA = 1
MAX_BYTES = 2**24
FURTHER = (CRASH, TIMEOUT, "inputs", SEQUENCE, PLAIN)
"""The names of failures beside checks and tests of an op."""


class KnownError(ValueError):
    """A file that does not hold known failures. The message is for people and names it."""


class Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, order=True):
    """One known failure."""

    op: str
    dtype: str
    check: str
    error: str = ""
    features: tuple[str, ...] = ()

    def covers(self, other: Entry) -> bool:
        """Tell whether a failure that is like the other one is no news."""
        same = (self.op, self.dtype, self.check, self.error) == (other.op, other.dtype, other.check, other.error)
        return same and {*self.features} <= {*other.features}


class File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Known failures of one implementation."""

    schema: int
    implementation: str
    failures: list[Entry]


class _Header(msgspec.Struct):
    schema: int


def entry(failure: Failed) -> Entry:
    """Return the entry by which a failure is known."""
    return Entry(failure.op, failure.dtype, failure.check, failure.error, tuple(sorted(failure.features)))


def marked(failures: Iterable[Failed], known: frozenset[Entry]) -> list[Failed]:
    """Mark each failure that is known. One without op or check (a damaged file, say) never is."""

    def is_known(failure: Failed) -> bool:
        return bool(failure.op and failure.check) and any(one.covers(entry(failure)) for one in known)

    return [msgspec.structs.replace(one, known=is_known(one)) for one in failures]


def read(path: Path, implementation: str, checks: Sequence[str]) -> frozenset[Entry]:
    """Return the known failures in a file. ``checks``: the names that a check may have.

    Raises KnownError: it cannot be read, is no such file, or is of another implementation.
    """
    try:
        data = cases.content(path, max_bytes=MAX_BYTES)
    except cases.Unreadable as error:
        raise KnownError(str(error)) from None
    try:
        if (schema := msgspec.json.decode(data, type=_Header).schema) != SCHEMA:
            raise KnownError(f"{path}: its schema is {schema}, and this harness reads schema {SCHEMA} only")
        found = msgspec.json.decode(data, type=File)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise KnownError(f"{path}: not a file of known failures: {error}") from None
    if found.implementation != implementation:
        raise KnownError(f"{path}: it is of {found.implementation!r}, and what is judged is {implementation!r}")
    ops = specs.registry()
    for number, one in enumerate(found.failures):
        if one.op not in ops:
            problem = unknown_name("op", one.op, sorted(ops))
        elif one.check not in (*checks, *FURTHER) and not one.check.startswith("test_"):
            problem = unknown_name("check", one.check, [*checks, *FURTHER])
        elif one in found.failures[:number]:
            problem = f"{_words(one)} is there twice"
        else:
            continue
        raise KnownError(f"{path}: failure {number}: {problem}")
    return frozenset(found.failures)


def told(
    known: frozenset[Entry], failures: Iterable[Failed], judged: Callable[[Entry], bool]
) -> tuple[list[str], set[Entry]]:
    """Return lines about known failures, and the failures known from now on: those of this run, and those that it did
    not look for. ``judged`` tells whether it looked for one."""
    met = {entry(failure) for failure in failures if failure.op and failure.check}
    again = {one for one in known if any(one.covers(other) for other in met)}
    gone = {*filter(judged, known - again)}
    lines = [f"{len(again)} known failures are no news"] if again else []
    lines += [f"known, and did not fail: {_words(one)}" for one in sorted(gone)]
    # A failure that a known one covers needs no line of its own.
    news = {one for one in met if not any(other.covers(one) for other in again)}
    return lines, news | (known - gone)


def _words(one: Entry) -> str:
    return " ".join(filter(None, (one.op, one.dtype, one.check, one.error, *one.features)))


def encode(implementation: str, failures: Iterable[Entry]) -> bytes:
    """Return the contents of the file that holds them."""
    whole = File(SCHEMA, implementation, sorted(set(failures)))
    return msgspec.json.format(msgspec.json.encode(whole), indent=2) + b"\n"
