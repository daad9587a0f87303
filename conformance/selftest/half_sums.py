"""Planted defects of sums of half types: neighbours are added in the half type, as packed instructions add them, and
what comes of that in float32."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from conformance.ops._reductions import reduced
from conformance.selftest import families as of
from conformance.selftest.defect_registry import plant

Right = Callable[..., Any]
LEAST = 64
"""The fewest terms of a row that is read in packets."""


def _totals(width: int, mean: bool) -> Callable[..., Any]:
    """Rows of half types, without ``out`` and ``dtype``."""

    def wrong(right: Right, *args: Any, **kwargs: Any) -> Any:
        result = right(*args, **kwargs)
        if len(args) != 2 or args[1] is None or not of.is_half(args[0]) or not kwargs.keys() <= {"keepdim"}:
            return result
        input, dim = args
        if reduced(dim, input.ndim) != (input.ndim - 1,):
            return result
        columns = input.shape[-1]
        if columns < LEAST or columns % width or 0 in input.shape:
            return result
        total = of.packed(input, width).float().sum(-1, keepdim=kwargs.get("keepdim") is True)
        return result.copy_(total / columns if mean else total)

    return wrong


for _op in of.TOTALS:
    for _width in (2, 8):
        _about = f"rows of half types: {_width} neighbours are added in the half type, before float32"
        plant(_op, f"{_width}_neighbours_in_half", "precision", "values", _totals(_width, _op == "mean"), _about)
