"""Limits of the processes that make calls and judge them, so that what goes wrong there harms nothing else.

It imports nothing of the harness: ``runtime`` loads it by its path."""

import contextlib
import faulthandler
import os
import resource
import sys
from pathlib import Path


def prepare():
    """Print a stack when crashing, but dump no core; be the first to be killed when memory runs out."""
    faulthandler.enable(sys.stderr)
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text("1000")


def limit_memory():
    """Let an allocation beyond the machine's memory fail where it is made: some systems grant any, and kill whoever
    uses it. CUDA maps far more than the machine has, so processes on a GPU have no limit."""
    mapped = 0
    with contextlib.suppress(OSError):
        mapped = int(Path("/proc/self/statm").read_text().split()[0])
    most = (mapped + os.sysconf("SC_PHYS_PAGES")) * os.sysconf("SC_PAGE_SIZE")
    before, hard = resource.getrlimit(resource.RLIMIT_AS)
    if before == resource.RLIM_INFINITY or before > most:
        resource.setrlimit(resource.RLIMIT_AS, (most, hard))
