"""Gradients of matrix products, and of the fused operators that are made of them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from conformance import bounds, float_formats
from conformance.ops import _gradients as elementwise
from conformance.ops._gradients import Gradients
from conformance.running import Running, exact, number
from conformance.spec import Call


def product(call: Call, dout: torch.Tensor) -> Gradients:
    """g b^T and a^T g, summed over what was broadcast."""
    with np.errstate(all="ignore"):
        return dict(enumerate(_factors(*(exact(x, dout.dtype) for x in (dout, *call.args[:2])))))


def addmm(call: Call, dout: torch.Tensor) -> Gradients:
    """beta g, and those of the product times alpha."""
    input, *matrices = call.args
    with np.errstate(all="ignore"):
        g = exact(dout, dout.dtype)
        beta, alpha = (call.kwargs.get(name, 1) for name in ("beta", "alpha"))
        factors = _factors(g, *(exact(x, dout.dtype) for x in matrices))
        scaled = [one if alpha == 1 else one.stored() * number(alpha, dout.dtype) for one in factors]
        added = g if beta == 1 else g * number(beta, dout.dtype)
        return {0: added.summed_to(tuple(input.shape)), 1: scaled[0], 2: scaled[1]}


def _factors(g: Running, a: Running, b: Running) -> list[Running]:
    shapes = a.shape, b.shape
    # A vector is a matrix of one row, or of one column.
    if len(shapes[1]) == 1:
        g, b = (one.laid(lambda array: array[..., None]) for one in (g, b))
    if len(shapes[0]) == 1:
        g, a = (one.laid(lambda array: array[..., None, :]) for one in (g, a))
    many = math.prod(g.shape[:-2])
    found = (
        left.times(right, max(many // max(math.prod(own.shape[:-2]), 1), 1)).summed_to(own.shape)
        for left, right, own in ((g, b.mT, a), (a.mT, g, b))
    )
    return [one.laid(lambda array, shape=shape: array.reshape(shape)) for one, shape in zip(found, shapes, strict=True)]


ACTIVATIONS: Mapping[str, str | None] = {"silu": None, "gelu": "none", "gelu_tanh": "tanh"}


def gated_mlp(
    formulas: Mapping[str, tuple[Callable[[np.ndarray], np.ndarray], Any]], call: Call, dout: torch.Tensor
) -> Gradients:
    """Of act(gate) * up, both products of ``x``; what lies between may be stored at each step. ``formulas``: of each
    activation, its value in float64 and one that is more precise."""
    x, gate_weight, up_weight, activation = _mlp(*call.args, **call.kwargs)
    dtype = dout.dtype
    with np.errstate(all="ignore"):
        rows = math.prod(x.shape[:-1])
        g = exact(dout.reshape(rows, gate_weight.shape[0]), dtype)
        wide, gate, up = (exact(one, dtype) for one in (x.reshape(rows, x.shape[-1]), gate_weight, up_weight))
        gated, linear = ((wide @ weight.mT).stored() for weight in (gate, up))
        slope, activated = _activated(gated, activation, formulas[activation][0])
        to_gate = _in_any_order(g * linear.stored() * slope, (g, linear, slope)).stored()
        to_up = (g * activated.stored()).stored()
        found = (to_gate @ gate).stored() + (to_up @ up).stored()
        return {0: found.laid(lambda array: array.reshape(x.shape)), 1: to_gate.mT @ wide, 2: to_up.mT @ wide}


def _mlp(
    x: torch.Tensor, gate_weight: torch.Tensor, up_weight: torch.Tensor, activation: str = "silu"
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, str]:
    return x, gate_weight, up_weight, activation


def _in_any_order(product: Running, factors: Sequence[Running]) -> Running:
    """The product, of any value where two of its factors leave the range: what is multiplied with what first is
    anybody's choice."""
    limit = float_formats.FORMATS[product.compute].max
    pairs = [one.value * other.value for one, other in itertools.combinations(factors, 2)]
    finite = np.logical_and.reduce([np.isfinite(one.value) for one in factors])
    lost = finite & (np.abs(pairs).max(0) > limit)
    return Running(product.value, np.where(lost, np.inf, product.error), product.dtype)


def _activated(x: Running, activation: str, function: Callable[[np.ndarray], np.ndarray]) -> tuple[Running, Running]:
    """The derivative and the value of an activation."""
    value = function(x.value)
    error = bounds.activated(function, activation, x.value, value, x.error, x.dtype)
    approximate = ACTIVATIONS[activation]
    of = elementwise.silu_slope if approximate is None else partial(elementwise.gelu_slope, approximate=approximate)
    return of(x), Running(value, np.where(np.isnan(error), np.inf, error), x.dtype)
