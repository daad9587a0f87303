"""Implementations that end the process that judges them, or never end. Each is right for small operands."""

from __future__ import annotations

import ctypes
import itertools
import os
import resource
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import hanging
import torch

SMALL = 16
"""Operands of at most so many elements are judged in peace."""


def _deadly(
    end: Callable[[], object], right: Callable[..., torch.Tensor], small: int = SMALL
) -> Callable[..., torch.Tensor]:
    def function(input: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        if isinstance(input, torch.Tensor) and input.numel() > small:
            print("about to go", file=sys.stderr)
            end()
        return right(input, *args, **kwargs)

    return function


def _segfault() -> None:
    ctypes.string_at(0)


def _hang() -> None:
    hanging.begins()
    # A function of PyDLL keeps the interpreter's lock: no signal handler written in Python gets through.
    ctypes.PyDLL(None).pause()


def _kill_worker() -> None:
    """The process of the suite: the parent, or who has asked the parent's parent to fork. A worker shares that one with
    the process that started it."""
    process = os.getppid()
    while b"processes.serve" in Path(f"/proc/{process}/cmdline").read_bytes():
        process = int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
    started = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    workers = [int(one) for one in started if b"sys.stdin" in Path(f"/proc/{one}/cmdline").read_bytes()]
    process = next(iter(workers), process)
    os.kill(process, signal.SIGKILL)
    signal.pause()


def _exhaust() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (2**34, 2**34))
    torch.empty(2**35, dtype=torch.uint8)


_calls = itertools.count()


def _late() -> None:
    # All checks of one case make fewer calls.
    if next(_calls) == 60:
        _segfault()


relu = _deadly(_segfault, torch.nn.functional.relu)
abs = _deadly(lambda: os._exit(3), torch.abs)
neg = _deadly(os.abort, torch.neg)
exp = _deadly(lambda: os.kill(os.getpid(), signal.SIGKILL), torch.exp)
sin = _deadly(_hang, torch.sin)
cos = _deadly(_exhaust, torch.cos)
rotary_position_embedding = _deadly(_segfault, torch.abs, -1)
tanh = _deadly(_late, torch.tanh)
eq = torch.eq
kills_worker = SimpleNamespace(relu=_deadly(_kill_worker, relu), eq=eq)
at_once = SimpleNamespace(
    relu=_deadly(_segfault, torch.nn.functional.relu, -1), neg=_deadly(os.abort, torch.neg, -1), eq=eq
)
