"""Gradients of elementwise functions, in the steps in which torch composes each (PyTorch's derivatives.yaml): between
any two half types may be rounded.

What is chosen where a function has no derivative (the ends of ``clamp``, ``relu`` and ``abs`` of 0) is torch's choice.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from conformance import bounds, float_formats
from conformance.running import Running, exact, number
from conformance.spec import Call

Gradients = Mapping[int | str, Running]
"""Map the place or name of each argument that has a gradient to it."""
Formula = Callable[[Call, torch.Tensor], Gradients]


def of(formula: Callable[..., dict[str, Running]], *names: str) -> Formula:
    """The gradients of an elementwise function whose arguments have these names.

    ``formula``: from the gradient of the result, as a number of its dtype, and the arguments, to the gradient of each,
    of the shape of the result.
    """

    def gradients(call: Call, dout: torch.Tensor) -> Gradients:
        places = {name: place for place, name in enumerate(names[: len(call.args)])}
        given = dict(zip(names, call.args, strict=False)) | dict(call.kwargs)
        with np.errstate(all="ignore"):
            found = formula(exact(dout, dout.dtype), **given)
            return {
                places.get(name, name): gradient.summed_to(tuple(given[name].shape))
                for name, gradient in found.items()
                if isinstance(given.get(name), torch.Tensor)
            }

    return gradients


def of_input(slope: Callable[..., Running], *names: str) -> Formula:
    """The gradient of a function of one tensor, ``input``, and of further arguments of these names.

    ``slope``: from the gradient of the result, the input, and the further arguments by name, to the gradient of the
    input. One that compares elements is a ``formula`` as of ``of``, since a ``Running`` holds finite numbers.
    """

    def formula(g: Running, input: torch.Tensor, inplace: bool = False, **given: Any) -> dict[str, Running]:
        return {"input": slope(g, exact(input, g.dtype), **given)}

    return of(formula, "input", *names)


def _operand(value: Any, dtype: torch.dtype) -> Running:
    return exact(value, dtype) if isinstance(value, torch.Tensor) else number(value, dtype)


def plain(value: Any, dtype: torch.dtype) -> np.ndarray:
    """The numbers, NaN and infinities among them, in the dtype in which they are compared."""
    # A Python float would become one of the default dtype.
    wide = torch.float64 if type(value) is float else None
    return torch.as_tensor(value, dtype=wide).detach().cpu().to(dtype).double().numpy()


# --- arithmetic --------------------------------------------------------------------------------------------------


def added(g: Running, input: Any, other: Any, alpha: Any = 1, sign: int = 1) -> dict[str, Running]:
    scaled = g if sign * alpha == 1 else -g if sign * alpha == -1 else g * number(sign * alpha, g.dtype)
    return {"input": g, "other": scaled}


def multiplied(g: Running, input: Any, other: Any) -> dict[str, Running]:
    return {"input": g * _operand(other, g.dtype), "other": g * _operand(input, g.dtype)}


def divided(g: Running, input: Any, other: Any, rounding_mode: str | None = None) -> dict[str, Running]:
    if rounding_mode is not None:
        nothing = g.where(np.zeros((), bool))
        return {"input": nothing, "other": nothing}
    divisor = _operand(other, g.dtype)
    twice = ((_operand(input, g.dtype) / divisor).stored() / divisor).stored()
    return {"input": g / divisor, "other": -(g * twice)}


def power(g: Running, input: Any, exponent: Any) -> dict[str, Running]:
    base, by = _operand(input, g.dtype), _operand(exponent, g.dtype)
    x, y = plain(input, g.dtype), plain(exponent, g.dtype)
    lower = (by - 1.0).stored()
    if isinstance(exponent, torch.Tensor) and exponent.is_floating_point():
        # torch subtracts in the dtype of the exponent.
        lower = Running(lower.value, lower.error + float_formats.rounding(lower.value, exponent.dtype), g.dtype)
    slope = (by * _raised(base, lower).stored()).stored()
    logarithm = base.applied(np.log, lambda value: float_formats.ulp(value, g.compute)).stored()
    grown = (_raised(base, by).stored() * logarithm).stored()
    # Of a base that is not positive there is no logarithm, but powers of 0 are flat.
    defined = np.broadcast_to((x > 0) | ((x == 0) & (y >= 0)), g.shape)
    grown = (g * grown).where(np.broadcast_to(~((x == 0) & (y >= 0)), g.shape))
    grown = Running(grown.value, np.where(defined, grown.error, np.inf), g.dtype)
    return {"input": (g * slope).where(np.broadcast_to(y != 0, g.shape)), "exponent": grown}


def _raised(base: Running, by: Running) -> Running:
    """base^by, off by what both are off by; a base of 0 that may be none is anybody's."""
    value = np.power(base.value, by.value)
    size = np.abs(value)
    relative = np.abs(by.value) * base.error / np.where(base.error > 0, np.abs(base.value), 1.0)
    relative = relative + np.where(by.error > 0, np.abs(np.log(np.abs(base.value))) * by.error, 0.0)
    error = bounds.pow(value, base.value, by.value, base.dtype)
    # As the reciprocal of a power that overflows it is 0.
    error = (
        error
        + np.where(size * float_formats.FORMATS[base.compute].max < 1, size, 0.0)
        + size * np.where(relative > 0, np.expm1(relative), 0.0)
    )
    return Running(value, np.where(np.isnan(error), np.inf, error), base.dtype)


