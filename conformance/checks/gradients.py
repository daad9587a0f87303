"""A check of gradients: what autograd gets from a call that is differentiated, against its derivative in float64."""

from __future__ import annotations

import dataclasses
import itertools
import operator
import sys
from collections.abc import Sequence
from typing import Any

import msgspec
import torch

from conformance import call_contexts, cases, forms, gradient_calls
from conformance.calls import Outcome
from conformance.case_changes import is_tied
from conformance.cases import Case, Same
from conformance.checks.call_record import FAILED, PASSED, UNCLAIMED, Finding, Trial, describe, difference, different
from conformance.checks.gradient_kinds import Wish, floating_operands, wish
from conformance.checks.gradient_sizes import most_elements
from conformance.checks.gradient_words import told
from conformance.checks.result import inputs_unchanged, judged
from conformance.checks.second_derivatives import VANISHING, missing_terms
from conformance.checks.torchs_gradients import is_freed_by_torch, of_torch
from conformance.compare import Comparison, compare
from conformance.spec import Call, Expected, OpSpec, registry
from strategies.specs import TensorSpec

CLAIM = "gradients"
OTHER_RESULT, CHANGED = "the result is wrong where gradients are wanted", "the backward pass changed"
NOT_FREED = "autograd gives them once more, though the graph is not retained"
ONE_GRAPH, CHAIN = "from one graph", "of a call of the result, to which another tensor is added"
TOGETHER = "of two results at once, the second for another gradient"
AROUND = (OTHER_RESULT, CHANGED, NOT_FREED, ONE_GRAPH, CHAIN, TOGETHER)
"""The beginnings of messages that are not of the gradients themselves."""


def gradients(trial: Trial) -> Finding:
    """Check that the gradients of the operands are within the bound of the derivative in float64, for any layout of the
    result's gradient; two times from one graph they have the same bits (where the implementation claims to be
    deterministic), and no operand changes. A tensor that was changed before they were asked for is noticed, or does not
    matter, and so do calls in between. Second derivatives are torch's, or refused."""
    # One way, which follows from the case alone, so that a replay takes the same.
    return _judged(trial, wish(trial.case, trial.reference.value))


def differentiable(trial: Trial) -> bool:
    """Tell whether a call has gradients, and few enough of them to be judged."""
    case, result = trial.case, trial.reference.value
    return has_gradients(case, trial.call, result) and result.numel() + cases.elements(case) <= most_elements(trial)


def has_gradients(case: Case, call: Call, result: Any) -> bool:
    """Tell whether a call has gradients: it only reads its operands, of which one is floating, and so is its result."""
    spec = registry()[case.op]
    if spec.gradients is None or case.form or spec.writes(case) or "out" in case.kwargs:
        return False
    if not isinstance(result, torch.Tensor) or not result.dtype.is_floating_point or spec.left_out(call):
        return False
    arguments = (*case.args, *case.kwargs.values())
    if any(isinstance(one, cases.View) or (isinstance(one, Same) and one.is_view) for one in arguments):
        return False
    return bool(floating_operands(case))


def expected(
    spec: OpSpec, case: Case, wanted: Sequence[int], inputs: tuple[torch.Tensor, ...], result: Any
) -> list[Expected | None]:
    """Return the oracle's answer for each wanted operand; None: it says nothing of that one.

    :param inputs: The operands, and after them the gradient of the result.
    :param result: The result of the call itself.
    """
    assert spec.gradients is not None
    # The oracle knows the plain form.
    args, kwargs = cases.bind(case, inputs)
    found = spec.gradients(Call(tuple(args), kwargs, result), inputs[-1])
    return [_summed(found, case, number, inputs[number].dtype) for number in wanted]


def _summed(found: Any, case: Case, operand: int, dtype: torch.dtype) -> Expected | None:
    """Sum the answers for all arguments that are this operand, turned or not; each term may be rounded as it is
    stored."""
    numbers, terms = itertools.count(), []
    for key, argument in (*enumerate(case.args), *sorted(case.kwargs.items())):
        is_it = next(numbers) == operand if isinstance(argument, TensorSpec) else argument in _ways(operand)
        if is_it and key not in found:
            return None
        if is_it:
            terms.append(found[key].mT if isinstance(argument, Same) and argument.turned else found[key])
    if not terms:
        return None
    if len(terms) > 1:
        # Each is cast to a narrower dtype of the operand before they are added up.
        terms = [term.cast(dtype) if dtype.itemsize < term.dtype.itemsize else term for term in terms]
    total = terms[0]
    for term in terms[1:]:
        total = total.stored() + term.stored()
    return total.expected(dtype)


