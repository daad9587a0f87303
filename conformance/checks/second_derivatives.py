"""Gradients that are differentiated again, their derivatives and theirs, beside torch's in float64."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import msgspec
import torch

from conformance import gradient_calls
from conformance.checks.call_record import Trial
from conformance.checks.gradient_kinds import Wish, ordinary
from conformance.checks.torchs_gradients import in_float64, of_torch

COARSE = 1e-3
"""The error of a derivative that is differentiated again, and of its own derivative, relative to the largest one, from
which on a term is missing: they have no bound."""
COARSE_OF_ROUNDINGS = 8
"""The same in roundings of the operands, where that is more."""
ORDERS = ("first", "second", "third")
STEP = 2.0**-16
"""The step of a slope, relative to the largest operand."""
VANISHING = 2.0**-10
"""A derivative that is too small for half types."""


def missing_terms(trial: Trial, way: Wish, inputs: tuple[torch.Tensor, ...], found: list[Any]) -> str:
    """Say that a derivative which is to be differentiated, its own derivative, or the third one, is not torch's in
    float64; empty: they are, there are none, or torch's own in the same precision are far from that, too."""
    floating = [one.dtype for one in inputs if one.is_floating_point()]
    if any(dtype.itemsize == 1 for dtype in floating):
        return ""
    theirs, exact = (of_torch(trial, way, inputs, dtype, again=True) for dtype in (None, torch.float64))
    if theirs is None or exact is None:
        return ""
    if len(found) < 2 * len(way.wanted) and _has_in_float32(trial, way):
        return "there are no second derivatives, and no exception says so, but those of operands of float32 are there"
    rounding = max(torch.finfo(dtype).eps for dtype in floating)
    coarse = max(COARSE, COARSE_OF_ROUNDINGS * rounding)
    # Where the second may not be differentiated there is no third.
    which = [f"{order} derivative for operand {number}" for order in ORDERS for number in way.wanted]
    for place, (name, ours, own, right) in enumerate(zip(which, found, theirs, exact, strict=False)):
        if not isinstance(ours, torch.Tensor) or not right.numel():
            continue
        # An infinity counts as the largest finite number: what is so close to overflow may overflow.
        limits = torch.finfo(ours.dtype)
        ours = ours.detach().cpu().clamp(limits.min, limits.max)
        sure = right.isfinite() & own.isfinite()
        largest = float(torch.where(sure, right, 0.0).abs().amax())
        off = float(torch.where(sure, own.double() - right, 0.0).abs().amax())
        if not VANISHING < largest < limits.max / 4 or not off < coarse * largest:
            # Near the largest number what is added up on the way may overflow.
            continue
        errors = torch.where(sure, ours.double() - right, 0.0).abs().nan_to_num(nan=math.inf)
        worst = float(errors.amax())
        if worst <= coarse * largest + 8 * off:
            continue
        if worst > coarse * largest + 8 * _moved(trial, way, inputs, place, right, sure, 2 * rounding):
            which_element = way.wanted[place % len(way.wanted)], int(errors.argmax())
            is_third = place >= 2 * len(way.wanted)
            if is_third and not _is_slope(trial, way, inputs, *which_element, right, coarse * largest):
                continue
            return f"the {name} is {worst:.3g} off, of {largest:.3g} at most"
    return ""


def _has_in_float32(trial: Trial, way: Wish) -> bool:
    """Tell whether a call has second derivatives where all floating-point operands are of float32, and not all are."""
    dout = msgspec.structs.replace(way.dout, dtype="float32")
    single = dataclasses.replace(way, case=ordinary(way.case, "float32"), dout=dout)
    if single.case == way.case:
        return False
    outcome = trial.attempt(inputs=single.inputs(), case=single.case, gradients=single.asked())
    # The result, the gradients, and theirs.
    count = len(way.wanted)
    has = outcome.error is None and outcome.reached == "backward" and len(outcome.value) > 2 * count
    return has and all(isinstance(one, torch.Tensor) for one in outcome.value[1 + count : 1 + 2 * count])


def _is_slope(
    trial: Trial,
    way: Wish,
    inputs: tuple[torch.Tensor, ...],
    number: int,
    index: int,
    third: torch.Tensor,
    coarse: float,
) -> bool:
    """Tell whether torch's third derivative for one element of an operand is, in float64, the slope of its second ones:
    those of its layer_norm lack terms, since its second ones take the mean and the deviation for constants.

    :param number: The number of the operand; ``index``: the place of the element.
    :param third: The third derivatives for that operand.
    :param coarse: How far the slope may be from one.
    """
    wide, count = in_float64(inputs), len(way.wanted)
    step, sums = STEP * max(1.0, float(wide[number].abs().amax())), []
    for sign in (1, -1):
        moved = wide[number].clone(memory_format=torch.contiguous_format)
        moved.view(-1)[index] += sign * step
        given = (*wide[:number], moved, *wide[number + 1 :])
        found = of_torch(trial, way, given, torch.float64, again=True)
        if found is None:
            return False
        sums.append(sum(float((one * gradient_calls.factors(one)).sum()) for one in found[count : 2 * count]))
    return abs((sums[0] - sums[1]) / (2 * step) - float(third.reshape(-1)[index])) <= coarse


def _moved(
    trial: Trial,
    way: Wish,
    inputs: tuple[torch.Tensor, ...],
    place: int,
    right: torch.Tensor,
    sure: torch.Tensor,
    share: float,
) -> float:
    """Return how far a derivative in float64 moves with a ``share`` of the operands: torch's own in their precision may
    be exact by luck where others need not be, as the mean of equal numbers is."""
    random = torch.Generator().manual_seed(0)
    stirred = tuple(
        one * (1 + share * (2 * torch.rand(one.shape, generator=random, dtype=torch.float64) - 1))
        if one.is_floating_point()
        else one
        for one in in_float64(inputs)
    )
    found = of_torch(trial, way, stirred, torch.float64, again=True)
    if found is None or len(found) <= place:
        return 0.0
    return float(torch.where(sure, found[place] - right, 0.0).abs().nan_to_num(nan=0.0).amax())
