"""Gradients where what autograd saved was kept elsewhere, or is computed again."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from conformance import cases, drawing, gradient_calls, profiles, runner
from conformance.cases import Case
from conformance.checks import gradient_kinds
from conformance.implementations import load
from conformance.selftest import defect_registry
from conformance.spec import registry

CPU = torch.device("cpu")


def drawn(op: str) -> Iterator[tuple[Case, str]]:
    """The drawn cases of an op of which first gradients are asked for, and what becomes of saved tensors."""
    for part in profiles.rounds(op, "float32", False, ("float32",), drawing.settings(60), 0):
        for case in drawing.drawn(part.draws, part.seed, part.examples):
            args, kwargs, _ = cases.materialize(case)
            result = registry()[op].reference(*args, **kwargs)
            if gradient_kinds.floating_operands(case):
                way = gradient_kinds.wish(case, result)
                # Of expanded operands second derivatives show it, too.
                if way.kind != "second order":
                    yield case, way.saved


@pytest.mark.parametrize("saved", ["elsewhere", "checkpoint"])
def test_autograd_gets_back_what_it_saved(saved):
    x = torch.randn(4, 6)[:, ::2].requires_grad_()
    y = gradient_calls.SAVED[saved](torch.exp)(x)
    (found,) = torch.autograd.grad(y.sum(), x)
    assert torch.equal(found, x.detach().exp())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "saved"),
    [("exp_saved_tensors_in_former_strides", "elsewhere"), ("exp_workspace_of_a_forward_within", "checkpoint")],
)
def test_a_defect_shows_there_alone(name, saved):
    wrong = defect_registry.bank()[name].implementation
    verdicts = [(runner.judge(case, wrong, CPU, ("gradients",)), how) for case, how in drawn("exp")]
    failing = {how for verdict, how in verdicts if verdict.failure is not None}
    assert failing == {saved}


@pytest.mark.slow
@pytest.mark.parametrize("implementation", ["torch", "ntops.torch"])
@pytest.mark.parametrize("op", ["softmax", "dropout", "mm"])
def test_right_gradients_pass_there(op, implementation):
    own = load(implementation)
    found = [case for case, saved in drawn(op) if saved]
    assert len(found) > 5
    assert {runner.judge(case, own, CPU, ("gradients",)).status for case in found} == {"passed"}
