"""The gradients of elementwise functions.

Each gradient has a kernel of its own; broadcast dims are summed in float32. If a gradient is to be differentiated once
more, torch's functions compute it (``COMPOSED``).
"""

import math
from typing import Any

import torch

from ntops.autograd.formula import Formula, is_composed, save, saved
from ntops.host import families, gradients
from ntops.host.promotion import accumulate_dtype, rounded
from ntops.kernels.elementwise_backward import APPLICATIONS


def _gelu(g, x):
    phi = 0.5 * (1 + torch.erf(x * math.sqrt(0.5)))
    return g * (phi + x * torch.exp(-0.5 * x * x) / math.sqrt(2 * math.pi))


def _gelu_tanh(g, x):
    factor, square = math.sqrt(2 / math.pi), x * x
    bent = torch.tanh(factor * x * (1 + 0.044715 * square))
    slope = factor * (1 + 3 * 0.044715 * square)
    return g * (0.5 * (1 + bent) + 0.5 * x * (1 - bent * bent) * slope)


def _silu(g, x):
    sigmoid = torch.sigmoid(x)
    return g * sigmoid * (1 + x * (1 - sigmoid))


COMPOSED = {
    "scaled": lambda g, scale: g * scale,
    "divided": lambda g, other: g / other,
    "divisor": lambda g, x, other: -g * (x / other / other),
    "base": lambda g, x, power: torch.where(power == 0, 0.0, g * (power * torch.pow(x, power - 1))),
    "exponent": lambda g, x, power: torch.where((x == 0) & (power >= 0), 0.0, g * (torch.pow(x, power) * torch.log(x))),
    "abs": lambda g, x: g * torch.sgn(x),
    "rsqrt": lambda g, result: -0.5 * g * torch.pow(result, 3),
    "sin": lambda g, x: g * torch.cos(x),
    "cos": lambda g, x: g * -torch.sin(x),
    "relu": lambda g, result: torch.where(result <= 0, 0.0, g),
    "sigmoid": lambda g, result: g * (1 - result) * result,
    "tanh": lambda g, result: g * (1 - result * result),
    "silu": _silu,
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
    "clamped": lambda g, x, low, high: torch.where((x >= low) & (x <= high), g, 0.0),
    "raised": lambda g, x, low: torch.where(x >= low, g, 0.0),
    "lowered": lambda g, x, high: torch.where(x <= high, g, 0.0),
    "low": lambda g, x, low: torch.where(x < low, g, 0.0),
    "high": lambda g, x, high: torch.where(x > high, g, 0.0),
    "low_of_both": lambda g, x, low, high: torch.where((x < low) & (low < high), g, 0.0),
    "high_of_both": lambda g, x, low, high: torch.where((x > high) | (high < low), g, 0.0),
}
"""The formulas of the kernels of ``elementwise_backward`` in torch's functions."""


def _clamp_rule(argument, values):
    bounded = values["min"] is not None, values["max"] is not None

    if argument == "input":
        return {(True, True): "clamped", (True, False): "raised", (False, True): "lowered"}[bounded]

    return {"min": "low", "max": "high"}[argument] + ("_of_both" if all(bounded) else "")


def _div_rule(argument, values):
    # Rounded quotients are piecewise constant, so their gradient is 0.
    if values["rounding_mode"] is not None:
        return None

    return "divided" if argument == "input" else "divisor"


def _gelu_rule(argument, values):
    return "gelu_tanh" if values["approximate"] == "tanh" else "gelu"


_NAMES = {"low": "min", "high": "max"}

