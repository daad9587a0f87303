"""ntops.torch with every call slowed by a known share (``SLOWED_BY``, 0.05), to test the regression gate.

A wait on the device follows each call, as long as it takes for the whole to last that share longer; small calls wait on
the host instead. Used as ``--peer conformance.benchmarks.slowed``.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable
from typing import Any

import torch

import ntops.torch
from conformance.benchmarks import _rows

SHARE = float(os.environ.get("SLOWED_BY", "0.05"))
CALLS = 30


def __getattr__(name: str) -> Callable[..., Any]:
    function = getattr(ntops.torch, name)
    if not callable(function):
        raise AttributeError(name)
    return functools.partial(_call, function, {})


def _call(function: Callable[..., Any], waits: dict[Any, Callable[[], None]], *args: Any, **kwargs: Any) -> Any:
    tensors = [value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor)]
    key = tuple((tensor.shape, tensor.dtype) for tensor in tensors)
    if key not in waits:
        small = sum(tensor.nbytes for tensor in tensors) <= _rows.SMALL
        waits[key] = _on_host(function, args, kwargs) if small else _on_device(function, args, kwargs)
    result = function(*args, **kwargs)
    waits[key]()
    return result


def _on_host(function: Callable[..., Any], args: Any, kwargs: Any) -> Callable[[], None]:
    def once() -> float:
        start = time.perf_counter()
        for _ in range(CALLS):
            function(*args, **kwargs)
        return (time.perf_counter() - start) / CALLS

    extra = SHARE * sorted(once() for _ in range(9))[4]

    def wait() -> None:
        until = time.perf_counter() + extra
        while time.perf_counter() < until:
            pass

    return wait


def _on_device(function: Callable[..., Any], args: Any, kwargs: Any) -> Callable[[], None]:
    def seconds(cycles: int) -> float:
        """Return the seconds of one call, each followed by such a wait: the median of some groups of calls back to
        back."""
        found = []
        for _ in range(7):
            start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda._sleep(8_000_000)  # Longer than the host needs for the calls.
            start.record()
            for _ in range(CALLS):
                function(*args, **kwargs)
                if cycles:
                    torch.cuda._sleep(cycles)
            stop.record()
            stop.synchronize()
            found.append(start.elapsed_time(stop) / 1e3 / CALLS)
        return sorted(found)[3]

    seconds(0)
    plain, some, more = seconds(0), seconds(5_000), seconds(25_000)
    # A wait costs its launch and its cycles: these are the cycles at which a line through two waits has the wanted
    # time.
    cycles = 5_000 + (plain * (1 + SHARE) - some) / (more - some) * 20_000
    return functools.partial(torch.cuda._sleep, max(1, int(cycles)))
