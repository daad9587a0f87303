"""Make the answers that a call has to give: exact, or within a bound, and stored into ``out=`` if there is one."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import torch

from conformance import float_formats, oracle, rounding, semantics
from conformance.spec import Call, Expected

# --- oracles -----------------------------------------------------------------------------------------------------


def output_dtype(call: Call, result: torch.dtype) -> torch.dtype:
    """The dtype of what the call returns: that of ``out``, else ``result``."""
    out = call.kwargs.get("out")
    return result if out is None else out.dtype


def exactly(
    call: Call, result: torch.Tensor, judged: torch.Tensor | None = None, *, signed_zero: bool = False
) -> Expected:
    """The expectation of an op that torch on the CPU computes exactly: its result, stored into an ``out``, if any."""
    dtype = output_dtype(call, result.dtype)
    if not dtype.is_floating_point or result.dtype.is_floating_point or result.dtype == torch.bool:
        return Expected(result.to(dtype), judged=judged, signed_zero=signed_zero)
    # An integer stored as a float is rounded; half types come by way of float32.
    wide = result.long()
    value, low = oracle.two_sum((wide >> 32).double().numpy() * 2.0**32, (wide & 0xFFFFFFFF).double().numpy())
    bound = 0.0 if float_formats.compute_dtype(dtype) == dtype else float_formats.rounding(value, torch.float32)
    rounded = _rounded(value, low, (float_formats.compute_dtype(dtype), dtype), dtype)
    return Expected(_tensor(value), _tensor(bound), judged, _tensor(low), rounded=rounded)


def within(
    call: Call,
    value: np.ndarray,
    bound: np.ndarray | float,
    result: torch.dtype,
    *,
    low: np.ndarray | None = None,
    judged: np.ndarray | None = None,
    signed_zero: bool = False,
    once: bool = False,
) -> Expected:
    """The expectation of a result computed in dtype ``result`` and stored into ``out`` if there is one.

    ``once``: one operation of IEEE 754 gives it, so that it is rounded to the nearest, ties to even."""
    output = output_dtype(call, result)
    # Errors beyond the range, times 0 or beside each other, may be anything.
    bound = np.where(np.isnan(bound) & np.isfinite(value), np.inf, bound)
    rounded = _rounded(value, low, (float_formats.compute_dtype(result), result), output) if once else ()
    if output != result and result != torch.float64:
        # It overflows where it is computed, and where that is in doubt it is not judged.
        beyond = np.abs(value) - float_formats.overflow(result)
        judged = (np.isinf(value) | ~(np.abs(beyond) <= bound)) & (True if judged is None else judged)
        value = np.where(beyond >= 0, np.copysign(np.inf, value), value)
    return Expected(
        _tensor(value),
        _tensor(bound + float_formats.stored(value, result, output)),
        None if judged is None else torch.from_numpy(np.array(judged)),
        None if low is None else _tensor(low),
        signed_zero,
        rounded=rounded,
    )


def also(call: Call, found: Expected, results: Callable[[], Iterable[torch.Tensor]]) -> Expected:
    """The same expectation; with the CPU's semantics any of ``results`` is right, too."""
    if not semantics.of_cpu():
        return found
    made = (result.to(output_dtype(call, result.dtype)).double() for result in results())
    return dataclasses.replace(found, also=(*found.also, *made))


def also_of_scalars(
    call: Call, found: Expected, compute: Callable[[torch.Tensor, torch.Tensor], Iterable[torch.Tensor]]
) -> Expected:
    """The same expectation for a half type: torch's CPU rounds numbers to it, where it has vectors to fill also what it
    multiplies, and keeps a tensor of one element at float32. ``compute``: all that may come of two float32 operands."""
    dtype = torch.result_type(*call.args)
    if dtype not in (torch.float16, torch.bfloat16):
        return found
    exact = [x if isinstance(x, torch.Tensor) else torch.tensor(x, dtype=torch.float64) for x in call.args]

    def results() -> Iterator[torch.Tensor]:
        for operands in ([x.to(dtype).float() for x in exact], [x.float() for x in exact]):
            yield from (result.to(dtype) for result in compute(operands[0], operands[1]))

    return also(call, found, results)


def _rounded(
    value: np.ndarray, low: np.ndarray | None, computed: Sequence[torch.dtype], output: torch.dtype
) -> tuple[torch.Tensor, ...]:
    if output not in rounding.IEEE:
        return ()
    return tuple(_tensor(rounding.through(value, way, low)) for way in rounding.ways(computed, output))


def _tensor(value: np.ndarray | float) -> torch.Tensor:
    return torch.from_numpy(np.array(value, dtype=np.float64))
