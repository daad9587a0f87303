"""Judge the gradients of a call of a sequence, which are asked for after others were made."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from conformance import gradient_calls
from conformance.checks.gradient_kinds import floating_operands
from conformance.checks.gradients import CLAIM, compared, expected, has_gradients
from conformance.implementations import Implementation
from conformance.runner import Prepared


def wanted(prepared: Prepared) -> list[int]:
    """Return the numbers of the operands that require a gradient; none where a call has no gradients."""
    if prepared.refusal is not None or prepared.reference.error is not None:
        return []
    has_any = has_gradients(prepared.case, prepared.call, prepared.reference.value)
    return floating_operands(prepared.case) if has_any else []


def wrong(
    prepared: Prepared, found: Sequence[torch.Tensor | str], result: torch.Tensor, implementation: Implementation
) -> str:
    """Say what is wrong with the gradients of a call, where that of the result is ``gradient_calls.factors``; empty:
    nothing.

    :param found: The gradients of the ``wanted`` operands, or the exception of the backward pass; empty where the
        result knew of none.
    :param result: What the call returned.
    """
    claims = CLAIM in implementation.claims(prepared.case.op)
    if not found:
        return "there are none: the result does not know its operands" if claims else ""
    for one in found:
        if isinstance(one, str):
            is_left_out = one.partition(":")[0] == NotImplementedError.__name__ and not claims
            return "" if is_left_out else f"the backward pass raised {one}"
    numbers = wanted(prepared)
    inputs = (*prepared.inputs, gradient_calls.factors(prepared.reference.value).cpu())
    answers = expected(prepared.spec, prepared.case, numbers, inputs, result)
    for number, gradient, answer in zip(numbers, found, answers, strict=False):
        if message := compared(gradient, inputs[number], answer)[0]:
            return f"that of operand {number} is wrong: {message}"
    return ""
