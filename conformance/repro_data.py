"""The data of a script that repeats a case: operands, and the interval in which each element has to lie."""

from __future__ import annotations

import base64
import math
import operator
import zlib
from fractions import Fraction
from typing import Any

import numpy as np
import torch

from conformance import call_contexts, float_formats, guards, mask_statistics
from conformance.checks import Outcome
from conformance.compare import kept
from conformance.runner import Verdict
from conformance.spec import Expected

MAX_PLACES = 4096
"""The most elements of a result that a script judges: all, or the worst and others spread evenly."""


def packed_operand(tensor: torch.Tensor) -> dict[str, Any]:
    """Return an operand with all of its storage."""
    return {
        "dtype": _Code(str(tensor.dtype)),
        "shape": list(tensor.shape),
        "strides": list(tensor.stride()),
        "offset": tensor.storage_offset(),
        "storage": packed_storage(tensor),
    }


def packed_storage(tensor: torch.Tensor) -> str:
    """Return the bytes of a tensor's storage."""
    storage = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())
    return _pack(storage.cpu().numpy())


def packed_result(result: torch.Tensor, expected: Expected, reference: Outcome, verdict: Verdict) -> dict[str, Any]:
    """Return the expectations of one result; for an approximate one the interval in which each element has to lie."""
    value, places = expected.value.reshape(-1), _places(result, verdict)
    judged = np.ones(len(places), bool)
    if expected.judged is not None:
        judged = expected.judged.expand(expected.value.shape).reshape(-1).numpy()[places]
    chosen = value[torch.from_numpy(places)]
    sign = np.zeros(len(places), np.int8)
    if expected.signed_zero:
        sign = np.where((chosen == 0).numpy(), np.where(chosen.signbit().numpy(), -1, 1), 0).astype(np.int8)
    pointers = [operand.untyped_storage().data_ptr() for operand in reference.operands]
    data: dict[str, Any] = {
        "shape": list(result.shape),
        "dtype": _Code(str(result.dtype)),
        "strides": list(result.stride()),
        "same_as": next((i for i, operand in enumerate(reference.operands) if operand is result), None),
        "traits": call_contexts.traits(result),
        "shares": result.untyped_storage().data_ptr() in pointers,
        "places": _pack(places),
        "judged": _pack(judged),
        "zero_sign": _pack(sign),
        "random": None if expected.instead is None else _random(result, expected),
        "also": [_pack(one.reshape(-1).numpy()[places]) for one in expected.also],
    }
    if expected.bound is None:
        return data | {"exact": _pack(guards.bits(chosen).numpy())}
    bound = expected.bound.expand(expected.value.shape).reshape(-1).numpy()[places]
    rest = np.zeros(len(places)) if expected.low is None else expected.low.reshape(-1).numpy()[places]
    form = float_formats.FORMATS[result.dtype]
    ulps = float_formats.ulp(chosen.numpy(), result.dtype)
    ends = [interval(*element, form) for element in zip(chosen.tolist(), rest, bound, ulps, strict=True)]
    low, high = np.array(ends, np.float64).reshape(-1, 2).T
    if expected.rounded:
        numbers = torch.stack([number.reshape(-1) for number in expected.rounded])[:, torch.from_numpy(places)].numpy()
        low, high = numbers.min(0), numbers.max(0)
    if not form.infinite:
        # Overflow gives NaN there, which an interval cannot say; where both may be right the harness alone judges.
        data["judged"] = _pack(judged & ~np.isinf(low) & ~np.isinf(high))
    return data | {"low": _pack(low), "high": _pack(high)}


def _random(result: torch.Tensor, expected: Expected) -> dict[str, Any]:
    instead, seen = expected.instead, kept(result, expected)[1]
    assert instead is not None
    chance, repeats = expected.chance, mask_statistics.enough(expected.chance, instead.numel())
    return {"instead": _pack(instead.numpy()), "seen": _pack(seen.numpy()), "chance": chance, "repeats": repeats}


def interval(value: float, rest: float, bound: float, ulp: float, form: float_formats.Format) -> tuple[float, float]:
    """Return the smallest and the largest float64 that pass where the oracle is ``value + rest``: the rule of
    ``compare.compare``, solved for the output. NaN where NaN alone passes."""
    if math.isnan(value) or (math.isinf(value) and not form.infinite):
        return math.nan, math.nan
    if math.isinf(value):
        return value, value
    if math.isinf(bound):
        return -math.inf, math.inf
    center, reach = Fraction(value) + Fraction(float(rest)), Fraction(float(ulp)) / 2 + Fraction(float(bound))
    last = Fraction(2) ** (math.frexp(form.max)[1] - form.precision)
    overflow = Fraction(form.max) + last / 2
    low = -math.inf if center - Fraction(float(bound)) <= -overflow else _inward(center - reach, math.inf)
    high = math.inf if center + Fraction(float(bound)) >= overflow else _inward(center + reach, -math.inf)
    return low, high


def _inward(end: Fraction, towards: float) -> float:
    """Return the float64 nearest to ``end`` on the side of ``towards``."""
    try:
        found = float(end)
    except OverflowError:
        beyond = math.copysign(math.inf, 1 if end > 0 else -1)
        return beyond if beyond == towards else math.nextafter(beyond, 0)
    outside = Fraction(found) < end if towards > 0 else Fraction(found) > end
    return math.nextafter(found, towards) if outside else found


def _places(result: torch.Tensor, verdict: Verdict) -> np.ndarray:
    """Return the linear indices of the elements that the script judges."""
    if result.numel() <= MAX_PLACES:
        return np.arange(result.numel(), dtype=np.int64)
    places = set(range(0, result.numel(), -(-result.numel() // (MAX_PLACES - 1))))
    worst = verdict.failure.index if verdict.failure else None
    # It is that of one gradient; others have other shapes.
    if worst is not None and len(worst) == result.ndim and all(map(operator.lt, worst, result.shape)):
        places.add(int(np.ravel_multi_index(worst, tuple(result.shape))))
    return np.array(sorted(places), np.int64)


def _pack(array: np.ndarray) -> str:
    return base64.b85encode(zlib.compress(np.ascontiguousarray(array).tobytes(), 9)).decode()


class _Code(str):
    """Text that is written into the script as it is: the name of a dtype."""

    __slots__ = ()
    __repr__ = str.__str__
