"""Checks of vmap, opcheck and export: what they find, what they leave alone."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from test_contexts import CASES, CPU, claiming, judged, spec

from conformance import runner
from conformance.cases import Case
from conformance.checks import DEVIATION, FAILED, PASSED, UNCLAIMED
from conformance.implementations import Implementation, load
from conformance.selftest import correct, defect_registry
from conformance.selftest import dispatcher as planted
from strategies.specs import Layout

BANK = defect_registry.bank()
HALF = {"dtype": "float16"}
MORE = CASES | {
    "softmax": Case(op="softmax", args=(spec(5, 33), 1)),
    "mul": Case(op="mul", args=(spec(5, 33), spec(5, 33))),
    "bmm": Case(op="bmm", args=(spec(6, 5, 9), spec(6, 9, 7))),
    "cos": Case(op="cos", args=(spec(5, 33, **HALF),)),
    "neg": Case(op="neg", args=(spec(5, 33, **HALF),)),
    "sigmoid": Case(op="sigmoid", args=(spec(5, 33),)),
    "silu": Case(op="silu", args=(spec(5, 33, **HALF),)),
    "rms_norm": Case(op="rms_norm", args=(spec(6, 33), (33,))),
    "rsqrt": Case(op="rsqrt", args=(spec(5, 33, layout=Layout(order=(1, 0))),)),
    "sub": Case(op="sub", args=(spec(4, 5, 4, seed=6), spec(5, 4))),
}


@pytest.mark.parametrize("op", ["add", "exp", "softmax", "layer_norm", "mm", "quantize_fp8"])
@pytest.mark.parametrize("check", ["vmap", "opcheck", "export"])
def test_ntops_passes(check, op):
    finding = judged(check, MORE[op], load("ntops.torch"))
    assert (finding.status, finding.message) == (PASSED, "")


@pytest.mark.parametrize("op", ["add", "exp", "softmax", "mm"])
def test_torch_passes(op):
    for check in ("vmap", "export"):
        assert judged(check, MORE[op], load("torch")).status == PASSED
    # Its operators are no library's own.
    assert judged("opcheck", MORE[op], load("torch")).status == UNCLAIMED


WRONG = {
    "vmap": [
        ("softmax_vmap_no_rule", "raised RuntimeError: Batching rule not implemented"),
        ("exp_vmap_element_read", "raised RuntimeError: vmap: It looks like you're calling .item()"),
        ("mul_vmap_first_for_all", "part 1: "),
        ("softmax_vmap_dim_of_the_whole", "elements are wrong"),
        ("sub_vmap_dims_not_aligned", "raised RuntimeError: The size of tensor a (4) must match"),
        ("mm_vmap_rounds_in_batch", "part 0: "),
        ("neg_vmap_float32_in_batch", "the second returned shape [5, 33], dtype torch.float32"),
    ],
    "opcheck": [
        ("sigmoid_opcheck_no_fake", "test_faketensor of ntops_selftest.sigmoid_no_fake"),
        ("cos_opcheck_fake_float32", "test_faketensor of ntops_selftest.cos_fake_float32"),
        ("rsqrt_opcheck_fake_contiguous", "test_faketensor of ntops_selftest.rsqrt_fake_contiguous"),
        ("cos_opcheck_fake_reads", "test_faketensor of ntops_selftest.cos_fake_reads"),
        ("neg_opcheck_writes_operand", "test_schema of ntops_selftest.neg_writes_operand"),
        ("abs_opcheck_returns_operand", "mismatch in outputs_alias_inputs"),
        ("mm_opcheck_no_operator", "made of no operator that is registered"),
    ],
    "export": [
        ("layer_norm_export_constant_sizes", "raised "),
        ("add_export_element_in_program", "raised "),
        ("bmm_export_by_numpy", "raised "),
        ("silu_export_float32_in_program", "dtype torch.float32"),
        ("mul_export_rounds_in_program", "elements are wrong"),
    ],
}


@pytest.mark.parametrize(("check", "name", "message"), [(check, *one) for check in WRONG for one in WRONG[check]])
def test_wrong_ones_are_caught(check, name, message):
    defect = BANK[name]
    finding = judged(check, MORE[defect.op], defect.implementation)
    assert finding.status == FAILED
    assert message in finding.message


@pytest.mark.parametrize("check", ["opcheck", "export"])
def test_who_claims_nothing_is_not_called(check):
    def exp(input, *, out=None):
        assert type(input) is torch.Tensor
        assert not torch._C._len_torch_dispatch_stack()
        return torch.exp(input, out=out)

    quiet = Implementation("quiet", SimpleNamespace(exp=exp), {})
    trial = runner.tried(runner.prepare(CASES["exp"], CPU), quiet)
    assert check not in runner.applicable(trial, None)
    finding = runner.CHECKS[check](runner.dataclasses.replace(trial, bare=pytest.fail))
    assert finding.status == UNCLAIMED


@pytest.mark.parametrize(("check", "status"), [("vmap", PASSED), ("export", FAILED)])
def test_a_refusal_that_says_so_is_right_of_vmap_alone(check, status):
    def exp(input, *, out=None):
        if torch._C._functorch.is_batchedtensor(input) or torch.compiler.is_compiling():
            raise NotImplementedError("argument 'input' is batched, which is left out")
        return torch.exp(input, out=out)

    assert judged(check, CASES["exp"], claiming("exp", check, exp)).status == status


def test_what_torch_refuses_in_a_batch_may_be_refused():
    """An element of a tensor with a batch decides."""
    case = Case(op="clamp", args=(spec(9), 0.0, spec()))

    def clamp(input, min=None, max=None, *, out=None):
        if torch._C._functorch.is_batchedtensor(max):
            raise RuntimeError("an element is missing")
        return torch.clamp(input, min, max.item() if isinstance(max, torch.Tensor) else max, out=out)

    def refusing(**how):
        made = trial.bare(**how)
        return runner.dataclasses.replace(made, error=RuntimeError("vmap: .item()")) if how.get("context") else made

    trial = runner.tried(runner.prepare(case, CPU), claiming("clamp", "vmap", clamp))
    outcomes = [
        runner.CHECKS["vmap"](runner.dataclasses.replace(trial, theirs=one)) for one in (trial.theirs, refusing)
    ]
    assert outcomes[1].status == PASSED


def test_an_operator_without_a_kernel_of_gradients_is_caught():
    make = planted.registered_as("exp", "no_gradient", lambda reference, input: reference(input), torch.empty_like)

    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, input):
            result = make(correct.right("exp"), input)
            ctx.save_for_backward(result)
            return result

        @staticmethod
        def backward(ctx, gradient):
            return ctx.saved_tensors[0] * gradient

    own = Implementation("own", SimpleNamespace(exp=Doubled.apply), {"*": ("opcheck", "gradients")})
    # Some require a gradient, by their seeds.
    seen = [judged("opcheck", Case(op="exp", args=(spec(5, seed=seed),)), own).message for seed in range(8)]
    assert any("test_autograd_registration" in message for message in seen)


def test_a_part_of_the_batch_shows_sizes_that_became_constants():
    """Of a call whose batch is too small for a part nothing shows."""
    own = BANK["exp_export_constant_sizes"].implementation
    findings = [judged("export", Case(op="exp", args=(spec(size),)), own) for size in (3, 9)]
    assert [finding.status for finding in findings] == [PASSED, FAILED]


def test_torchs_batches_round_more():
    case = Case(op="addmm", args=(spec(5, **HALF), spec(4, 9, **HALF), spec(9, 5, **HALF)))
    assert judged("vmap", case, load("torch")).status == DEVIATION
    assert judged("vmap", case, load("ntops.torch")).status == PASSED
