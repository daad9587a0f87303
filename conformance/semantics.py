"""Choose the semantics that calls are judged by in this process: those of torch on CUDA, which hold everywhere by
default, or those of torch on the CPU.

With the CPU's, a reference computed on the CPU is taken as it is: neither ``cpu_cuda_differences`` nor
``cuda_refusals`` is read, and a result may be what torch's CPU gives by definition (``Expected.also``).
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator

CUDA, CPU = "cuda", "cpu"
NAMES = (CUDA, CPU)
OPTION = "--semantics"
HELP = "whose semantics count where torch's CPU and CUDA differ: cuda, or with --device cpu also cpu"

_chosen = CUDA


def choose(name: str) -> None:
    """Choose for this process. Processes that are started are told the same."""
    global _chosen
    assert name in NAMES
    _chosen = name


def chosen() -> str:
    """Return the name of the semantics."""
    return _chosen


def of_cpu() -> bool:
    """Tell whether those of the CPU were chosen."""
    return _chosen == CPU


@contextlib.contextmanager
def within(name: str) -> Generator[None]:
    """Choose within the context."""
    before = _chosen
    choose(name)
    try:
        yield
    finally:
        choose(before)
