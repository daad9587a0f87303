"""Checks of a call under torch's modes and flags: autocast, as torch's own function is cast, and reduced precision."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch

from conformance import cases, context_calls, forms, gradient_calls, mode_calls
from conformance import spec as specs
from conformance.checks.bare import changed
from conformance.checks.call_record import FAILED, PASSED, Finding, Outcome, Trial, describe, difference, malformed
from conformance.checks.contexts import failed, in_context, unclaimed, unlike, variants
from conformance.checks.gradient_kinds import Wish, floating_operands, ordinary, tamed
from conformance.checks.gradients import compared, differentiable, expected
from conformance.checks.invariance import entangled
from conformance.checks.result import failing, inputs_unchanged, judged
from conformance.checks.torchs_gradients import in_float64
from conformance.forms import is_torchs
from conformance.runtime import SWAPPED
from conformance.spec import Call
from strategies.specs import TensorSpec

_LOWER = ("bfloat16", "float16")
"""The dtypes to which autocast casts."""


def modes(trial: Trial) -> Finding:
    """Check that a call is right, and leaves all flags as they are, where torch's flags allow less precision (TF32,
    sums of half types), where they forbid it, and inside a backward pass. TF32 is allowed to those products that torch
    makes with it."""
    turn = cases.seed(trial.case) >> 8 & 1
    for reduced in (False, True) if trial.thorough else (bool(turn),):
        outcome = trial.bare(context={"kind": mode_calls.FLAGS, "reduced": reduced})
        found = failing(trial, outcome)
        if found and reduced:
            # The bound of products of float32 is another one then.
            with mode_calls.reduced_precision(True):
                found = failing(dataclasses.replace(trial), outcome)
        words = f"where torch's flags {'allow' if reduced else 'forbid'} reduced precision"
        if found:
            message = f"{words}: {found.check}: {found.message}"
            return trial.excused(Finding("modes", FAILED, message, index=found.index), trial.case, found.check)
        if names := changed(trial, outcome.state):
            return Finding("modes", FAILED, f"{words}, the call changed {names}")
    if found := failing(trial, trial.bare(context={"kind": gradient_calls.INSIDE})):
        message = f"inside a backward pass: {found.check}: {found.message}"
        return trial.excused(Finding("modes", FAILED, message, index=found.index), trial.case, found.check)
    return Finding("modes", PASSED)


def autocast(trial: Trial) -> Finding:
    """Check that a call inside of ``torch.autocast`` gives what torch's function of that name gives there: its dtype
    and strides, and the values of the call with operands cast as torch casts them. So it is with ``out=`` and in
    place. The gradients are within 1/8 of the largest of torch's there, or what the oracle allows. Without a claim it
    may be refused, or of another dtype, but neither it nor its gradients may be far from both the plain call's and
    torch's; where torch casts nothing, and the dtype is torch's, it is within the bound. Every other time the same
    parameters had other contents in an earlier region."""
    if "autocast" not in trial.implementation.claims(trial.case.op):
        return _unclaimed(trial)
    for what, derived in variants(trial, "autocast", ("right",), one=True):
        turn = cases.seed(trial.case) >> 9 & 1
        for lower in _LOWER if trial.thorough else (_LOWER[turn],):
            if message := _unlike_torchs(derived, lower) or _untrained(derived, lower):
                words = f"inside of torch.autocast(dtype=torch.{lower}){what}"
                return failed(trial, "autocast", derived.case, f"{words}: {message}")
    return Finding("autocast", PASSED)


def _unclaimed(trial: Trial) -> Finding:
    lower = _LOWER[cases.seed(trial.case) >> 9 & 1]
    context = {"kind": mode_calls.AUTOCAST, "dtype": lower}
    theirs, outcome = trial.theirs(context=context), trial.bare(context=context, before=_before(trial))
    if outcome.error is not None or theirs.error is not None:
        return unclaimed("autocast")
    where = f"inside of torch.autocast(dtype=torch.{lower}), which is not claimed"
    right, own = trial.reference.tensors(), theirs.tensors()
    if message := malformed(outcome.value, trial.reference.value):
        return failed(trial, "autocast", trial.case, f"{where}: {message}")
    if not difference(theirs, trial.reference) and outcome.tensors()[0].dtype == own[0].dtype:
        # torch casts nothing there.
        found = judged(trial, outcome)
        if found.status == FAILED:
            finding = Finding("autocast", FAILED, f"{where}: {found.message}", index=found.index)
            return trial.excused(finding, trial.case, found.check)
    for place, (found, *others) in enumerate(zip(outcome.tensors(), own, right, strict=True)):
        if found.shape != others[0].shape:
            return failed(trial, "autocast", trial.case, f"{where}: result {place} has shape {list(found.shape)}")
        # Where casts change torch's own result by much, nobody's is known.
        if _is_far(*others) or not all(_is_far(found, one) for one in others):
            continue
        return failed(trial, "autocast", trial.case, f"{where}: result {place} is neither torch's nor that outside")
    if message := _wrongly_trained(trial, context, outcome.value):
        return failed(trial, "autocast", trial.case, f"{where}: {message}")
    return Finding("autocast", PASSED)


def _wrongly_trained(trial: Trial, context: dict[str, Any], result: Any) -> str:
    """Say what is wrong with the gradients of a call inside of autocast that is not claimed, where it has some outside,
    and torch there: there are none, the backward pass raises, or they are far from both; empty: nothing.

    :param result: That of the call inside.
    """
    if not isinstance(result, torch.Tensor) or not differentiable(trial):
        return ""
    case = ordinary(tamed(trial.case))

    def asked(made: torch.Tensor) -> dict[str, Any]:
        dout = TensorSpec(tuple(made.shape), str(made.dtype).removeprefix("torch."), seed=cases.seed(case) % 256)
        way = Wish("contiguous", case, tuple(floating_operands(case)), dout)
        return {"inputs": way.inputs(), "gradients": way.asked()}

    outside = trial.bare(**asked(trial.reference.tensors()[0]))
    theirs = trial.theirs(context=context, **asked(trial.theirs(context=context).tensors()[0]))
    if not isinstance(outside.value, tuple) or not isinstance(theirs.value, tuple):
        return ""
    inside = trial.bare(context=context, **asked(result))
    if inside.error is not None:
        # A backward pass that is not there is refused so.
        is_refused = inside.reached != "backward" or isinstance(inside.error, NotImplementedError)
        return "" if is_refused else f"the backward pass raised {describe(inside.error)}"
    if not isinstance(inside.value, tuple):
        return "the result does not know its operands"
    for number, own, *others in zip(
        floating_operands(case), *(x.value[1:] for x in (inside, outside, theirs)), strict=True
    ):
        if any(not isinstance(one, torch.Tensor) or not one.numel() for one in others) or _is_far(*others):
            continue
        own = own if isinstance(own, torch.Tensor) else torch.zeros_like(others[0])
        if float(others[0].abs().amax()) > _VANISHING and all(_is_far(own, one) for one in others):
            return f"the gradient of operand {number} is neither torch's nor that outside"
    return ""


def _before(trial: Trial) -> str | None:
    """Return, of every other call that writes nothing, that one in another region of autocast comes before it, of the
    same parameters with other contents: casts are not kept beyond the region."""
    return SWAPPED if cases.seed(trial.case) >> 10 & 1 and not trial.spec.writes(trial.case) else None


def _is_far(found: torch.Tensor, right: torch.Tensor) -> bool:
    """Tell whether elements that are finite differ by more than casts of operands to half types, and sums of them,
    round; whole numbers and flags, at all."""
    found, right = found.cpu(), right.cpu()
    if not right.is_floating_point():
        return not torch.equal(found.to(right.dtype), right)
    found, right = found.double(), right.double()
    sure = right.isfinite()
    if not sure.any():
        return False
    return not bool(((found - right).abs()[sure] <= _ROUNDED * right[sure].abs().max()).all())


def is_cast(trial: Trial) -> bool:
    """Tell whether ``autocast`` applies to a call: to one of a function of torch's own that draws nothing, writes to no
    KV cache (to which torch's function writes nothing), and whose operands are apart, in the plain form and small."""
    kwargs, random = trial.case.kwargs, "distribution" in trial.spec.checks
    cached = trial.spec.writes(trial.case) and "out" not in kwargs and kwargs.get("inplace") is not True
    apart = not cached and not entangled(trial.case)
    return in_context(trial) and is_torchs(trial.case.op) and not random and apart


def _unlike_torchs(trial: Trial, lower: str) -> str:
    """Say how a call inside of autocast differs from torch's; empty: not at all, or torch refuses it there."""
    context = {"kind": mode_calls.AUTOCAST, "dtype": lower}
    theirs = trial.theirs(context=context)
    if theirs.error is not None:
        return ""
    outcome = trial.bare(context=context, before=_before(trial))
    if outcome.error is not None:
        return f"raised {describe(outcome.error)}"
    # torch's CPU and CUDA resize an ``out`` to different strides.
    loose = dataclasses.replace(trial, spec=dataclasses.replace(trial.spec, strides=False))
    if message := unlike(loose, outcome, theirs, "torch's"):
        return message
    if names := changed(trial, outcome.state):
        return f"the call changed {names}"
    unchanged = inputs_unchanged(dataclasses.replace(trial, ours=outcome))
    return unchanged.message if unchanged.status == FAILED else _values(trial, context, theirs, outcome)


def _untrained(trial: Trial, lower: str) -> str:
    """Say how the gradients of a call inside of autocast differ from torch's by more than casts round; empty: not at
    all, torch has none there, or the call has none without autocast."""
    if not differentiable(trial):
        return ""
    case, context = ordinary(tamed(trial.case)), {"kind": mode_calls.AUTOCAST, "dtype": lower}
    result = trial.theirs(context=context).value
    if not isinstance(result, torch.Tensor):
        return ""
    dout = TensorSpec(tuple(result.shape), str(result.dtype).removeprefix("torch."), seed=cases.seed(case) % 256)
    way = Wish("contiguous", case, tuple(floating_operands(case)), dout)
    asked = {"inputs": way.inputs(), "gradients": way.asked(), "context": context}
    theirs = trial.theirs(**asked)
    if not isinstance(theirs.value, tuple) or not isinstance(trial.bare(**asked | {"context": None}).value, tuple):
        return ""
    ours = trial.bare(**asked)
    if ours.error is not None:
        return f"the {ours.reached} pass raised {describe(ours.error)}"
    if not isinstance(ours.value, tuple):
        return "the result does not know its operands"
    for place, number in enumerate(way.wanted, 1):
        own, right = ours.value[place], theirs.value[place]
        if not isinstance(right, torch.Tensor) or not right.numel() or not bool(right.isfinite().all()):
            continue
        if not isinstance(own, torch.Tensor):
            own = torch.zeros_like(right)
        if own.dtype != right.dtype:
            return f"the gradient of operand {number} has dtype {own.dtype} instead of {right.dtype}"
        largest, off = float(right.abs().max()), float((own.double() - right.double()).abs().max())
        is_off = largest > _VANISHING and not off <= _ROUNDED * largest
        if not is_off or not _is_exact(trial, asked, right, place):
            continue
        if not _is_allowed(trial, way, theirs.value[0], own, place - 1):
            return f"the gradient of operand {number} is {off:.3g} off torch's, of {largest:.3g} at most"
    return ""


def _is_exact(trial: Trial, asked: dict[str, Any], gradient: torch.Tensor, place: int) -> bool:
    """Tell whether roundings leave of torch's gradient what they should, as they do not where terms cancel: those of a
    norm of two elements, say. float64 tells, where torch takes the call.

    :param place: Where the gradient is among the results.
    """
    exact = trial.theirs(**asked | {"context": None, "inputs": in_float64(asked["inputs"])})
    if not isinstance(exact.value, tuple):
        return True
    right = exact.value[place]
    off = (gradient.double() - right).abs().max() if isinstance(right, torch.Tensor) else torch.zeros(())
    return bool(off <= _ROUNDED * gradient.abs().max())


def _is_allowed(trial: Trial, way: Wish, result: torch.Tensor, gradient: torch.Tensor, place: int) -> bool:
    """Tell whether the oracle allows a gradient of the call whose operands are cast to the result's dtype. It may do so
    far from torch's: attention with a large scale rounds its result before it is multiplied again.

    :param result: torch's result of that call.
    :param place: Where the operand is among those that are wanted.
    """
    inputs = tuple(
        one.to(result.dtype) if one.is_floating_point() and one.dtype != torch.float64 else one for one in way.inputs()
    )
    answer = expected(trial.spec, way.case, way.wanted, inputs, result)[place]
    operand = inputs[way.wanted[place]]
    return answer is not None and not compared(gradient.detach().cpu().to(operand.dtype), operand, answer)[0]


_ROUNDED, _VANISHING = 2.0**-3, 2.0**-8
"""Of the largest gradient, what operands that are cast to half types, and sums of them, may round away; and the largest
gradient that may be what roundings leave of 0."""


def _values(trial: Trial, context: dict[str, Any], theirs: Outcome, outcome: Outcome) -> str:
    """Say how strides and values differ from those of the call with operands as torch casts them."""
    # How that is shows in torch's results: which of these calls has the same ones.
    kinds = (None, getattr(torch, context["dtype"]), torch.float32)
    tried = []
    for dtype in kinds:
        inputs = trial.inputs if dtype is None else _cast(trial, dtype)
        made = trial.theirs(inputs=inputs)
        if made.error is None and _of_a_kind(made, theirs):
            tried.append((dtype, inputs, made))
    messages = []
    for dtype, inputs, made in [one for one in tried if not difference(theirs, one[-1])] or tried:
        plain = trial.bare(inputs=inputs)
        message = unlike(trial, outcome, plain, "that of the call of cast operands")
        if not message and difference(plain, outcome):
            found = judged(with_operands(trial, inputs, made), outcome)
            message = found.message if found.status == FAILED else ""
        if not message:
            return "" if dtype is None else _mixed(trial, context, dtype, outcome)
        messages.append(message)
    return next(iter(messages), "")


def _mixed(trial: Trial, context: dict[str, Any], dtype: torch.dtype, outcome: Outcome) -> str:
    """Say how the call differs if one operand has the dtype already to which autocast casts all others."""
    cast = _cast(trial, dtype)
    numbers = [n for n, (one, was) in enumerate(zip(cast, trial.inputs, strict=True)) if one.dtype != was.dtype]
    if len(numbers) < 2 or "deterministic" not in trial.implementation.claims(trial.case.op):
        return ""
    number = numbers[cases.seed(trial.case) // 3 % len(numbers)]
    inputs = [*trial.inputs]
    inputs[number] = cast[number]
    if trial.theirs(context=context, inputs=inputs).error is not None:
        return ""
    message = difference(outcome, trial.bare(context=context, inputs=inputs), "operands of one dtype and of two")
    return message and f"operand {number} being {dtype}, {message}"


def with_operands(trial: Trial, inputs: Sequence[torch.Tensor], theirs: Outcome) -> Trial:
    """Return the trial of the same call with other operands. ``theirs``: torch's answer to that."""
    args, kwargs = forms.bind(trial.case, inputs)
    results = tuple(one.detach().cpu() for one in theirs.tensors())
    call = Call(tuple(args), kwargs, results if isinstance(theirs.value, tuple) else results[0])
    # That of the trial may remember the answer for its operands.
    spec = dataclasses.replace(trial.spec, expected=specs.registry()[trial.case.op].expected)
    return dataclasses.replace(trial, spec=spec, inputs=tuple(inputs), reference=theirs, call=call)


def _cast(trial: Trial, dtype: torch.dtype) -> list[torch.Tensor]:
    """Return the operands as autocast casts them."""
    writes = trial.spec.writes(trial.case)

    def one(number: int, tensor: torch.Tensor) -> torch.Tensor:
        eligible = tensor.is_floating_point() and tensor.dtype != torch.float64 and number not in writes
        return tensor.to(dtype) if eligible else tensor

    return context_calls.copied([one(*pair) for pair in enumerate(trial.inputs)])


def _of_a_kind(first: Outcome, second: Outcome) -> bool:
    """Tell whether results have the same dtypes."""

    def dtypes(outcome: Outcome) -> Any:
        return [one.dtype for one in outcome.tensors()]

    return not malformed(first.value, second.value) and dtypes(first) == dtypes(second)
