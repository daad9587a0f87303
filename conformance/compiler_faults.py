"""Name the faults of torch's compiler that calls of every library meet, each where torch's own functions show it.

Seen in torch 2.11.0 and 2.13.0, on the CPU and on CUDA. A call that fails for one of them is a deviation of torch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from conformance import context_calls

SIGN = "torch.compile takes -0. for 0. where it makes numbers symbols"
SHARED = "torch.compile fails where operands share memory and one of them is written"


def has_minus_zero(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Tell whether a number among the arguments is -0., whose sign is lost where numbers are symbols."""
    numbers = (value for value in (*args, *kwargs.values()) if type(value) is float)
    return any(value == 0 and math.copysign(1.0, value) < 0 for value in numbers)


def fails_for_copies(
    inputs: Sequence[torch.Tensor], args: Sequence[Any], kwargs: Mapping[str, Any], error: BaseException, dynamic: bool
) -> bool:
    """Tell whether a graph that does nothing but write the arguments that are parts of operands, with ``copy_``, and
    copy all, fails with the same exception.

    :param inputs: The operands, all of them in memory that may be written.
    """
    given = context_calls.operands(args, kwargs)
    parts = [place for place, one in enumerate(given) if not any(one is operand for operand in inputs)]
    if not parts:
        return False

    def copies(*given: torch.Tensor) -> list[torch.Tensor]:
        for place in parts:
            given[place].copy_(torch.ones_like(given[place]))
        return [one.clone() for one in given]

    context = {"kind": context_calls.COMPILED, "dynamic": dynamic, "amid": False}
    try:
        context_calls.within(context, copies)(*given)
    except Exception as again:  # noqa: BLE001  (whatever torch's compiler raises)
        return type(again).__name__ == type(error).__name__
    return False
