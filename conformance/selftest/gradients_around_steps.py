"""Backward passes that give the right gradients, and change or keep what is not theirs."""

from __future__ import annotations

import warnings
from collections import deque
from typing import Any

import torch

from conformance.selftest.defect_registry import plant
from conformance.selftest.differentiable import Gradients, Step, backward, differentiable

_kept: deque[Any] = deque(maxlen=64)


@backward("sigmoid mm softmax", "state")
def operands_kept(step: Step) -> Gradients:
    """The backward pass keeps its operands for longer than the graph."""
    _kept.append(step.operands)
    return step.gradients()


@backward("silu rms_norm dropout", "state")
def generator_set_back(step: Step) -> Gradients:
    """The backward pass seeds torch's generator."""
    torch.manual_seed(0)
    return step.gradients()


@backward("exp bmm", "state")
def warnings_silenced(step: Step) -> Gradients:
    """The backward pass silences warnings for good."""
    warnings.simplefilter("ignore")
    return step.gradients()


def _plant_rounded(op: str) -> None:
    right_one = differentiable(op)

    def wrong(right: Any, *args: Any, **kwargs: Any) -> Any:
        result = right_one(*args, **kwargs)
        known = isinstance(result, torch.Tensor) and result.requires_grad and result.dtype is torch.float32
        return result.bfloat16().to(result.dtype) if known else result

    plant(op, "gradient_results_rounded", "gradients", "gradients", wrong, "a result that autograd knows of is rounded")


class _SecondLost(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, input: torch.Tensor, function: Any) -> torch.Tensor:
        ctx.save_for_backward(input)
        ctx.function = function
        return function(input)

    @staticmethod
    def backward(ctx: Any, *douts: torch.Tensor) -> Any:
        with torch.enable_grad():
            input = ctx.saved_tensors[0].detach().requires_grad_()
            return torch.autograd.grad(ctx.function(input), input, douts)[0], None


def _plant_second_lost(op: str) -> None:
    right_one = differentiable(op)

    def wrong(right: Any, input: Any, *args: Any, **kwargs: Any) -> Any:
        reference = getattr(torch, op)
        wide = isinstance(input, torch.Tensor) and input.dtype == torch.float64 and input.requires_grad
        if wide and torch.is_grad_enabled() and kwargs.get("out") is None and not torch.jit.is_scripting():
            return _SecondLost.apply(input, reference)
        return reference(input) if kwargs.get("out") is None and not wide else right_one(input, *args, **kwargs)

    about = "second derivatives of float64 are lost without a word, those of float32 are there"
    plant(op, "gradient_second_of_float64_lost", "gradients", "gradients", wrong, about)


for _op in ("tanh", "cos"):
    _plant_second_lost(_op)
for _op in ("sin", "matmul", "layer_norm"):
    _plant_rounded(_op)
