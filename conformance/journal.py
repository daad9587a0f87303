"""Write to disk which case a process judges, before it does, so that nothing is lost when the process is killed."""

from __future__ import annotations

import contextlib
import fcntl
import os
import sys
import uuid
from pathlib import Path

import msgspec

from conformance import case_files, cases
from conformance.cases import Case
from conformance.checks import FAILED, Finding
from conformance.runner import CRASH, Verdict

FOLDER = "running"
"""The folder of journals inside the folder of saved cases; a journal is there as long as its process runs."""


class Header(msgspec.Struct, frozen=True):
    """The first line of a journal."""

    implementation: str
    worker: str


class Left(msgspec.Struct):
    """The remains of a killed process: the cases of its unfinished item with their verdicts, and the one that it
    ran."""

    header: Header
    judged: list[tuple[Case, Verdict]] = []
    running: Case | None = None

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
    """A file of lines: a header, then each case before it is judged and its verdict after. Locked while its process
    lives, removed when it is closed. Written without buffering, so that it outlives SIGKILL, but not a power cut.
    Where it cannot be written nothing is raised: ``trouble`` says so.
    """

    def __init__(self, folder: Path, header: Header) -> None:
        self.path = folder / FOLDER / f"{header.worker}-{uuid.uuid4().hex}.jsonl"
        self._header, self._file, self._left, self._trouble, self._told = _line(header), -1, False, "", False
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            # Under its name only once it is locked: a journal without a lock counts as left behind.
            hidden = self.path.with_suffix(".new")
            self._file = os.open(hidden, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644)
            fcntl.flock(self._file, fcntl.LOCK_EX)
            self._write(self._header)
            hidden.rename(self.path)
        except OSError as error:
            self._trouble = self._trouble or error.strerror

    def begin(self, case: Case) -> None:
        """Note a case before it is judged."""
        self._write(_line(cases.canonical(case)))

    def end(self, verdict: Verdict) -> None:
        """Note its verdict after it was judged."""
        self._write(_line(verdict))

    def clear(self) -> None:
        """Forget the noted cases: the failing ones are saved, and all are counted."""
        if self._file >= 0:
            os.ftruncate(self._file, len(self._header))

    def leave(self) -> None:
        """Keep the file when it is closed: the run was interrupted, and whoever ends it reports what was found."""
        self._left = True

    def close(self) -> None:
        if not self._left:
            self.path.unlink(missing_ok=True)
        if self._file >= 0:
            os.close(self._file)

    def trouble(self) -> str:
        """Return why it cannot be written, once; empty where it can."""
        told, self._told = self._told, bool(self._trouble)
        return "" if told or not self._trouble else f"what is judged cannot be noted in {self.path}: {self._trouble}"

    def _write(self, data: bytes) -> None:
        if self._file >= 0:
            try:
                while data:
                    # A disk that is almost full takes a part, and refuses the rest.
                    data = data[os.write(self._file, data) :]
            except OSError as error:
                self._trouble = self._trouble or error.strerror


def recover(folder: Path, implementation: str) -> list[Left]:
    """Return what dead processes that judged ``implementation`` left in ``folder``, and remove their journals."""
    found = []
    for path in filter(Path.is_file, sorted((folder / FOLDER).glob("*.jsonl"))):
        with contextlib.suppress(OSError, IndexError, msgspec.DecodeError), path.open("rb") as file:
            # Refused while its process lives.
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            left = _read(file.read().splitlines())
            if left.header.implementation == implementation:
                found.append(left)
                path.unlink()
    # Other runs may have their journals in it.
    with contextlib.suppress(OSError):
        (folder / FOLDER).rmdir()
    return found


def _read(lines: list[bytes]) -> Left:
    """Read a journal. A damaged line (the last one, of a process that was killed while it wrote) is not counted."""
    left = Left(msgspec.json.decode(lines[0], type=Header))
    for line in lines[1:]:
        with contextlib.suppress(cases.CaseError, msgspec.DecodeError):
            if left.running is None:
                left.running = case_files.decode(line, max_elements=sys.maxsize)
            else:
                left.judged.append((left.running, msgspec.json.decode(line, type=Verdict)))
                left.running = None
    return left


def _line(value: Header | Case | Verdict) -> bytes:
    return msgspec.json.encode(value) + b"\n"
