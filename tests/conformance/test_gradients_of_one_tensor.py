"""Gradients of calls in which one tensor is two operands."""

from __future__ import annotations

import pytest
import torch

from conformance.cases import Case, Same
from conformance.checks.gradients import expected
from conformance.spec import registry
from strategies.specs import TensorSpec


def test_both_gradients_of_one_tensor_may_be_rounded_to_its_dtype_before_they_are_summed():
    """Of a float32 table that is both tables of a float64 rotation: terms that cancel."""
    case = Case(
        op="rotary_position_embedding",
        args=(TensorSpec((1, 1, 1, 2), "float64"), TensorSpec((1, 1), "float32"), Same(1)),
    )
    x = torch.tensor([0.3, -0.6 + 1e-9], dtype=torch.float64).view(1, 1, 1, 2)
    dout = torch.tensor([1.0, 3.0], dtype=torch.float64).view(1, 1, 1, 2)
    terms = torch.stack([3 * x[..., 0] - x[..., 1], x[..., 0] + 3 * x[..., 1]]).flatten()
    (answer,) = expected(registry()[case.op], case, [1], (x, torch.ones(1, 1), dout), None)
    assert float(answer.value) == pytest.approx(2e-9, rel=1e-3)
    assert float(answer.bound) >= float((terms.float().double() - terms).abs().sum())
