"""Implementations that do not give anything to judge, and two that are wrong in ways of their own.

Each is an object with the op as its attribute, so that ``--implementation defects:NAME`` judges it (this folder being
on the path). Planted defects of ops are in ``conformance.selftest``.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import hanging
import torch


def _constant(value: Any) -> Callable[..., Any]:
    return lambda *args, **kwargs: value


def _exits(*args, **kwargs):
    raise SystemExit(3)


def _hangs(input, other, *, alpha=1, out=None):
    hanging.begins()
    while True:
        pass


nothing_to_judge = SimpleNamespace(
    abs=_constant(None), add=_constant(1.5), eq=_constant((torch.zeros(()), torch.zeros(()))), relu=_exits
)
hangs = SimpleNamespace(add=_hangs)
nothing = SimpleNamespace()
wrong_claims = SimpleNamespace(conformance_claims={"add": "deterministic"})


def _two_defects(input, other, *, alpha=1, out=None):
    """NaN is lost, and the memory of a longer first operand is used for the result."""
    result = torch.add(input, other, alpha=alpha, out=out)
    if result.is_floating_point():
        result.nan_to_num_(nan=0.0, posinf=math.inf, neginf=-math.inf)
    if out is None and isinstance(input, torch.Tensor) and input.numel() > 1 and input.is_contiguous():
        input.fill_(1)
    return result


two_defects = SimpleNamespace(add=_two_defects)


_calls = itertools.count()
now_and_then = SimpleNamespace(
    relu=lambda input, inplace=False: torch.nn.functional.relu(input, inplace).add_(next(_calls) % 29 == 7)
)


def _nan_lost(input, inplace=False):
    result = torch.nn.functional.relu(input, inplace)
    return result.nan_to_num_(nan=0.0, posinf=math.inf) if result.is_floating_point() else result


nan_lost = SimpleNamespace(relu=_nan_lost)
"""Of torch alone, for scripts that have nothing else."""
