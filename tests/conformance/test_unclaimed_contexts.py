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


class _Mm(torch.autograd.Function):
    """A product that saves what autocast casts, or its operands as they came."""

    @staticmethod
    def forward(ctx, input, mat2, is_cast):
        ctx.dtypes = input.dtype, mat2.dtype
        result = torch.mm(input, mat2)
        ctx.save_for_backward(*((one.to(result.dtype) if is_cast else one) for one in (input, mat2)))
        return result

    @staticmethod
    def backward(ctx, dout):
        input, mat2 = ctx.saved_tensors
        return (dout @ mat2.mT).to(ctx.dtypes[0]), (input.mT @ dout).to(ctx.dtypes[1]), None


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


@pytest.mark.parametrize("is_cast", [False, True])
def test_the_backward_pass_comes_after_the_region_of_autocast(is_cast):
    case = Case(op="mm", args=(spec(5, 33), spec(33, 7)))
    finding = judged("autocast", case, _own(lambda input, mat2: _Mm.apply(input, mat2, is_cast), "mm"))
    assert finding.status == (PASSED if is_cast else FAILED)
    assert is_cast or "the backward pass raised RuntimeError" in finding.message


def test_a_gradient_that_is_wrong_in_autocast_is_caught():
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx, input):
            ctx.inside = torch.is_autocast_enabled("cpu")
            ctx.save_for_backward(input.exp())
            return input.exp()

        @staticmethod
        def backward(ctx, dout):
            return dout * ctx.saved_tensors[0] * (2 if ctx.inside else 1)

    assert FAILED in _statuses("autocast", Twice.apply)
    detached = {judged("autocast", case, _own(_detached_in_autocast)).status for case in _calls()[:8]}
    assert FAILED in detached


def test_a_gradient_of_one_operand_that_is_lost_in_autocast_is_caught():
    def mm(input, mat2):
        return torch.mm(input, mat2.detach() if torch.is_autocast_enabled("cpu") else mat2)

    assert judged("autocast", Case(op="mm", args=(spec(5, 33), spec(33, 7))), _own(mm, "mm")).status == FAILED


def _detached_in_autocast(input):
    return input.detach().exp() if torch.is_autocast_enabled("cpu") else input.exp()


def test_autocast_in_another_dtype_than_torchs_passes():
    def mm(input, mat2):
        with torch.autocast("cpu", enabled=False):
            return torch.mm(input, mat2)

    case = Case(op="mm", args=(spec(5, 33), spec(33, 7)))
    assert judged("autocast", case, _own(mm, "mm")).status == PASSED
    assert judged("autocast", case, _own(torch.mm, "mm")).status == PASSED
