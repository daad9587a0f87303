"""Planted defects of backward passes that know one way to write a call; and of what is one tensor throughout."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from conformance.selftest.defect_registry import defect, plant
from conformance.selftest.differentiable import Gradients, Step, backward, differentiable, is_number

KIND = "gradients of forms"


def _of_alpha_one(step: Step) -> Gradients:
    return step.gradients(alpha=1)


def _alpha_forgotten(right: Any, *args: Any, _calls: Any, **kwargs: Any) -> Any:
    return _calls[is_number("alpha", kwargs.get("alpha"))](*args, **kwargs)


for _op in ("add", "sub"):
    _call = partial(_alpha_forgotten, _calls=(differentiable(_op), differentiable(_op, _of_alpha_one)))
    _about = "An alpha that is a 0-d tensor counts as 1 in the backward pass."
    plant(_op, "gradient_alpha_of_a_tensor_forgotten", KIND, "gradients", _call, _about)


@backward("matmul bmm mul", KIND)
def negated_operands_as_they_lie(step: Step) -> Gradients:
    """A lazily negated operand that was saved is read as it lies in memory."""
    return step.gradients(operands=[torch._neg_view(one) if one.is_neg() else one for one in step.operands])


def _lost_by_name(right: Any, *args: Any, _call: Any, **kwargs: Any) -> Any:
    with torch.set_grad_enabled(torch.is_grad_enabled() and not kwargs.keys() - {"out"}):
        return _call(*args, **kwargs)


for _op in ("mm", "matmul", "mul"):
    _call = partial(_lost_by_name, _call=differentiable(_op))
    plant(_op, "gradient_lost_by_name", KIND, "gradients", _call, "A call with an operand by name records nothing.")


def _never_copied(right: Any, *args: Any, _call: Any, **kwargs: Any) -> Any:
    return _call(*args, **kwargs)


for _op in ("sum", "mean", "layer_norm"):
    _call = partial(_never_copied, _call=differentiable(_op, keeps_lists=True))
    plant(
        _op, "gradient_of_the_callers_list", KIND, "gradients", _call, "A list is kept for the backward pass as it is."
    )


@defect("addmm", KIND, "aliasing")
def of_one_tensor_symmetric(right: Any, input: Any, mat1: Any, mat2: Any, *args: Any, **kwargs: Any) -> Any:
    """Where one tensor is all operands, the upper half of the result is mirrored."""
    result = right(input, mat1, mat2, *args, **kwargs)
    if not input.shape == mat1.shape == mat2.shape or not input.data_ptr() == mat1.data_ptr() == mat2.data_ptr():
        return result
    return result.copy_(result.triu() + result.triu(1).mT)
