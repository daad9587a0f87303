"""Calls under autocast and torch.func's transforms may be refused by who does not claim them, but not be wrong."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from test_contexts import judged, spec

from conformance import cases
from conformance.cases import Case
from conformance.checks import FAILED, PASSED, UNCLAIMED
from conformance.gradient_calls import FORWARD, TRANSFORMS
from conformance.implementations import Implementation


class _Exp(torch.autograd.Function):
    """e^x, with rules for forward mode and batches that are right."""

    @staticmethod
    def forward(x):
        return x.exp()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(output)
        ctx.save_for_forward(output)

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.saved_tensors[0]

    @staticmethod
    def jvp(ctx, tangent):
        return tangent * ctx.saved_tensors[0]

    @staticmethod
    def vmap(info, in_dims, x):
        return x.movedim(in_dims[0], 0).exp(), 0


class _WrongTangent(_Exp):
    @staticmethod
    def jvp(ctx, tangent):
        return 2 * tangent * ctx.saved_tensors[0]


class _WrongBatch(_Exp):
    @staticmethod
    def vmap(info, in_dims, x):
        # Forgets which dim the batch is.
        return x.exp(), 0


def _by_pointer(input):
    # As a launch of a kernel asks for it.
    assert input.data_ptr()
    return input.detach().exp()


def _raises_in_autocast(input):
    if torch.is_autocast_enabled("cpu"):
        raise RuntimeError("not here")
    return input.exp()


def _wrong_in_autocast(input):
    return input.exp() * (1.5 if torch.is_autocast_enabled("cpu") else 1.0)


def _own(function, name="exp"):
    return Implementation("own", SimpleNamespace(**{name: function}), {})


def _calls(how=None):
    """Return calls for which the check tries other things; ``how``: this transform."""
    tried = [Case(op="exp", args=(spec(5, 33, seed=seed),)) for seed in range(48)]
    # As ``transforms`` chooses.
    return [one for one in tried if how is None or cases.seed(one) // 7 % len(TRANSFORMS) == [*TRANSFORMS].index(how)]


def _statuses(check, function, how=None):
    return {judged(check, case, _own(function)).status for case in _calls(how)[:8]}


@pytest.mark.parametrize("check", ["vmap", "transforms", "autocast"])
def test_what_is_right_or_refused_passes(check):
    for function in (_Exp.apply, torch.exp):
        assert _statuses(check, function) <= {PASSED, UNCLAIMED}
    assert PASSED in _statuses(check, torch.exp)


@pytest.mark.parametrize("check", ["vmap", "transforms"])
def test_what_asks_for_a_pointer_is_refused_by_torch(check):
    assert _statuses(check, _by_pointer) == {UNCLAIMED}


def test_who_knows_of_no_gradient_under_a_transform_is_left_alone():
    def exp(input):
        return (
            input.exp()
            if input.requires_grad and not torch._C._functorch.is_functorch_wrapped_tensor(input)
            else (input.detach().exp())
        )

    assert _statuses("transforms", exp) <= {PASSED, UNCLAIMED}


def test_a_wrong_rule_for_batches_is_caught():
    assert FAILED in _statuses("vmap", _WrongBatch.apply)


def test_a_wrong_derivative_of_forward_mode_is_caught():
    assert _statuses("transforms", _WrongTangent.apply, FORWARD) == {FAILED}
    assert _statuses("transforms", _Exp.apply, FORWARD) == {PASSED}


def test_autocast_may_be_ignored_and_refused():
    assert _statuses("autocast", _raises_in_autocast) == {UNCLAIMED}
    assert _statuses("autocast", lambda input: input.exp()) == {PASSED}
    assert _statuses("autocast", _wrong_in_autocast) == {FAILED}


def test_autocast_in_another_dtype_than_torchs_passes():
    def mm(input, mat2):
        with torch.autocast("cpu", enabled=False):
            return torch.mm(input, mat2)

    case = Case(op="mm", args=(spec(5, 33), spec(33, 7)))
    assert judged("autocast", case, _own(mm, "mm")).status == PASSED
    assert judged("autocast", case, _own(torch.mm, "mm")).status == PASSED
