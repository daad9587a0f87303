"""Tests of what models, optimizers and their helpers do with a call: autograd's refusals, other names of dims, far
numbers."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from msgspec.structs import replace

from conformance import call_contexts, forms, runner
from conformance.cases import Case
from conformance.implementations import Implementation
from conformance.profiles import PROFILES
from conformance.selftest import defect_registry, search
from strategies.specs import TensorSpec

CPU = torch.device("cpu")
X = TensorSpec((5, 7), "float32", seed=1)
BANK = defect_registry.bank()


@pytest.mark.parametrize(
    "name",
    [
        "cross_entropy_gradient_loss_of_one_without_smoothing",
        "exp_gradient_ones_are_read_at_the_result",
        "mean_dims_are_plain_ints",
        "mean_dim_without_dims_is_none",
        "amax_numpys_names_are_dropped",
        "fused_gated_mlp_halves_of_one_weight",
    ],
)
def test_some_that_get_them_wrong_are_caught(name):
    defect = BANK[name]
    (result,), _ = search.study(defect.op, [defect], (), PROFILES["ci"])
    assert result.killed


def judged(op: str, function, case: Case, check: str) -> dict[str, str]:
    """The messages of a failed check of an implementation that claims gradients."""
    implementation = Implementation("own", SimpleNamespace(**{op: function}), {op: ("gradients",)})
    verdict = runner.judge(case, implementation, CPU, [check])
    return {finding.check: finding.message for finding in verdict.findings if finding.status == "failed"}


def unrecorded(function):
    """The function as one that knows nothing of gradients calls its kernel."""

    def call(*args, **kwargs):
        with torch.no_grad():
            return function(*args, **kwargs)

    return call


def careful(function):
    """The function as one that refuses what it would write if that requires a gradient, whatever the mode."""

    def call(*args, out=None, **kwargs):
        if out is not None and out.requires_grad:
            raise RuntimeError("out= requires a gradient")
        return function(*args, out=out, **kwargs)

    return call


def test_a_result_without_its_gradient_is_not_written():
    case = Case(op="add", args=(X, replace(X, seed=2)))
    assert judged("add", torch.add, case, "out_argument") == {}
    found = judged("add", unrecorded(torch.add), case, "out_argument")
    assert "took a call that torch refuses" in found["out_argument"]
    assert call_contexts.TRAINING in found["out_argument"]
    assert "torch takes this call" in judged("add", careful(torch.add), case, "out_argument")["out_argument"]


def test_a_leaf_is_not_written_where_gradients_are_recorded():
    """In one of two cases, of which the other half asks for the same without gradient mode."""
    cases = [Case(op="relu", args=(replace(X, seed=seed),)) for seed in range(16)]
    relu = torch.nn.functional.relu
    assert all(judged("relu", relu, case, "inplace") == {} for case in cases)
    found = [judged("relu", unrecorded(relu), case, "inplace").get("inplace", "") for case in cases]
    assert any(call_contexts.LEAVES in message for message in found)


@pytest.mark.parametrize("form", [forms.AXES, forms.DIM_TENSORS])
def test_dims_that_torchs_dispatcher_alone_knows_may_be_refused_but_not_mistaken(form):
    case = Case(op="mean", args=(X, 1), form=form)
    assert runner.judge(case, "torch", CPU).status == "passed"

    def strict(input, dim=None, keepdim=False, *, dtype=None, out=None):
        if dim is not None and not isinstance(dim, int | tuple | list):
            raise TypeError("dim must be an int")
        return torch.mean(input, dim, keepdim, dtype=dtype, out=out)

    def lenient(input, dim=None, keepdim=False, *, dtype=None, out=None, **options):
        return strict(input, dim if isinstance(dim, int) else None, keepdim, dtype=dtype, out=out)

    for function, status in ((strict, runner.NOT_PROVIDED), (lenient, "failed")):
        verdict = runner.judge(case, Implementation("own", SimpleNamespace(mean=function), {}), CPU)
        assert verdict.status == status, verdict


def test_flags_of_another_type_may_be_refused_but_not_mistaken():
    case = Case(op="relu", args=(X,), kwargs={"inplace": True}, form=forms.FLAGS)
    assert runner.judge(case, "torch", CPU).status == "passed"

    def strict(input, inplace=False):
        if not isinstance(inplace, bool):
            raise TypeError("inplace must be a bool")
        return torch.nn.functional.relu(input, inplace)

    def mistaken(input, inplace=False):
        return torch.nn.functional.relu(input, inplace is True)

    for function, status in ((strict, runner.NOT_PROVIDED), (mistaken, "failed")):
        verdict = runner.judge(case, Implementation("own", SimpleNamespace(relu=function), {}), CPU)
        assert verdict.status == status, verdict


def test_a_number_may_be_beyond_float16():
    """65,536, the scale of a loss, is finite in what float16 is computed in."""
    small = TensorSpec((64,), "float16", values="normal_small", seed=3)
    found = []
    for seed in range(24):
        case = Case(op="mul", args=(replace(small, seed=seed), 2.5))
        defect = BANK["mul_numbers_as_float16"]
        verdict = runner.judge(case, defect.implementation, CPU, ["plain_operands"])
        found += [finding.message for finding in verdict.findings if finding.status == "failed"]
    assert found
    assert all("a number beyond the dtype" in message for message in found)
