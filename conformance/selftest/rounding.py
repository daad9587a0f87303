"""Planted defects of rounding: ties not rounded to even, results rounded twice or too late, all within about half an
ulp."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from conformance import float_formats, oracle
from conformance.selftest import families as of
from conformance.selftest.defect_registry import plant

Way = Callable[[np.ndarray], np.ndarray]
"""Rounds to whole numbers."""
Right = Callable[..., Any]

WAYS: dict[str, tuple[Way, str]] = {
    "away": (lambda x: np.copysign(np.floor(np.abs(x) + 0.5), x), "ties are rounded away from zero"),
    "up": (lambda x: np.floor(x + 0.5), "ties are rounded up"),
    "to_zero": (lambda x: np.copysign(np.ceil(np.abs(x) - 0.5), x), "ties are rounded towards zero"),
    "to_odd": (
        lambda x: np.where(np.abs(x % 1) == 0.5, 2 * np.floor(x / 2) + 1, np.rint(x)),
        "ties are rounded to odd",
    ),
}
SINGLE, DOUBLE = (torch.float32,), (torch.float64,)
DTYPES = {"half": (of.HALF, tuple(WAYS)), "single": (SINGLE, ("away", "to_odd")), "double": (DOUBLE, ("away", "up"))}
EXACT: dict[str, Callable[[np.ndarray, np.ndarray], oracle.Double]] = {
    "add": oracle.two_sum,
    "sub": lambda a, b: oracle.two_sum(a, -b),
    "mul": oracle.multiply,
}


def rounded(value: np.ndarray, low: np.ndarray, dtype: torch.dtype, way: Way) -> np.ndarray:
    """The exact number ``value + low`` as one of ``dtype``; ``way`` says what becomes of ties."""
    plain, step = np.isfinite(value) & (np.abs(value) < 1e30), float_formats.ulp(value, dtype)
    if dtype == torch.float64:
        # ``value`` is the even one of two numbers that are as near.
        tied = plain & (np.abs(low) == step / 2) & (np.abs(value) > 1e-290)
        other = way(np.where(low > 0, 0.5, -0.5)) != 0
        return np.where(tied & other, value + 2 * low, value)
    steps = value / step
    tied = plain & (np.abs(steps - np.rint(steps)) == 0.5) & (low == 0)
    return np.where(tied, way(steps) * step, np.nan)


def _operands(input: Any, other: Any) -> tuple[torch.Tensor, torch.Tensor] | None:
    """The operands, where both are tensors of one dtype."""
    given = [x for x in (input, other) if isinstance(x, torch.Tensor)]
    return (given[0], given[1]) if len(given) == 2 and given[0].dtype == given[1].dtype else None


def _ties(op: str, dtypes: tuple[torch.dtype, ...], way: Way) -> Right:
    def wrong(right: Right, input: Any, other: Any, **kwargs: Any) -> Any:
        pair = _operands(input, other)
        exact = None
        if pair is not None and pair[0].dtype in dtypes and kwargs.get("alpha", 1) == 1:
            with np.errstate(all="ignore"):
                a, b = (np.array(x.double().numpy()) for x in pair)
                exact = rounded(*EXACT[op](*np.broadcast_arrays(a, b)), pair[0].dtype, way)
        result = right(input, other, **kwargs)
        if exact is None or result.dtype not in dtypes:
            return result
        found = torch.from_numpy(np.array(exact)).to(result.dtype)
        return result.copy_(torch.where(found.isnan(), result, found))

    return wrong


for _op in EXACT:
    for _name, (_dtypes, _ways) in DTYPES.items():
        for _way in _ways:
            _about = f"{WAYS[_way][1]} in {_name} precision"
            plant(_op, f"{_name}_ties_{_way}", "rounding", "values", _ties(_op, _dtypes, WAYS[_way][0]), _about)


# --- what is stored into out= ------------------------------------------------------------------------------------


def _too_late(right: Right, *args: Any, out: Any = None, **kwargs: Any) -> Any:
    given = [x.float() if isinstance(x, torch.Tensor) else x for x in args]
    half = of.is_half(*args)
    result = right(*args, out=out, **kwargs)
    if not half or out is None or result.dtype not in (torch.float32, torch.float64):
        return result
    return result.copy_(right(*given, **kwargs))


plant("sub", "out_not_rounded", "rounding", "values", _too_late, "half results are stored into a wider out= unrounded")


# --- rounded twice ------------------------------------------------------------------------------------------------


def _twice(op: str) -> Right:
    """float32 results by way of 26 bits."""

    def wrong(right: Right, input: Any, other: Any, **kwargs: Any) -> Any:
        pair = _operands(input, other)
        if pair is None or pair[0].dtype != torch.float32 or kwargs.get("alpha", 1) != 1:
            return right(input, other, **kwargs)
        exact = getattr(torch, op)(*(x.double() for x in pair)).numpy()
        result = right(input, other, **kwargs)
        if result.dtype != torch.float32:
            return result
        with np.errstate(all="ignore"):
            step = float_formats.ulp(exact, torch.float32) / 4
            once = torch.from_numpy(np.array(np.rint(exact / step) * step)).float()
        plain = result.isfinite() & (result.abs() < 1e30) & (result.abs() > 1e-30)
        return result.copy_(torch.where(plain, once, result))

    return wrong


for _op in ("add", "sub", "mul", "div"):
    plant(_op, "rounded_twice", "rounding", "values", _twice(_op), "float32 results are rounded to 26 bits before")
