"""What the backward passes of elementwise operators get wrong."""

from __future__ import annotations

import math

import torch

from conformance.selftest.differentiable import Gradients, Step, backward, first_operand, input_gradient


@backward("add sub", "formula")
def alpha_forgotten(step: Step) -> Gradients:
    return step.gradients(alpha=None)


@backward("sub", "formula")
def sign_forgotten(step: Step) -> Gradients:
    return step.changed(step.gradients(), 1, torch.neg)


@backward("mul", "formula")
def factors_swapped(step: Step) -> Gradients:
    """Each factor gets the product with itself."""
    if len(step.operands) != 2 or step.operands[0].shape != step.operands[1].shape:
        return step.gradients()
    return [step.dout.double() * one.to(step.result.dtype).double() for one in step.operands]


@backward("div", "formula")
def divisor_not_squared(step: Step) -> Gradients:
    divisor = step.argument(1)
    found = step.gradients()
    if divisor is None or divisor.shape != step.result.shape:
        return found
    return step.changed(found, 1, lambda one: one * divisor.to(step.result.dtype).double())


@backward("div", "formula")
def rounded_quotient_has_gradient(step: Step) -> Gradients:
    """Rounded quotients have the gradient of quotients."""
    return step.gradients(rounding_mode=None)


@backward("pow", "formula")
def power_of_zero(step: Step) -> Gradients:
    """0 to a power has NaN for the gradient of the exponent."""
    base = step.args[0]
    zero = torch.as_tensor(base) == 0
    found = step.gradients()
    if not zero.any() or len(step.operands) != 2 or step.operands[0].shape != step.operands[1].shape:
        return found
    return step.changed(found, 1, lambda one: one.masked_fill(zero, math.nan))


@backward("pow", "formula")
def exponent_for_next(step: Step) -> Gradients:
    """The base's gradient has the power itself, and not the next lower one."""
    base = step.argument(0)
    if base is None or base.shape != step.result.shape:
        return step.gradients()
    return step.changed(step.gradients(), 0, lambda one: one * base.to(step.result.dtype).double())


@backward("clamp", "formula")
def ends_left_out(step: Step) -> Gradients:
    """An element that equals a bound has no gradient."""
    found = step.gradients()
    same = step.result == step.operands[0]
    for name in (1, 2, "min", "max"):
        bound = step.args[name] if isinstance(name, int) and name < len(step.args) else step.kwargs.get(str(name))
        if bound is not None:
            same = same & (step.result != torch.as_tensor(bound).to(step.result.dtype))
    return step.changed(found, 0, lambda one: one * same if one.shape == same.shape else one)


@backward("clamp", "formula")
def within_by_a_product(step: Step) -> Gradients:
    """The sign of (x - min) * (max - x) tells what lies between: it is NaN at a bound beside an infinite one."""
    found, x = step.gradients(), step.operands[0].double()
    low, high = (
        step.args[place] if place < len(step.args) else step.kwargs.get(name)
        for place, name in ((1, "min"), (2, "max"))
    )
    if not isinstance(low, float) or not isinstance(high, float) or low > high:
        return found
    within = (x - low) * (high - x) >= 0
    return step.changed(found, 0, lambda one: one * within if one.shape == within.shape else one)


@backward("clamp", "needs")
def bounds_without_gradient(step: Step) -> Gradients:
    found = step.gradients()
    return [one if place == 0 else None for place, one in zip(step.places, found, strict=True)]


@backward("abs", "formula")
def sign_of_zero(step: Step) -> Gradients:
    """The gradient of 0 is not 0."""
    x = first_operand(step)
    return input_gradient(step, torch.where(x.signbit(), -1.0, 1.0))


@backward("relu", "formula")
def passes_zero(step: Step) -> Gradients:
    """The gradient of 0 is 1."""
    return input_gradient(step, (~(first_operand(step) < 0)).double())


@backward("relu", "formula")
def times_the_mask(step: Step) -> Gradients:
    """The gradient of the result is multiplied with a mask, so that one that is not finite becomes NaN, and not 0."""
    return [step.dout.double() * (first_operand(step) > 0)]


@backward("silu sigmoid tanh", "formula")
def limited_to_half(step: Step) -> Gradients:
    """The gradient of the result is limited to the range of float16."""
    return step.gradients(dout=step.dout.clamp(-65504, 65504))


@backward("exp", "formula")
def exponential_of_result(step: Step) -> Gradients:
    """The input is saved where the result should be."""
    return input_gradient(step, first_operand(step))


@backward("rsqrt", "formula")
def half_forgotten(step: Step) -> Gradients:
    return [one if one is None else 2 * one for one in step.gradients()]


@backward("cos neg sin", "formula")
def minus_forgotten(step: Step) -> Gradients:
    return [one if one is None else -one for one in step.gradients()]


@backward("sigmoid tanh", "formula")
def input_for_result(step: Step) -> Gradients:
    """The derivative in terms of the result is given the input."""
    x = first_operand(step)
    return input_gradient(step, x * (1 - x) if step.op == "sigmoid" else 1 - x * x)


@backward("silu", "formula")
def sigmoid_alone(step: Step) -> Gradients:
    """The derivative lacks its second term."""
    return input_gradient(step, torch.sigmoid(first_operand(step)))


@backward("gelu", "formula")
def other_approximation(step: Step) -> Gradients:
    """The derivative is that of the other formula."""
    other = "none" if step.kwargs.get("approximate") == "tanh" else "tanh"
    return step.gradients() if len(step.args) > 1 else step.gradients(approximate=other)


@backward("gelu silu tanh sigmoid", "precision")
def in_bfloat16(step: Step) -> Gradients:
    """The derivative of float32 is rounded to bfloat16."""
    found = step.gradients()
    if step.result.dtype != torch.float32:
        return found
    return [one if one is None else one.bfloat16().double() for one in found]


@backward("clamp", "numbers")
def bound_not_rounded(step: Step) -> Gradients:
    """An element of a half type that equals a bound as that is rounded counts as beyond the very number."""
    found, bounds = step.gradients(), dict(zip(("min", "max"), step.args[1:], strict=False)) | step.kwargs
    input = step.operands[0].double()
    if found[0] is None or input.shape != step.result.shape:
        return found
    for name, compared in (("min", torch.lt), ("max", torch.gt)):
        if isinstance(bound := bounds.get(name), float):
            found[0] = found[0].masked_fill(compared(input, bound), 0.0)
    return found
