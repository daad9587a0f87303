"""Saved cases: JSON files named after their ids, replayed first on every run."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec
import torch

import strategies.tensors
from conformance import cases, messages, repro
from conformance.cases import Case
from conformance.implementations import Implementation
from conformance.journal import Left
from conformance.runner import Verdict

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
) -> str:
    """Save a failing case and its script, and return the message about it, which names both files.

    A case that was replayed from a file stays where it is; its script goes to ``folder`` all the same.
    ``script_of``: writes the script in another process, perhaps.
    """
    check = verdict.failure.check if verdict.failure else "none"
    path = replayed or keep(case, f"{check} failed for {implementation.name} on {device}", folder)
    script = folder / f"repro_{verdict.id}.py"
    folder.mkdir(parents=True, exist_ok=True)
    try:
        write(script, script_of(case, verdict, implementation, device).encode())
        missing = ""
    except repro.ReproError as error:
        missing = str(error)
    return messages.failure(case, verdict, implementation.name, device, path, script, missing)


def keep(case: Case, note: str, folder: Path) -> Path:
    """Save a case under its id, and return where."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{cases.case_id(case)}.json"
    write(path, cases.encode(with_digests(case, note)))
    return path


def keep_left(left: Left, folder: Path) -> list[Path]:
    """Save what a killed process left, and return where."""
    name = left.header.implementation
    return [
        keep(case, f"{verdict.failure.check} failed for {name}", folder)
        for case, verdict in left.failing()
        if verdict.failure
    ]


def write(path: Path, data: bytes) -> None:
    """Write a file as a whole or not at all, also when several processes write the same one."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_bytes(data)
    temporary.replace(path)
