"""Saved cases, replayed first on every run: JSON files named after their ids, and JSONL files with a case on each line.

The path ``FILE.jsonl#ID`` stands for a line.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from collections.abc import Callable, Generator, Iterable, Iterator
from pathlib import Path

import msgspec
import torch

from conformance import case_files, cases, messages, repro, sequences
from conformance.cases import Case, CaseError
from conformance.implementations import Implementation
from conformance.journal import Left
from conformance.runner import Verdict
from conformance.sequences import CallSequence
from strategies import stored
from strategies.tensors import digest

SHIPPED = Path(__file__).with_suffix("")
"""The saved cases that are part of this package."""
LARGE = SHIPPED / "large"
"""The saved cases that need gigabytes: replayed where ``--max-elements`` allows them, skipped elsewhere."""
FAILURES = Path("failures")
"""The folder where failing cases are saved, and from which they are replayed, unless the user names another."""


def files(folders: Iterable[Path]) -> list[Path]:
    """Return the saved cases in the folders, each folder sorted by name; a folder that does not exist has none."""
    return [path for folder in folders for path in (*_of_lines(folder), *sorted(folder.glob("*.json")))]


def find_data(folders: Iterable[Path]) -> None:
    """Have elements of operands that are in files found in the folders, by this process and those that it starts."""
    for folder in folders:
        if any(folder.glob(f"*{stored.SUFFIX}")):
            stored.look_in(folder)


def _of_lines(folder: Path) -> Iterator[Path]:
    for file in sorted(folder.glob(f"*{cases.LINES}")):
        try:
            yield from (Path(f"{file}#{line.id}") for line in cases.lines(file))
        except CaseError:
            # Reading the file reports the error.
            yield file


def name(path: Path) -> str:
    """Return the name of a saved case: its id, or the name of its file."""
    return path.name.partition(f"{cases.LINES}#")[2] or path.stem


def find(identity: str, folders: Iterable[Path]) -> Path | None:
    """Return the saved case of that id; None where there is none."""
    return next((path for path in files(folders) if name(path) == identity), None)


def add(paths: Iterable[Path], folder: Path) -> list[Path]:
    """Move saved cases into the JSONL file of their op in ``folder``, sorted by id; return where they are.

    Raises CaseError, before anything is written: one cannot be read, or its elements are in files beside it.
    """
    read = {path: sequences.read(path, max_elements=sys.maxsize) for path in paths}
    for path, one in read.items():
        if any(map(case_files.stored_digests, sequences.calls(one))):
            raise CaseError(f"{path}: its elements are in files beside it, which a JSONL file has not")
    added = []
    for path, one in read.items():
        file = folder / f"{sequences.calls(one)[0].op}{cases.LINES}"
        data = cases.encode(one) if isinstance(one, Case) else sequences.encode(one)
        line = cases.Line(sequences.identity(one), msgspec.Raw(msgspec.json.format(data, indent=-1)))
        known = {line.id: line for line in (cases.lines(file) if file.exists() else ())} | {line.id: line}
        folder.mkdir(parents=True, exist_ok=True)
        write(file, b"".join(msgspec.json.encode(known[identity]) + b"\n" for identity in sorted(known)))
        path.unlink()
        added.append(Path(f"{file}#{line.id}"))
    return added


def with_digests(case: Case, note: str = "") -> Case:
    """Return the case as it is saved, with the digests of its inputs."""
    tensors = cases.materialize(case)[2]
    return msgspec.structs.replace(case, digests=tuple(map(digest, tensors)), note=note or case.note)


def save(
    case: Case,
    verdict: Verdict,
    implementation: Implementation,
    device: torch.device,
    folder: Path,
    replayed: Path | None = None,
    script_of: Callable[[Case, Verdict, Implementation, torch.device], str] = repro.script,
    where: str = "",
) -> str:
    """Save a failing case and its script, and return the message about it, which names both files.

    A case that was replayed from a file stays where it is; its script goes to ``folder`` all the same. Where nothing
    can be written the message says so, and holds the case.
    ``script_of``: writes the script in another process, perhaps. ``where``: the name of the device.
    """
    check = verdict.failure.check if verdict.failure else "none"
    path, script, unsaved, missing = replayed, folder / f"repro_{verdict.id}.py", "", ""
    try:
        path = path or keep(case, f"{check} failed for {implementation.name} on {device}", folder)
    except OSError as error:
        unsaved = error.strerror or str(error)
    try:
        text = script_of(case, verdict, implementation, device)
        folder.mkdir(parents=True, exist_ok=True)
        write(script, text.encode())
    except repro.ReproError as error:
        missing = str(error)
    except OSError as error:
        missing = f"since it cannot be written: {error.strerror}"
    about = messages.Kept(path, script, missing, unsaved)
    return messages.failure(case, verdict, implementation.name, device, about, where)


def keep(case: Case, note: str, folder: Path) -> Path:
    """Save a case under its id, and return where."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{cases.case_id(case)}.json"
    write(path, cases.encode(with_digests(case, note)))
    return path


def keep_sequence(sequence: CallSequence, note: str, folder: Path) -> Path:
    """Save a sequence under its id, and return where."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{sequences.sequence_id(sequence)}.json"
    steps = tuple(msgspec.structs.replace(step, case=with_digests(step.case)) for step in sequence.steps)
    write(path, sequences.encode(msgspec.structs.replace(sequence, steps=steps, note=note)))
    return path


def keep_left(left: Left, folder: Path) -> list[str]:
    """Save the failing cases that a killed process left; return where, or why that failed. Those of an item that
    ended are saved."""
    name, told = left.header.implementation, [failure.title for failure in left.found.failed] if left.found else []
    for case, verdict in left.failing():
        if verdict.failure:
            try:
                told.append(f"saved {keep(case, f'{verdict.failure.check} failed for {name}', folder)}")
            except OSError as error:
                told.append(f"a case cannot be saved, {error.strerror}: {cases.in_one_line(case)}")
    return told


def write(path: Path, data: bytes) -> None:
    """Write a file as a whole or not at all, also when several processes write the same one."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_bytes(data)
        temporary.replace(path)
    except OSError:
        # A part of it may be there, on a full disk.
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


@contextlib.contextmanager
def whole_folder(path: Path) -> Generator[Path]:
    """Yield a new folder that becomes ``path`` if nothing is raised, and is removed otherwise.

    Raises CaseError: something is there already."""
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise CaseError(f"{path}: is there already; name a new folder")
    temporary = path.absolute().with_name(f".{path.absolute().name}.{os.getpid()}")
    temporary.mkdir(parents=True)
    try:
        yield temporary
        temporary.replace(path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
