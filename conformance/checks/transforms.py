"""A check of calls that are differentiated by the transforms of ``torch.func``, which go past what autograd records."""

from __future__ import annotations

import functools
import math
from typing import Any

import torch

from conformance import cases, gradient_calls
from conformance.cases import Case
from conformance.checks.call_record import PASSED, Finding, Outcome, Trial, describe
from conformance.checks.contexts import failed, in_context, unclaimed
from conformance.checks.dispatcher import (
    ROUGH,
    is_batched,
    number_of,
    of_torch,
    outcome_of_one,
    tensor_arguments,
    unlike_plain,
)
from conformance.checks.gradient_kinds import Wish, floating_operands, ordinary, tamed
from conformance.checks.gradients import compared, differentiable, expected
from conformance.checks.second_derivatives import COARSE
from conformance.checks.torchs_gradients import in_float64
from strategies.specs import TensorSpec
from strategies.tensors import materialize


def transforms(trial: Trial) -> Finding:
    """Check that ``torch.func.vjp`` and ``torch.func.grad``, also under and around ``torch.func.vmap``, give the
    gradients of all floating-point operands, within the bound of the derivative in float64. Where those of torch's
    function are beyond it, since a transform composes them of several steps, others may be ``ROUGH`` times as far. What
    torch's function refuses there may be refused, and anything by NotImplementedError. ``torch.func.jvp`` may be
    refused by any exception; else its derivative is torch's. Without a claim any of them may be refused so, or have
    no gradient, or one of zeros; and a call without gradients has none there."""
    claimed = "transforms" in trial.implementation.claims(trial.case.op)
    seed, floating, arguments = cases.seed(trial.case), floating_operands(trial.case), tensor_arguments(trial)
    numbers = tuple(n for n in (number_of(trial, one) for one in arguments) if n in floating)
    wanted = [place for place, one in enumerate(arguments) if number_of(trial, one) in numbers]
    if not numbers:
        return Finding("transforms", PASSED)
    hows = [how for how in gradient_calls.TRANSFORMS if how == gradient_calls.VJP or is_batched(trial)]
    # Another call draws other numbers.
    hows = hows[:1] if "distribution" in trial.spec.checks else hows
    how = hows[seed // 7 % len(hows)]
    # How exact a backward pass is, is asked elsewhere.
    case = ordinary(tamed(trial.case))
    inputs = tuple(materialize(spec, number) for number, spec in enumerate(cases.operands(case)))
    context = {"kind": gradient_calls.TRANSFORMED, "wanted": wanted, "how": how}
    if not claimed and not _trains(trial, case, numbers):
        return unclaimed("transforms")
    outcome, where = trial.bare(inputs=inputs, context=context), f"by {gradient_calls.TRANSFORMS[how]}"
    if not claimed and (outcome.error is not None or not any(map(_says_something, outcome.value[1:]))):
        return unclaimed("transforms")
    if how == gradient_calls.FORWARD:
        message = _unlike_forward(trial, inputs, context, outcome)
        return (
            failed(trial, "transforms", trial.case, f"{where}: {message}") if message else Finding("transforms", PASSED)
        )
    if outcome.error is not None:
        refused = isinstance(outcome.error, NotImplementedError)
        refused = refused or trial.theirs(inputs=inputs, context=context).error is not None
        message = f"{where}: raised {describe(outcome.error)}"
        return Finding("transforms", PASSED) if refused else failed(trial, "transforms", trial.case, message)
    result, *found = outcome.value
    if len(found) != len(numbers):
        return failed(trial, "transforms", trial.case, f"{where}: returned {len(found)} gradients of {len(numbers)}")
    if "distribution" not in trial.spec.checks:
        plain, first = trial.bare(inputs=inputs), outcome_of_one(trial, outcome, 0)
        theirs = functools.partial(of_torch, trial, 0, inputs=inputs, context=context)
        if message := unlike_plain(trial, inputs, plain, first, "a call and the same under a transform", theirs):
            return failed(trial, "transforms", trial.case, f"{where}: {message}")
    way = Wish("contiguous", case, numbers, TensorSpec(tuple(result.shape), str(result.dtype).removeprefix("torch.")))
    answers = expected(trial.spec, way.case, way.wanted, (*inputs, gradient_calls.factors(result)), result)
    for place, (number, gradient, answer) in enumerate(zip(numbers, found, answers, strict=True), 1):
        message, ours = compared(gradient, inputs[number], answer)
        if not message:
            continue
        answered = trial.theirs(inputs=inputs, context=context)
        own = compared(answered.value[place], inputs[number], answer)[1] if answered.error is None else None
        # A NaN is no share.
        if ours is None or own is None or not ours.share <= ROUGH * own.share:
            message = f"{where}: that of operand {number} is wrong: {message}"
            return failed(trial, "transforms", trial.case, message)
    return Finding("transforms", PASSED)


def _says_something(gradient: Any) -> bool:
    return isinstance(gradient, torch.Tensor) and bool(gradient.count_nonzero())


def _trains(trial: Trial, case: Case, numbers: tuple[int, ...]) -> bool:
    """Tell whether a call has gradients of these operands without a transform."""
    result = trial.reference.value
    dout = TensorSpec(tuple(result.shape), str(result.dtype).removeprefix("torch."))
    way = Wish("contiguous", case, numbers, dout)
    return isinstance(trial.bare(inputs=way.inputs(), gradients=way.asked()).value, tuple)


def _unlike_forward(trial: Trial, inputs: tuple[torch.Tensor, ...], context: dict[str, Any], outcome: Outcome) -> str:
    """Say how a derivative of forward mode is not torch's in float64; empty: it is, or there is none. Who has no
    forward mode says so, whatever the class of the exception; a derivative of 0 in its place is an error."""
    theirs, exact = (trial.theirs(inputs=given, context=context) for given in (inputs, in_float64(inputs)))
    if any(one.error is not None for one in (outcome, theirs, exact)):
        return ""
    (_, ours), (_, own), (_, right) = outcome.value, theirs.value, exact.value
    if not isinstance(ours, torch.Tensor) or (ours.dtype, ours.shape) != (own.dtype, own.shape):
        return "the derivative is not of the dtype and shape of the result"
    if not right.numel() or not right.is_floating_point():
        return ""
    sure = right.isfinite() & own.isfinite()
    largest, off, worst = (
        float(torch.where(sure, one, 0.0).abs().nan_to_num(nan=math.inf).amax())
        for one in (right, own.double() - right, ours.cpu().double() - right)
    )
    return (
        f"the derivative is {worst:.3g} off, of {largest:.3g} at most"
        if worst > max(COARSE, 4 * torch.finfo(ours.dtype).eps) * largest + ROUGH * off
        else ""
    )


def is_transformed(trial: Trial) -> bool:
    """Tell whether ``transforms`` applies to a call: it is small, and ``gradients`` applies."""
    return in_context(trial) and differentiable(trial)