# For each function: the names of its arguments by position; and for each argument that has a gradient, the formula, or
# a function that chooses it, and the values of the formula's operands if their names differ.
RULES: dict[str, tuple[tuple[str, ...], dict[str, tuple[Any, dict[str, Any]]]]] = {
    "add": (
        ("input", "other", "alpha"),
        {"input": ("scaled", {"scale": 1.0}), "other": ("scaled", {"scale": "alpha"})},
    ),
    "sub": (
        ("input", "other", "alpha"),
        {"input": ("scaled", {"scale": 1.0}), "other": ("scaled", {"scale": "-alpha"})},
    ),
    "mul": (("input", "other"), {"input": ("scaled", {"scale": "other"}), "other": ("scaled", {"scale": "input"})}),
    "div": (("input", "other", "rounding_mode"), {"input": (_div_rule, {}), "other": (_div_rule, {})}),
    "pow": (("input", "exponent"), {"input": ("base", {}), "exponent": ("exponent", {})}),
    "clamp": (
        ("input", "min", "max"),
        {"input": (_clamp_rule, {}), "min": (_clamp_rule, {}), "max": (_clamp_rule, {})},
    ),
    "gelu": (("input", "approximate"), {"input": (_gelu_rule, {})}),
    "relu": (("input",), {"input": ("relu", {})}),
}


def _value(place, values):
    """Return an operand of a formula beside the gradient: a tensor or a number."""
    if not isinstance(place, str):
        return place

    if place.endswith("alpha"):
        return -values["alpha"] if place.startswith("-") else values["alpha"]

    return values[place]


def formula(name, names, rules):
    """Return the formula of an operator by its arguments and rules, as in ``RULES``."""
    # torch first rounds these operands, if they are numbers, to the dtype of the result.
    rounds = {"pow": ("input", "exponent"), "div": ("input",)}.get(name, ())

    def setup_context(ctx, inputs, output):
        values = dict(zip(names, inputs, strict=True)) | {"result": output}

        for one in rounds:
            if not isinstance(values[one], torch.Tensor) and output.dtype.is_floating_point:
                values[one] = rounded(values[one], output.dtype)

        plan, kept = [], {}

        for argument, is_needed in zip(names, ctx.needs_input_grad, strict=False):
            if not is_needed:
                plan.append(None)
                continue

            function, places = rules[argument]
            chosen = function(argument, values) if callable(function) else function
            places = [places.get(one, _NAMES.get(one, one)) for one in APPLICATIONS[chosen][1]] if chosen else []
            kept |= {str(place): _value(place, values) for place in places}
            # torch passes a gradient on as it is where it is added or subtracted from, and else makes a new one.
            passed = name == "add" or (name == "sub" and argument == "input")
            plan.append((chosen, values[argument].shape, values[argument].dtype, passed, places))

        ctx.plan = plan
        save(ctx, **kept)

    def backward(ctx, gradient):
        values = saved(ctx)
        return tuple(
            None if one is None else _gradient(*one[:4], gradient, [values[str(place)] for place in one[4]])
            for one in ctx.plan
        )

    return Formula(setup_context, backward)


def _gradient(function, shape, dtype, passed, gradient, operands):
    if function is None:
        return gradient.new_zeros(shape, dtype=dtype)

    tensors = [operand for operand in operands if isinstance(operand, torch.Tensor)]

    if is_composed(gradient, *tensors):
        return _composed(function, shape, dtype, gradient, operands)

    if function == "scaled" and not tensors:
        return gradients.summed(gradient, tuple(shape), dtype, float(operands[0]), passed=passed)

    return gradients.elementwise(function, tuple(shape), dtype, gradient, *operands)


def _composed(function, shape, dtype, gradient, operands):
    """Compute a gradient as the kernel does: in float32 for half types, rounded once. A 0-d tensor gives way to the
    gradient's dtype."""
    compute_dtype = accumulate_dtype(gradient.dtype)
    operands = [
        operand.to(gradient.dtype).to(compute_dtype)
        if isinstance(operand, torch.Tensor)
        else torch.full((), operand, dtype=compute_dtype, device=gradient.device)
        for operand in operands
    ]
    return COMPOSED[function](gradient.to(compute_dtype), *operands).sum_to_size(shape).to(dtype)


FORMULAS = {name: formula(name, *rule) for name, rule in RULES.items()}


def of_families():
    """Return the gradients that members of :mod:`ntops.host.families` declare, by the name of the operator."""
    found = {}

    for name, member in families.MEMBERS.items():
        if member.gradient:
            rule = (member.gradient, {}) if isinstance(member.gradient, str) else member.gradient
            found[name] = formula(name, member.arguments, {"input": rule})

    return found
