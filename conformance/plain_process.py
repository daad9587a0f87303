"""Run a script in a process of which nothing tells that a judge waits for it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

TELLING = ("PYTEST", "HYPOTHESIS")
"""Prefixes of the variables of the environment that tell that a test runs."""


OF_TORCHRUN = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
"""The ranks and sizes that torchrun sets for the first of two processes. The result of a call does not depend on the
other process."""


def environment(inherited: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without the variables that tell that pytest runs."""
    return {name: value for name, value in inherited.items() if not name.startswith(TELLING)}


def run(script: Path, output: Any, device: torch.device, seconds: float | None) -> str:
    """Run a script; return how it ended, where that is not well."""
    # Without the paths that an interpreter finds by itself.
    paths = [os.path.abspath(path) for path in (*sys.path, "")]
    own = [path for path in dict.fromkeys(paths) if not path.startswith((sys.prefix, sys.base_prefix))]
    variables = environment(os.environ) | OF_TORCHRUN | {"PYTHONPATH": os.pathsep.join(own)}
    if device.type == "cpu":
        variables.setdefault("TRITON_INTERPRET", "1")
    told = script.with_name("status")
    shell = subprocess.Popen(
        ["/bin/sh", "-c", _APART, sys.executable, str(script), str(told), _place_of_others()],
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        env=variables,
        # The folder of the run may tell that a harness is at hand.
        cwd=script.parent,
        start_new_session=True,
    )
    try:
        shell.wait()
        end = None if seconds is None else time.monotonic() + seconds
        while not told.exists():
            if end is not None and time.monotonic() > end:
                return f"did not end in {seconds:g} s"
            if not _lives(shell.pid) and not told.exists():
                return "was ended together with the shell that ran it"
            time.sleep(0.02)
        status = told.read_text().strip()
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(shell.pid, signal.SIGKILL)
    return f"ended with exit status {status}" if status != "0" else ""


def _lives(group: int) -> bool:
    """Tell whether a process group still has a process."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, 0)
        return True
    return False


_APART = """[ -z "$3" ] || echo "$3" > /proc/self/oom_score_adj
("$0" "$1"; echo $? > "$2.part"; mv "$2.part" "$2") &
"""
"""The script of a shell that ends at once, so that no ancestor of the script's process tells of a judge."""


def _place_of_others() -> str:
    """Return the place that other processes have in the order of being killed when memory runs out: the judge comes
    first."""
    parents = Path(f"/proc/{os.getppid()}/oom_score_adj")
    return parents.read_text().strip() if parents.exists() else ""
