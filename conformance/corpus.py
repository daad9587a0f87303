"""Saved cases: JSON files named after their ids, replayed first on every run."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec
import torch

import strategies.tensors
from conformance import cases, messages, repro, sequences
from conformance.cases import Case
from conformance.implementations import Implementation
from conformance.journal import Left
from conformance.runner import Verdict
from conformance.sequences import CallSequence

SHIPPED = Path(__file__).with_suffix("")
"""The saved cases that are part of this package."""
LARGE = SHIPPED / "large"
"""Those that need gigabytes: replayed where ``--max-elements`` allows them, skipped elsewhere."""
FAILURES = Path("failures")
"""Where failing cases go, and are replayed from, unless the user names a folder."""


def files(folders: Iterable[Path]) -> list[Path]:
    """The case files in the folders, each folder sorted by name; a folder that does not exist has none."""
    return [path for folder in folders for path in sorted(folder.glob("*.json"))]


def with_digests(case: Case, note: str = "") -> Case:
    """The case as it is saved: with the digests of its inputs."""
    tensors = cases.materialize(case)[2]
    return msgspec.structs.replace(case, digests=tuple(map(strategies.tensors.digest, tensors)), note=note or case.note)


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
    """Save what a killed process left, and say where, or why that cannot be."""
    name, told = left.header.implementation, []
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
        # A part of it, on a full disk.
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