def _ways(operand: int) -> tuple[Same, Same]:
    return Same(operand), Same(operand, turned=True)


def _judged(trial: Trial, way: Wish) -> Finding:
    inputs = way.inputs()
    # Guards keep what they guard, so that nothing else comes to lie where it lay.
    make = trial.bare if way.kind == "shared" else trial.attempt
    outcome = make(inputs=inputs, case=way.case, gradients=way.asked())
    if way.case.form == forms.TENSORS and outcome.reached == "backward" and isinstance(outcome.error, RuntimeError):
        # Autograd has saved a tensor that stands for a number, and noticed that it was changed.
        outcome = make(inputs=inputs, case=way.case, gradients=way.asked() | {"reused": False})
    if (missing := _missing(outcome)) is not None:
        if way.case.form and _is_form_refused(trial, way, inputs):
            return Finding("gradients", PASSED)
        if outcome.error is None and (plainer := _has_of_plainer(trial, way, inputs)):
            message = f"there are none: {missing}, but that {plainer} does; {told(way)}"
            return Finding("gradients", FAILED, message)
        status = FAILED if CLAIM in trial.implementation.claims(trial.case.op) else UNCLAIMED
        return Finding("gradients", status, f"there are none: {missing}")
    message, worst = _wrong(trial, way, inputs, outcome)
    share = min(worst.share, sys.float_info.max) if worst is not None else None
    if not message:
        return Finding("gradients", PASSED, share=share)
    shown = None if way.case == msgspec.structs.replace(trial.case, digests=()) else way.case
    index = worst.index if worst is not None and not worst.passed else None
    found = Finding("gradients", FAILED, f"{told(way)}: {message}", share, index=index, case=shown)
    # Where torch takes another kernel for what is differentiated, its values may be off.
    asked = way.case if is_tied(way.case) else trial.case
    return trial.excused(found, asked, "values" if message.startswith(OTHER_RESULT) else "gradients")


def _is_form_refused(trial: Trial, way: Wish, inputs: tuple[torch.Tensor, ...]) -> bool:
    """Tell whether a form that may be refused is so by torch, or by the implementation without gradients, too."""
    if way.case.form in forms.MAY_BE_REFUSED and _refused(trial, way, inputs):
        return True
    error = trial.attempt(inputs=inputs[:-1], case=way.case).error
    if way.case.form in forms.MAY_BE_REFUSED:
        return isinstance(error, TypeError)
    return way.case.form == call_contexts.NEGATED and isinstance(error, NotImplementedError)


def _missing(outcome: Outcome) -> str | None:
    """Say why there are no gradients, where a call has none at all; else None."""
    if isinstance(outcome.error, NotImplementedError):
        return f"raised {describe(outcome.error)}"
    if outcome.error is None and outcome.reached == "forward":
        return "the result does not know its operands"
    return None


def _has_of_plainer(trial: Trial, way: Wish, inputs: tuple[torch.Tensor, ...]) -> str:
    """Say which plainer call has the gradients that this one lacks: of contiguous copies, not in place, or in the plain
    form; empty: none. Nobody may lose them without a word for the layout of an operand, or where it is written, or for
    the form of the call; an implementation that has none at all is not asked for them."""
    words = ["of contiguous copies"] * any(not one.is_contiguous() for one in inputs[:-1])
    words += ["out of place"] * (way.kind == "in place")
    words += ["in the plain form"] * bool(way.case.form)
    if not words:
        return ""
    copies = tuple(one.clone(memory_format=torch.contiguous_format) for one in inputs)
    # What is overwritten may be noticed, by an exception.
    kind = "contiguous" if way.kind == "in place" or way.overwritten is not None else way.kind
    plain = msgspec.structs.replace(way.case, form="")
    found = trial.attempt(inputs=copies, case=plain, gradients=way.asked() | {"kind": kind, "overwritten": None})
    return ", ".join(words) if found.error is None and found.reached == "backward" else ""


