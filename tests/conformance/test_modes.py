"""Checks of calls under torch's modes and flags: what they find, what they leave alone."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from test_contexts import CASES, CPU, claiming, judged, spec

from conformance import mode_calls, process_state, runner
from conformance.cases import Case
from conformance.checks import FAILED, PASSED, UNCLAIMED
from conformance.implementations import Implementation, load
from conformance.selftest import correct, defect_registry
from conformance.selftest import modes as planted
from strategies.specs import TensorSpec

BANK = defect_registry.bank()
MORE = CASES | {
    "bmm": Case(op="bmm", args=(spec(2, 5, 9), spec(2, 9, 7))),
    "addmm": Case(op="addmm", args=(spec(7), spec(5, 9), spec(9, 7))),
    "mul": Case(op="mul", args=(spec(5, 33), 1.5)),
    "sub": Case(op="sub", args=(spec(5, 33), 1.5)),
    "scaled_dot_product_attention": Case(
        op="scaled_dot_product_attention", args=(spec(2, 3, 5, 16), spec(2, 3, 7, 16), spec(2, 3, 7, 16))
    ),
}
HALF = {
    "exp": Case(op="exp", args=(spec(5, 33, dtype="float16"),)),
    "float64": Case(op="mm", args=(spec(5, 9, dtype="float64"), spec(9, 7, dtype="float64"))),
}


@pytest.mark.parametrize("op", ["add", "exp", "softmax", "layer_norm", "mm", "addmm", "scaled_dot_product_attention"])
def test_right_calls_pass(op):
    for check in ("modes", "autocast"):
        finding = judged(check, MORE[op], load("ntops.torch"))
        assert (finding.status, finding.message) == (PASSED, "")


@pytest.mark.parametrize("seed", range(5))
def test_gradients_may_be_more_exact_than_torchs(seed):
    """Those of rows of two elements cancel, and torch's CPU rounds the statistics to half types."""
    case = Case(op="layer_norm", args=(TensorSpec((2, 2, 2), "float16", seed=seed), (2,)))
    finding = judged("autocast", case, load("ntops.torch"))
    assert (finding.status, finding.message) == (PASSED, "")


def test_gradients_of_scores_may_be_more_exact_than_torchs():
    """The derivatives of scores are sums whose terms cancel where few keys have weights."""

    def attention(query, key, value, scale=None, **options):
        if torch.is_autocast_enabled("cpu"):
            query, key, value = (one.to(torch.get_autocast_dtype("cpu")) for one in (query, key, value))
        wide = (one.double() for one in (query, key, value))
        result = torch.nn.functional.scaled_dot_product_attention(*wide, scale=scale, **options)
        return result.to(query.dtype)

    op = "scaled_dot_product_attention"
    for seed in range(12):
        query, key, value = (TensorSpec((1, 1, rows, 64), "float32", seed=seed) for rows in (1, 3, 3))
        case = Case(op=op, args=(query, key, value), kwargs={"scale": 2.0})
        finding = judged("autocast", case, claiming(op, "autocast", attention))
        assert (finding.status, finding.message) == (PASSED, "")


@pytest.mark.parametrize(("factor", "status"), [(1, PASSED), (2, FAILED)])
def test_gradients_of_attention_may_be_made_of_its_rounded_result(factor, status):
    """So kernels save memory. Where one key has nearly all the weight, little but the rounding is left of a query's."""

    class Flash(torch.autograd.Function):
        @staticmethod
        def forward(ctx, query, key, value, scale):
            ctx.scale, wide = scale, [one.double() for one in (query, key, value)]
            result = ((wide[0] @ wide[1].mT * scale).softmax(-1) @ wide[2]).to(query.dtype)
            ctx.save_for_backward(query, key, value, result)
            return result

        @staticmethod
        def backward(ctx, dout):
            query, key, value, result = (one.double() for one in ctx.saved_tensors)
            weights = (query @ key.mT * ctx.scale).softmax(-1)
            scores = weights * (dout.double() @ value.mT - (dout.double() * result).sum(-1, keepdim=True)) * ctx.scale
            found = scores @ key, scores.mT @ query, weights.mT @ dout.double() * factor
            return *(one.to(dout.dtype) for one in found), None

    def attention(query, key, value, *, scale):
        if torch.is_autocast_enabled("cpu"):
            query, key, value = (one.to(torch.get_autocast_dtype("cpu")) for one in (query, key, value))
        return Flash.apply(query, key, value, scale)

    op, found = "scaled_dot_product_attention", []
    for seed in (*range(8), 52, 107, 141, 213):
        operands = (TensorSpec((2, 1, rows, 1), "float32", seed=seed) for rows in (1, 129, 129))
        case = Case(op=op, args=tuple(operands), kwargs={"scale": 12.0})
        found.append(judged("autocast", case, claiming(op, "autocast", attention)).status)
    assert set(found) == {status}


