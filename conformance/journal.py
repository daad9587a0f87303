"""Write to disk which case a process judges, before it does, and what each item found, until its report was taken: so
nothing is lost when the process is killed, or when nobody waits for it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import sys
import time
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import IO

import msgspec

from conformance import case_files, cases
from conformance.cases import Case
from conformance.checks import FAILED, Finding
from conformance.coverage import Seen
from conformance.failure_causes import Failed
from conformance.metrics import Record
from conformance.runner import CRASH, Verdict

FOLDER = "running"
"""The folder of journals inside the folder of saved cases; a journal is there until the report of its item was
taken."""
TAKEN = "journal"
"""The property with which an item's report names its journal."""
GRACE = 10.0
"""Seconds that the processes of an interrupted run have to end, before their journals are read as they are."""


class Header(msgspec.Struct, frozen=True):
    """The first line of a journal."""

    implementation: str
    worker: str
    run: str = ""
    """The name of the run, which its processes share."""


class Found(msgspec.Struct, frozen=True, tag=True):
    """The last line of a finished item's journal: what its report tells."""

    records: list[Record]
    seen: list[Seen]
    failed: list[Failed]


class Left(msgspec.Struct):
    """The remains of one item whose report nobody took: what it found or, where it did not end, its cases with their
    verdicts, and the one that ran."""

    header: Header
    judged: list[tuple[Case, Verdict]] = []
    running: Case | None = None
    found: Found | None = None

    def failing(self) -> list[tuple[Case, Verdict]]:
        """Return the failing cases, the smallest of each check, and the case that ran."""
        found: dict[str, tuple[Case, Verdict]] = {}
        for case, verdict in self.judged:
            if verdict.failure and (
                (known := found.get(verdict.failure.check)) is None or cases.size(case) <= cases.size(known[0])
            ):
                found[verdict.failure.check] = (case, verdict)
        if self.running is not None:
            finding = Finding(CRASH, FAILED, f"worker {self.header.worker} was killed while this case was judged")
            verdict = Verdict(cases.case_id(self.running), self.running.op, FAILED, (finding,))
            return [*found.values(), (self.running, verdict)]
        return [*found.values()]


class Journal:
    """A file for each item, of lines: a header, each case before it is judged and its verdict after, and at the end
    what the item found. Whoever takes the item's report removes the file (``taken``). It is locked while its process
    lives, and written without buffering, so that it outlives SIGKILL, but not a power cut. Where it cannot be written
    nothing is raised: ``trouble`` says so.
    """

    def __init__(self, folder: Path, header: Header) -> None:
        self.folder = folder / FOLDER
        self._header, self._trouble, self._told = header, "", False
        self._path, self._file = self.folder, -1
        self._finished: list[int] = []
        """Files of finished items, which stay locked until they are removed."""

    def begin(self, case: Case) -> None:
        """Note a case before it is judged."""
        self._write(_line(cases.canonical(case)))

    def end(self, verdict: Verdict) -> None:
        """Note its verdict after it was judged."""
        self._write(_line(verdict))

    def finish(self, found: Found) -> str:
        """Note what an item found; the next case is one of another item. Return the name of the journal, for the
        item's report: whoever takes that calls ``taken``."""
        self._write(_line(found))
        if self._file >= 0:
            self._finished.append(self._file)
            self._file = -1
        return self._path.name

    def forget(self) -> None:
        """Remove what is noted of an item that makes no report."""
        if self._file >= 0:
            self._path.unlink(missing_ok=True)
            self._end()

    def close(self) -> None:
        """Unlock the files. Those of items whose reports were not taken stay for whoever ends the run."""
        for file in self._finished:
            os.close(file)
        self._finished = []
        self._end()

    def _end(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def trouble(self) -> str:
        """Return why it cannot be written, once; empty where it can."""
        told, self._told = self._told, bool(self._trouble)
        return "" if told or not self._trouble else f"what is judged cannot be noted in {self.folder}: {self._trouble}"

    def _open(self) -> None:
        """Open the file of the next item."""
        reported = [file for file in self._finished if not os.fstat(file).st_nlink]
        self._finished = [file for file in self._finished if file not in reported]
        for file in reported:
            os.close(file)
        self._path = self.folder / f"{self._header.worker}-{uuid.uuid4().hex}.jsonl"
        # Under its name only once it is locked and has its header: a journal without a lock counts as left behind.
        hidden = self._path.with_suffix(".new")
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._file = os.open(hidden, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644)
            fcntl.flock(self._file, fcntl.LOCK_EX)
            self._append(_line(self._header))
            hidden.rename(self._path)
        except OSError as error:
            self._trouble = self._trouble or error.strerror
            with contextlib.suppress(OSError):
                hidden.unlink()
            self._end()

    def _write(self, data: bytes) -> None:
        if self._file < 0:
            self._open()
        if self._file >= 0:
            try:
                self._append(data)
            except OSError as error:
                self._trouble = self._trouble or error.strerror

    def _append(self, data: bytes) -> None:
        while data:
            # A disk that is almost full takes a part, and refuses the rest.
            data = data[os.write(self._file, data) :]


def taken(folder: Path, name: str) -> None:
    """Remove a journal: the report of its item was taken."""
    (folder / FOLDER / name).unlink(missing_ok=True)


def recover(folder: Path, implementation: str, run: str | None = None) -> list[Left]:
    """Return what processes that judged ``implementation`` left in ``folder``, and remove their journals: those of dead
    processes and, whether dead or not, of the run that the caller ends."""
    found, until = [], time.monotonic() + GRACE
    for path in filter(Path.is_file, sorted((folder / FOLDER).glob("*.jsonl"))):
        # Another run may have removed it, and it may be no journal.
        with contextlib.suppress(OSError, IndexError, msgspec.DecodeError), path.open("rb") as file:
            header = msgspec.json.decode(file.readline(), type=Header)
            own = header.run == run
            if header.implementation == implementation and (_is_left(file, until if own else 0.0) or own):
                found.append(_read(header, file.read().splitlines()))
                path.unlink()
    # Other runs may have their journals in it.
    with contextlib.suppress(OSError):
        (folder / FOLDER).rmdir()
    return found


def _is_left(file: IO[bytes], until: float) -> bool:
    """Tell whether the process that writes a journal has ended, or ends before the time ``until``."""
    while True:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        if time.monotonic() >= until:
            return False
        time.sleep(0.02)


def _read(header: Header, lines: Iterable[bytes]) -> Left:
    """Read a journal. A damaged line (the last one, of a process that was killed while it wrote) is not counted."""
    left = Left(header)
    for line in lines:
        with contextlib.suppress(msgspec.DecodeError):
            return Left(header, found=msgspec.json.decode(line, type=Found))
        with contextlib.suppress(cases.CaseError, msgspec.DecodeError):
            if left.running is None:
                left.running = case_files.decode(line, max_elements=sys.maxsize)
            else:
                left.judged.append((left.running, msgspec.json.decode(line, type=Verdict)))
                left.running = None
    return left


def _line(value: Header | Case | Verdict | Found) -> bytes:
    return msgspec.json.encode(value) + b"\n"