def _wrong(
    trial: Trial, way: Wish, inputs: tuple[torch.Tensor, ...], outcome: Outcome
) -> tuple[str, Comparison | None]:
    """Say what is wrong, and return the worst comparison."""
    if outcome.trespass:
        return outcome.trespass, None
    if outcome.error is not None:
        is_refused = outcome.reached == "forward" and isinstance(outcome.error, TypeError)
        if is_refused and _is_form_refused(trial, way, inputs):
            return "", None
        if way.overwritten is not None and outcome.reached == "backward" and isinstance(outcome.error, RuntimeError):
            return "", None
        if outcome.reached == "forward" and _refused(trial, way, inputs):
            return "", None
        return f"the {outcome.reached} pass raised {describe(outcome.error)}", None
    if outcome.state:
        return f"{CHANGED} {', '.join(outcome.state)}", None
    if way.kind != "overwritten":
        finding = inputs_unchanged(dataclasses.replace(trial, case=way.case, inputs=inputs, ours=outcome))
        if finding.status == FAILED:
            return finding.message.replace(
                f"operand {len(inputs) - 1} ", f"that of the result, operand {len(inputs) - 1} ", 1
            ), None
    result, *found = outcome.value
    count = len(way.wanted)
    plain = (msgspec.structs.replace(case, form="", digests=()) for case in (way.case, trial.case))
    if operator.eq(*plain) and (told := _other(trial, result)):
        return f"{OTHER_RESULT}: {told}", None
    if way.kind == "second order":
        return missing_terms(trial, way, inputs, found), None
    answers = expected(trial.spec, way.case, way.wanted, inputs, result)
    worst: Comparison | None = None
    for turn in range(1 + way.twice):
        for number, gradient, answer in zip(way.wanted, found[turn * count :], answers, strict=False):
            message, comparison = compared(gradient, inputs[number], answer)
            if comparison is not None and (worst is None or not comparison.share <= worst.share):
                worst = comparison
            if message:
                return f"{'the second time, ' if turn else ''}that of operand {number} is wrong: {message}", worst
    if way.kind == "both":
        off = _unscaled(way, found[:count], found[count:], 1 + gradient_calls.STEEPER)
        if off is not None:
            return f"{TOGETHER}, that of operand {off} is not the sum of both", worst
    if way.kind == "chained" and (message := _broken(way, found[count:])):
        return f"{CHAIN}, {message}", worst
    if way.kind == "shared" and (where := _changed(found[count], inputs[-1])):
        return f"the result's gradient, which is that of another tensor, too, was changed{where}", worst
    for number, gradient in zip(way.wanted, found, strict=False):
        if message := _overlapping(trial, way, inputs, number, gradient):
            return f"that of operand {number} {message}", worst
    if way.twice:
        off = _unscaled(way, found[:count], found[2 * count : 3 * count], gradient_calls.STEEPER)
        if off is not None:
            times = f"{gradient_calls.STEEPER:g} times the result's gradient is not so many times as large"
            return f"{ONE_GRAPH}, that of operand {off} for {times}", worst
    if (
        way.twice
        and not bool(found[-1])
        and _needs_operands(way, found[:count])
        and is_freed_by_torch(trial, way, inputs)
    ):
        return f"{NOT_FREED}: what is saved is not its own", worst
    if way.twice and "deterministic" in trial.implementation.claims(trial.case.op):
        for number, first, second in zip(way.wanted, found[:count], found[count : 2 * count], strict=True):
            if (
                isinstance(first, torch.Tensor)
                and isinstance(second, torch.Tensor)
                and (where := different(first, second))
            ):
                return f"those of operand {number} differ {where}", worst
    return "", worst


def _needs_operands(way: Wish, found: list[Any]) -> bool:
    """Tell whether gradients are those of a call of tensors alone, and not empty or zero: a number need not be saved by
    autograd, and of what vanishes nothing is needed."""
    arguments = (*way.case.args, *way.case.kwargs.values())
    telling = (isinstance(one, torch.Tensor) and one.count_nonzero() > 0 for one in found)
    return all(isinstance(one, TensorSpec | Same) for one in arguments) and all(telling)


def _other(trial: Trial, result: torch.Tensor) -> str:
    """Say how a result is wrong that autograd knows of, where that of the case is right; empty: it is not."""
    if "distribution" in trial.spec.checks or trial.ours.error is not None:
        return ""
    recorded = dataclasses.replace(trial.ours, value=result)
    if not difference(trial.ours, recorded) or judged(trial, trial.ours).status == FAILED:
        return ""
    found = judged(trial, recorded)
    return found.message if found.status == FAILED else ""