@pytest.mark.parametrize("op", ["add", "exp", "softmax", "mm", "matmul"])
def test_casts_by_another_way_to_compute_pass(op):
    """The bound decides: the bits are not those of torch's function."""
    own = Implementation(
        "own", SimpleNamespace(**{op: planted.with_autocast(op, correct.right(op))}), {"*": ("autocast",)}
    )
    assert judged("autocast", MORE[op], own).status == PASSED


@pytest.mark.parametrize(
    ("name", "case", "message"),
    [
        ("mm_autocast_ignored", "mm", "dtype torch.float32, torch's is torch.bfloat16"),
        ("bmm_autocast_result_alone", "bmm", "elements are wrong"),
        ("addmm_autocast_always_bfloat16", "addmm", "autocast(dtype=torch.float16): dtype torch.bfloat16"),
        ("mm_autocast_first_alone", "mm", "being torch.bfloat16, operands of one dtype and of two differ"),
        ("mm_autocast_float64_too", "float64", "dtype torch.bfloat16, torch's is torch.float64"),
        ("exp_autocast_out_too", "exp", "out= of the right size: "),
        ("softmax_autocast_all_ops", "softmax", "dtype torch.bfloat16, torch's is torch.float32"),
        ("exp_autocast_list_of_cuda", "half", "dtype torch.float32, torch's is torch.float16"),
        ("mul_autocast_left_off", "mul", "the call changed autocast"),
    ],
)
def test_wrong_casts_are_caught(name, case, message):
    case = {**MORE, "half": HALF["exp"], "float64": HALF["float64"]}[case]
    finding = judged("autocast", case, BANK[name].implementation)
    assert finding.status == FAILED
    assert message in finding.message


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("mm_bfloat16_for_tf32", "allow reduced precision: values: "),
        ("exp_tf32_for_all", "allow reduced precision: values: "),
        ("bmm_sets_highest", "allow reduced precision, the call changed torch's float32 matmul precision"),
        ("matmul_allows_sums_of_halves", "forbid reduced precision, the call changed torch.backends.cuda.matmul"),
        ("sub_refuses_reduced", "allow reduced precision: errors: raised NotImplementedError"),
    ],
)
def test_calls_that_flags_make_wrong_are_caught(name, message):
    defect = BANK[name]
    finding = judged("modes", MORE[defect.op], defect.implementation)
    assert finding.status == FAILED
    assert message in finding.message


def test_products_may_have_the_precision_of_tf32_where_it_is_allowed():
    def mm(input, mat2, *, out=None):
        if torch.get_float32_matmul_precision() != "highest":
            # As many bits as TF32 has.
            input, mat2 = (one.half().float() for one in (input, mat2))
        return torch.mm(input, mat2, out=out)

    assert judged("modes", MORE["mm"], claiming("mm", "fake", mm)).status == PASSED


def test_who_claims_no_autocast_gets_none():
    def mm(input, mat2, *, out=None):
        assert not torch.is_autocast_enabled("cpu")
        return torch.mm(input, mat2, out=out)

    quiet = Implementation("quiet", SimpleNamespace(mm=mm), {})
    assert judged("autocast", MORE["mm"], quiet).status == UNCLAIMED
    assert judged("autocast", MORE["mm"], claiming("mm", "autocast", mm)).status == FAILED


def test_what_torch_lacks_is_not_cast():
    case = Case(op="quantize_fp8", args=(spec(5, 33),))
    assert "autocast" not in [one.check for one in runner.judge(case, load("ntops.torch"), CPU, ["autocast"]).findings]


@pytest.mark.parametrize("allowed", [False, True])
def test_flags_are_as_they_were(allowed):
    noted = process_state.note(CPU)
    with mode_calls.reduced_precision(allowed):
        assert torch.get_float32_matmul_precision() == ("high" if allowed else "highest")
        assert torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction is allowed
    assert process_state.restore(noted, CPU) == []
