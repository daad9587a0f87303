"""Time that passes only where something hangs, so that no limit depends on how busy the machine is."""

from __future__ import annotations

import os
import types
from pathlib import Path

# Children inherit it; what begins so does not matter to the process that they are forked from.
_FILE = "PYTEST_HANGS"


def begins() -> None:
    """Say, in a judged process, that it does not end from here on."""
    if path := os.environ.get(_FILE):
        with open(path, "ab") as file:
            file.write(b".")


def only_then(monkeypatch, folder: Path) -> None:
    """For the one that waits for judged processes, one that hangs takes longer than any limit, and all else no time."""
    # Not where implementations are: these need no harness.
    from conformance import child

    path = folder / "hangs"
    path.touch()
    monkeypatch.setenv(_FILE, str(path))
    monkeypatch.setattr(child, "time", types.SimpleNamespace(monotonic=lambda: 1e6 * path.stat().st_size))
