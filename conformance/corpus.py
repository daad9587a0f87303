"""Saved cases: JSON files named after their ids, replayed first on every run."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import msgspec
import torch

import strategies.tensors
from conformance import cases, messages, repro
from conformance.cases import Case
from conformance.implementations import Implementation
from conformance.runner import Verdict

SHIPPED = Path(__file__).with_suffix("")
"""The saved cases that are part of this package."""
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
) -> str:
    """Save a failing case and its script, and return the message about it, which names both files.

    A case that was replayed from a file stays where it is; its script goes to ``folder`` all the same.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = replayed
    if path is None:
        path = folder / f"{verdict.id}.json"
        check = verdict.failure.check if verdict.failure else "none"
        note = f"{check} failed for {implementation.name} on {device}"
        write(path, cases.encode(with_digests(case, note)))
    script = folder / f"repro_{verdict.id}.py"
    try:
        write(script, repro.script(case, verdict, implementation, device).encode())
        missing = ""
    except repro.ReproError as error:
        missing = str(error)
    return messages.failure(case, verdict, implementation.name, device, path, script, missing)


def write(path: Path, data: bytes) -> None:
    """Write a file as a whole or not at all, also when several processes write the same one."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_bytes(data)
    temporary.replace(path)
