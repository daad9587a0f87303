"""Planted defects that few calls show: by the dtype of one bound, one gradient of several, or autocast."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from conformance.selftest import families as of
from conformance.selftest.defect_registry import defect, plant
from conformance.selftest.differentiable import differentiable

Right = Callable[..., Any]


@defect("pow", "values")
def newton_step_of_a_reciprocal(right: Right, input: Any, exponent: Any, **kwargs: Any) -> Any:
    """Return NaN for an exponent of -2 where the square overflows, of whose reciprocal a step of Newton's method makes
    infinity times 0."""
    result = right(input, exponent, **kwargs)
    if isinstance(input, torch.Tensor) and isinstance(exponent, int | float) and exponent == -2:
        lost = (input * input).isinf() & input.isfinite()
        if lost.any() and result.shape == lost.shape:
            result.masked_fill_(lost, torch.nan)
    return result


@defect("clamp", "dtypes", "metadata")
def max_does_not_promote(right: Right, input: Any, min: Any = None, max: Any = None, *, out: Any = None) -> Any:
    """Return the dtype of the operand and the first bound where both bounds are tensors with dims."""
    result = right(input, min, max, out=out)
    bounds = [one for one in (min, max) if isinstance(one, torch.Tensor) and one.ndim]
    if out is None and len(bounds) == 2 and input.ndim:
        return result.to(torch.result_type(input, bounds[0]))
    return result


@defect("sum mean", "autocast", "autocast")
def operands_cut_off_in_autocast(right: Right, input: Any, *args: Any, **kwargs: Any) -> Any:
    """Round the operand to the lower dtype inside of autocast, and return float32."""
    if torch.is_autocast_enabled("cpu") and not of.written(args, kwargs) and input.dtype == torch.float32:
        input = input.to(torch.get_autocast_dtype("cpu")).to(input.dtype)
    return right(input, *args, **kwargs)


def _input_alone(right: Right, input: Any, normalized_shape: Any, weight: Any = None, *args: Any, **kwargs: Any) -> Any:
    function = differentiable("layer_norm")
    if not (isinstance(weight, torch.Tensor) and weight.requires_grad and input.requires_grad):
        return function(input, normalized_shape, weight, *args, **kwargs)
    # A node of its own: only a private function of torch tells whether a pass comes to it, as C++ nodes ask.
    weight = weight.view_as(weight)
    node = weight.grad_fn

    class Shared(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, one: torch.Tensor) -> torch.Tensor:
            return one.view_as(one)

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            return grads[0] if torch._C._will_engine_execute_node(node) else torch.zeros_like(grads[0])

    return function(Shared.apply(input), normalized_shape, weight, *args, **kwargs)


plant(
    "layer_norm",
    "gradient_of_the_input_alone",
    "gradients",
    "gradients",
    _input_alone,
    "The kernel of both gradients makes none of the input where the weight's is not asked for.",
)