def _changed(gradient: Any, dout: torch.Tensor) -> str:
    """Say where the gradient of a tensor that is added to the result is not the result's; empty: nowhere."""
    if not isinstance(gradient, torch.Tensor):
        return ""
    where = different(gradient.detach().cpu(), dout.contiguous())
    return f" {where}" if where else ""


def _overlapping(trial: Trial, way: Wish, inputs: tuple[torch.Tensor, ...], number: int, gradient: Any) -> str:
    """Say that elements of a gradient have one address, where torch's have not; empty: they have not."""
    if not isinstance(gradient, torch.Tensor) or not _has_overlap(gradient):
        return ""
    theirs = of_torch(trial, way, inputs, None)
    own = None if theirs is None else theirs[way.wanted.index(number)]
    if own is None or _has_overlap(own):
        return ""
    return f"has strides {list(gradient.stride())}: elements share memory, and torch's do not"


def _has_overlap(tensor: torch.Tensor) -> bool:
    return tensor.numel() > 0 and any(
        size > 1 and not stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    )


def _broken(way: Wish, found: list[Any]) -> str:
    """Say that the gradients of a call of the result are not those of two passes, or that the second call changed the
    result; empty: they are, but for roundings and what overflows or vanishes.

    :param found: What ``gradient_calls`` returns after the gradients of the first call.
    """
    if not found:
        return ""
    *found, before, after = found
    if where := different(before, after):
        return f"the result was changed by the second call {where}"
    half = len(found) // 2
    names = [*(f"that of operand {number} of the first one" for number in way.wanted), "that of this tensor"]
    for name, once, steps in zip(names, found[:half], found[half:], strict=True):
        if isinstance(once, torch.Tensor) and isinstance(steps, torch.Tensor) and _is_other(once, steps):
            return f"{name} is another one than in two passes"
    return ""


def _is_other(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Tell whether elements that are finite differ by more than roundings, measured by the largest."""
    one, other = one.double(), other.double()
    sure = one.isfinite() & other.isfinite()
    largest = float(torch.where(sure, one.abs(), 0.0).amax()) if one.numel() else 0.0
    return largest > VANISHING and bool((torch.where(sure, (other - one).abs(), 0.0) > _LOOSE * largest).any())


def _unscaled(way: Wish, first: list[Any], others: list[Any], factor: float) -> int | None:
    """Return an operand of which the gradient in ``others`` is not ``factor`` times the first one; None: all are, but
    for what overflows or vanishes."""
    for number, one, other in zip(way.wanted, first, others, strict=False):
        if (
            isinstance(one, torch.Tensor)
            and isinstance(other, torch.Tensor)
            and _is_other(one.double() * factor, other)
        ):
            return number
    return None


_LOOSE = 2.0**-5
"""Of the largest gradient, what roundings change where something vanishes."""


def _refused(trial: Trial, way: Wish, inputs: tuple[torch.Tensor, ...]) -> bool:
    """Tell whether torch refuses the call with operands that require a gradient: a 0-d tensor in place of a number,
    say."""
    given = [one.clone().requires_grad_() if n in way.leaves else one for n, one in enumerate(inputs)]
    args, kwargs = forms.bind(way.case, given)
    try:
        trial.spec.reference(*args, **kwargs)
    except (TypeError, RuntimeError):
        return True
    return False


def compared(gradient: Any, operand: torch.Tensor, answer: Expected | None) -> tuple[str, Comparison | None]:
    """Say what is wrong with the gradient of an operand; empty: nothing, or the oracle says nothing of it."""
    if answer is None:
        return "", None
    if gradient is None:
        gradient = torch.zeros(operand.shape, dtype=operand.dtype)
        none = "there is none, which stands for zeros; "
    elif not isinstance(gradient, torch.Tensor):
        return f"it is {gradient.kind}", None
    else:
        none = ""
    if gradient.dtype != operand.dtype:
        return f"dtype {gradient.dtype} instead of {operand.dtype}", None
    found = compare(gradient, answer)
    if found.passed:
        return "", found
    if found.reason or found.index is None:
        return found.reason, found
    message = (
        f"{none}{found.failed} of {found.judged} elements are; the worst is {list(found.index)}\n"
        f"    ours    {found.ours!r}\n"
        f"    oracle  {found.oracle!r}\n"
        f"    error   {found.error:.6g}, bound {found.allowed:.6g}"
    )
    return message, found
