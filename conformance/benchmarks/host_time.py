"""Host time of small calls beside torch: with ``out=``, in place, and of shapes that change from call to call.

``python -m conformance.benchmarks.host_time [IMPLEMENTATION]`` prints microseconds a call. Shapes are 1 to 399 rows in
turn, all of which were called before; "first" is the time of a shape's first call, where kernels are compiled already
for most.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.nn import functional

from conformance import runner
from conformance.implementations import load
from ntops import timing

COLUMNS, SHAPES = 256, 399


def main(name: str = "ntops.torch", shapes: int = SHAPES) -> int:
    """Time an implementation; return 0, the exit status."""
    device = runner.resolve_device("auto")  # before the import, which chooses compiled or interpreted
    ours = load(name).provider
    dtype = torch.bfloat16
    x, y, out = (torch.randn(64, COLUMNS, device=device, dtype=dtype) for _ in range(3))
    weight, factor = (torch.randn(*size, COLUMNS, device=device, dtype=dtype) for size in ((), (COLUMNS,)))
    inputs = [torch.randn(rows, COLUMNS, device=device, dtype=dtype) for rows in range(1, shapes + 1)]
    alone = {
        "add(x, y)": (ours.add, torch.add, (x, y), {}),
        "add(x, y, out=out)": (ours.add, torch.add, (x, y), {"out": out}),
        "mul(x, y, out=x)": (ours.mul, torch.mul, (x, y), {"out": x}),
        "silu(x, inplace=True)": (ours.silu, functional.silu, (x,), {"inplace": True}),
    }
    with torch.no_grad():
        for title, (function, peer, args, kwargs) in alone.items():
            _show(title, timing.host({name: function, "torch": peer}, [(args, kwargs)]), 1, name)
        for title, rest in {
            "add": lambda one: (one, one),
            "silu": lambda one: (one,),
            "softmax": lambda one: (one, -1),
            "rms_norm": lambda one: (one, (COLUMNS,), weight),
            "mm": lambda one: (one, factor),
        }.items():
            peer = getattr(torch if title in ("add", "mm") else functional, title)
            calls = [rest(one) for one in inputs]
            functions = {key: _each(each, calls) for key, each in ((name, getattr(ours, title)), ("torch", peer))}
            start = time.perf_counter()
            functions[name](x)
            first = (time.perf_counter() - start) / len(calls)
            times = timing.host(functions, [((x,), {})], calls=1, groups=9)
            _show(f"{title}, {len(calls)} shapes", times, len(calls), name, f"   first {first * 1e6:.0f}")
    return 0


def _each(function: Callable[..., Any], calls: list[tuple[Any, ...]]) -> Callable[..., None]:
    """Return a function that makes all of these calls."""

    def call(_: torch.Tensor) -> None:
        for args in calls:
            function(*args)

    return call


def _show(title: str, times: Mapping[str, timing.Times], calls: int, name: str, more: str = "") -> None:
    ours, theirs = (times[key].median / calls for key in (name, "torch"))
    print(f"{title:<24} {ours * 1e6:7.1f}   torch {theirs * 1e6:6.1f}   {ours / theirs:5.2f} times{more}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]) if sys.argv[1:] else main())