def clamped(g: Running, input: torch.Tensor, min: Any = None, max: Any = None) -> dict[str, Running]:
    x = plain(input, g.dtype)
    low, high = (None if bound is None else plain(bound, g.dtype) for bound in (min, max))
    kept, below, above = np.ones(x.shape, bool), np.zeros(x.shape, bool), np.zeros(x.shape, bool)
    if low is not None:
        kept, below = kept & (x >= low), x < low
    if high is not None:
        kept, above = kept & (x <= high), x > high
    if low is not None and high is not None:
        below, above = below & (low < high), above | (high < low)
    defined = np.isfinite(x)
    for bound in (low, high):
        defined = defined if bound is None else defined & ~np.isnan(bound)

    def through(mask: np.ndarray) -> Running:
        found = g.where(np.broadcast_to(mask, g.shape))
        return Running(found.value, np.where(np.broadcast_to(defined, g.shape), found.error, np.inf), g.dtype)

    # A tensor beside a number is taken for a number, which has none.
    numbers = any(bound is not None and not isinstance(bound, torch.Tensor) for bound in (min, max))
    return {"input": through(kept)} | ({} if numbers else {"min": through(below), "max": through(above)})


# --- functions of one tensor -------------------------------------------------------------------------------------


def _by_ulps(name: str, x: Running, function: Callable[[np.ndarray], np.ndarray]) -> Running:
    return x.applied(function, lambda value: bounds.ulps(name, value, x.dtype))


def _sigmoid(x: Running) -> Running:
    return x.applied(lambda v: 1 / (1 + np.exp(-v)), lambda value: bounds.sigmoid(value, x.dtype))


def magnitude(g: Running, input: torch.Tensor) -> dict[str, Running]:
    sign = np.sign(plain(input, g.dtype))
    return {"input": Running(g.value * sign, np.where(np.isnan(sign), np.inf, g.error * np.abs(sign)), g.dtype)}


def exponential(g: Running, x: Running) -> Running:
    return g * _by_ulps("exp", x, np.exp).stored()


def rsqrt(g: Running, x: Running) -> Running:
    result = _by_ulps("rsqrt", x, lambda v: 1 / np.sqrt(v)).stored()
    return (-0.5 * g).stored() * ((result * result).stored() * result).stored()


def sine(g: Running, x: Running) -> Running:
    return g * _by_ulps("cos", x, np.cos).stored()


def cosine(g: Running, x: Running) -> Running:
    return -(g * _by_ulps("sin", x, np.sin).stored())


def sigmoid(g: Running, x: Running) -> Running:
    result = _sigmoid(x).stored()
    return (g * (1.0 - result).stored()).stored() * result


def tanh(g: Running, x: Running) -> Running:
    result = _by_ulps("tanh", x, np.tanh).stored()
    return g * (1.0 - (result * result).stored()).stored()


def relu(g: Running, input: torch.Tensor, inplace: bool = False) -> dict[str, Running]:
    return {"input": g.where(~(plain(input, g.dtype) <= 0))}


def silu_slope(x: Running) -> Running:
    """The derivative of silu."""
    share = _sigmoid(x)
    return share * (1.0 + x * (1.0 - share))


def silu(g: Running, x: Running) -> Running:
    return g * silu_slope(x)


# The distribution function is off by so many units of 1, as ``bounds.gelu`` has it for its product with x.
_DISTRIBUTION = 8.0
_EXPONENTIAL = 4.0


def gelu_slope(x: Running, approximate: str) -> Running:
    """The derivative of gelu."""
    unit = float_formats.FORMATS[x.compute].unit
    if approximate == "tanh":
        factor, cubic = math.sqrt(2 / math.pi), 0.044715
        square = x * x
        bent = _by_ulps("tanh", factor * (x + cubic * (square * x)), np.tanh)
        return 0.5 * (1.0 + bent) + 0.5 * x * (1.0 - bent * bent) * (factor * (1.0 + 3 * cubic * square))
    half = math.sqrt(0.5)
    share = x.applied(
        lambda v: 0.5 * torch.special.erfc(torch.from_numpy(np.asarray(-half * v))).numpy(),
        lambda value: _DISTRIBUTION * unit,
    )
    density = (-0.5 * (x * x)).applied(np.exp, lambda value: _EXPONENTIAL * float_formats.ulp(value, x.compute))
    return share + x * (density * (1 / math.sqrt(2 * math.pi)))


def gelu(g: Running, x: Running, approximate: str = "none") -> Running:
    return g * gelu_slope(x, approximate)
