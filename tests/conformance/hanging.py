"""Time that passes only while something hangs, so that no limit depends on how busy the machine is."""

from __future__ import annotations

import os
import types
from pathlib import Path

# Judged processes inherit it: no name that begins as those of "plain_process.TELLING" do, which are kept from them.
_FILE = "NTOPS_TESTS_HANGING"


def begins() -> None:
    """Say, in a judged process, that it does not end from here on."""
    if path := os.environ.get(_FILE):
        Path(path).touch()


def only_then(monkeypatch, folder: Path) -> None:
    """For the one that waits for judged processes, time passes while one of them hangs, and else never."""
    # Not where implementations are: these need no harness.
    from conformance import worker

    path, now, kill = folder / "hangs", 0.0, worker.Child._kill

    def monotonic() -> float:
        nonlocal now
        now += 1000.0 * path.exists()
        return now

    def killed(self) -> tuple[int, int]:
        status = kill(self)
        path.unlink(missing_ok=True)
        return status

    monkeypatch.setenv(_FILE, str(path))
    monkeypatch.setattr(worker, "time", types.SimpleNamespace(monotonic=monotonic))
    monkeypatch.setattr(worker.Child, "_kill", killed)
