"""A part of many tests: every test, but of its parameters, and of those marked slow, one in so many."""

from __future__ import annotations

import hashlib
import subprocess
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import pytest


def sampled(items: Sequence[pytest.Item], one_in: int, seed: str) -> list[pytest.Item]:
    """Return the items to run, in their order.

    A test with parameters runs with every ``one_in``-th of them, and with one at least. The tests marked ``slow`` are
    together one such population. Each population begins at a place of its own, which ``seed`` decides, so that
    ``one_in`` seeds come to see about two thirds of all.
    """
    populations: dict[str, list[int]] = defaultdict(list)
    for place, item in enumerate(items):
        slow = item.get_closest_marker("slow") is not None
        populations["slow" if slow else item.nodeid.partition("[")[0]].append(place)
    kept: list[int] = []
    for name, places in populations.items():
        digest = hashlib.sha256(f"{seed} {name}".encode()).digest()
        kept += places[int.from_bytes(digest[:8]) % min(one_in, len(places)) :: one_in]
    return [items[place] for place in sorted(kept)]


def commit(folder: Path) -> str:
    """Return the commit that a folder's checkout is at, or nothing where that is not known."""
    command = ["git", "-C", str(folder), "rev-parse", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""
