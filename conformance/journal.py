"""What a process is judging, on disk before it is judged: so that nothing is lost when the process is killed."""

from __future__ import annotations

import contextlib
import fcntl
import os
import sys
import uuid
from pathlib import Path

import msgspec

from conformance import cases
from conformance.cases import Case
from conformance.checks import FAILED, Finding
from conformance.runner import CRASH, Verdict

FOLDER = "running"
"""Inside of the folder of saved cases; a journal is there as long as its process runs."""


class Header(msgspec.Struct, frozen=True):
    """The first line of a journal."""

    implementation: str
    worker: str


class Left(msgspec.Struct):
    """What a killed process left: the cases of its unfinished item with their verdicts, and the one that it ran."""

    header: Header
    judged: list[tuple[Case, Verdict]] = []
    running: Case | None = None

    def failing(self) -> list[tuple[Case, Verdict]]:
        """What failed, the last of each check, and the case that ran."""
        found = {verdict.failure.check: (case, verdict) for case, verdict in self.judged if verdict.failure}
        if self.running is not None:
            finding = Finding(CRASH, FAILED, f"worker {self.header.worker} was killed while this case was judged")
            verdict = Verdict(cases.case_id(self.running), self.running.op, FAILED, (finding,))
            return [*found.values(), (self.running, verdict)]
        return [*found.values()]


class Journal:
    """A file of lines: a header, then each case before it is judged and its verdict after. Locked while its process
    lives, removed when it is closed. Written without buffering, so that it outlives SIGKILL, but not a power cut.

    Raises OSError: the folder cannot be written.
    """

    def __init__(self, folder: Path, header: Header) -> None:
        folder = folder / FOLDER
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / f"{header.worker}-{uuid.uuid4().hex}.jsonl"
        # Under its name only once it is locked: who finds one without a lock takes it for left behind.
        hidden = self.path.with_suffix(".new")
        self._file = os.open(hidden, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644)
        fcntl.flock(self._file, fcntl.LOCK_EX)
        self._header = _line(header)
        os.write(self._file, self._header)
        hidden.rename(self.path)

    def begin(self, case: Case) -> None:
        """Before a case is judged."""
        os.write(self._file, _line(cases.canonical(case)))

    def end(self, verdict: Verdict) -> None:
        """After it was judged."""
        os.write(self._file, _line(verdict))

    def clear(self) -> None:
        """What failed is saved, and all is counted."""
        os.ftruncate(self._file, len(self._header))

    def close(self) -> None:
        self.path.unlink(missing_ok=True)
        os.close(self._file)


def recover(folder: Path, implementation: str) -> list[Left]:
    """What processes that judged ``implementation`` and no longer live left in ``folder``; their journals go."""
    found = []
    for path in sorted((folder / FOLDER).glob("*.jsonl")):
        with contextlib.suppress(OSError, IndexError, msgspec.DecodeError), path.open("rb") as file:
            # Refused while its process lives.
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            left = _read(file.read().splitlines())
            if left.header.implementation == implementation:
                found.append(left)
                path.unlink()
    # Other runs may have theirs in it.
    with contextlib.suppress(OSError):
        (folder / FOLDER).rmdir()
    return found


def _read(lines: list[bytes]) -> Left:
    """A line that is damaged (the last one, of a process that was killed while it wrote) is not counted."""
    left = Left(msgspec.json.decode(lines[0], type=Header))
    for line in lines[1:]:
        with contextlib.suppress(cases.CaseError, msgspec.DecodeError):
            if left.running is None:
                left.running = cases.decode(line, max_elements=sys.maxsize)
            else:
                left.judged.append((left.running, msgspec.json.decode(line, type=Verdict)))
                left.running = None
    return left


def _line(value: Header | Case | Verdict) -> bytes:
    return msgspec.json.encode(value) + b"\n"
