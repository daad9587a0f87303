"""The check of the transforms of torch.func: what it finds, what it leaves alone."""

from __future__ import annotations

import msgspec
import pytest
import torch
from test_contexts import claiming, judged, spec
from test_dispatcher import MORE

from conformance import gradient_calls
from conformance.cases import Case
from conformance.checks import FAILED, PASSED
from conformance.implementations import load
from conformance.selftest import defect_registry

BANK = {defect.name: defect for defect in defect_registry.bank().values() if defect.check == "transforms"}
ALL = MORE | {
    "gelu": Case(op="gelu", args=(spec(5, 33),)),
    "tanh": Case(op="tanh", args=(spec(5, 33),)),
    "matmul": Case(op="matmul", args=(spec(6, 5, 9), spec(9, 7))),
    "log_softmax": Case(op="log_softmax", args=(spec(5, 33), 1)),
    "addmm": Case(op="addmm", args=(spec(7), spec(5, 9), spec(9, 7))),
    "sum": Case(op="sum", args=(spec(5, 33), 1)),
    "cos": Case(op="cos", args=(spec(5, 33),)),
    "silu": Case(op="silu", args=(spec(5, 33),)),
    "abs": Case(op="abs", args=(spec(5, 33),)),
    "logsumexp": Case(op="logsumexp", args=(spec(5, 33), 1)),
}


def with_seed(case, seed):
    """The same call with other numbers: the seed of a case chooses the transform."""
    return msgspec.structs.replace(case, args=(msgspec.structs.replace(case.args[0], seed=seed), *case.args[1:]))


def findings(case, implementation, count=12):
    return [judged("transforms", with_seed(case, seed), implementation) for seed in range(count)]


@pytest.mark.parametrize("name", ["torch", "ntops.torch"])
@pytest.mark.parametrize("op", ["add", "exp", "softmax", "layer_norm", "mm", "sum"])
def test_right_ones_pass(name, op):
    assert [(one.status, one.message) for one in findings(ALL[op], load(name))] == [(PASSED, "")] * 12


@pytest.mark.parametrize("name", BANK)
def test_wrong_ones_are_caught(name):
    found = [one for one in findings(ALL[BANK[name].op], BANK[name].implementation) if one.status == FAILED]
    assert found
    assert all("torch.func" in one.message for one in found)


def test_each_transform_is_made():
    def exp(input, *, out=None):
        if torch._C._functorch.maybe_current_level() is not None:
            raise ValueError("no transform")
        return torch.exp(input, out=out)

    messages = [one.message for one in findings(ALL["exp"], claiming("exp", "transforms", exp), 30) if one.message]
    assert all("raised ValueError: no transform" in one for one in messages)
    made = {one.split(": ")[0].removeprefix("by ") for one in messages}
    # Forward mode may be left out.
    assert made == set(gradient_calls.TRANSFORMS.values()) - {"torch.func.jvp"}


def test_who_leaves_transforms_out_may_say_so():
    def exp(input, *, out=None):
        if torch._C._functorch.is_gradtrackingtensor(input):
            raise NotImplementedError("argument 'input' is of a transform")
        return torch.exp(input, out=out)

    assert {one.status for one in findings(ALL["exp"], claiming("exp", "transforms", exp))} == {PASSED}


def test_nobody_has_to_be_nearer_than_torch_composed_of_several_steps():
    """torch's derivative of silu rounds each step to the half type under a transform, and no other one does."""
    half = Case(op="silu", args=(spec(5, 33, dtype="bfloat16"),))
    assert {one.status for one in findings(half, load("torch"))} == {PASSED}

    def silu(input, inplace=False):
        result = torch.nn.functional.silu(input, inplace)
        return result * 1.5 - result.detach() / 2 if torch._C._functorch.is_gradtrackingtensor(input) else result

    assert FAILED in {one.status for one in findings(half, claiming("silu", "transforms", silu))}
