"""The check of calls with tensors of other kinds: what it finds, and what it leaves alone."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import pytest
import torch
from test_contexts import CPU, judged, spec

from conformance import kind_calls, runner
from conformance.cases import Case
from conformance.checks import FAILED, PASSED
from conformance.checks.kinds import has_kinds, kinds, possible
from conformance.implementations import Implementation, load
from conformance.selftest import defect_registry
from strategies.specs import Layout, Special, TensorSpec

WHOLE = TensorSpec((5, 3), "int32")
BYTES = TensorSpec((5, 3), "uint8")
CASES = {
    **{
        op: Case(op=op, args=(spec(5, 33),))
        for op in (
            "exp",
            "sin",
            "cos",
            "neg",
            "tanh",
            "abs",
            "sum",
            "mean",
            "amax",
            "amin",
            "isnan",
            "isinf",
            "relu",
            "silu",
            "gelu",
            "sigmoid",
        )
    },
    **{op: Case(op=op, args=(spec(5, 33), 1.5)) for op in ("mul", "add", "sub", "div", "eq", "ne", "pow")},
    **{op: Case(op=op, args=(spec(5, 33), spec(33))) for op in ("lt", "gt", "le")},
    # Of all dims there is no ``out``.
    "sum": Case(op="sum", args=(spec(5, 33), 1)),
    "clamp": Case(op="clamp", args=(spec(5, 33), 0.5)),
    "mm": Case(op="mm", args=(spec(5, 9), spec(9, 7))),
    "matmul": Case(op="matmul", args=(spec(5, 9), spec(9, 7))),
    "bmm": Case(op="bmm", args=(spec(2, 5, 9), spec(2, 9, 7))),
    "bitwise_or": Case(op="bitwise_or", args=(WHOLE, 5)),
    "bitwise_and": Case(op="bitwise_and", args=(WHOLE, WHOLE)),
}
OWN = [one for one in defect_registry.bank().values() if one.check == "kinds"]


@pytest.mark.parametrize("defect", OWN, ids=lambda one: one.name)
def test_what_mistakes_them_is_caught(defect):
    case = CASES[defect.op]
    if defect.name.endswith("another_dtype_is_cleared"):
        case = Case(op=defect.op, args=(spec(5, 33, dtype="int32"),) if defect.op == "exp" else (BYTES, BYTES))
    if defect.name.endswith(("compared_with_real", "the_last_stored", "by_its_address", "is_one_tensor")):
        # A number has no imaginary part to lose, is stored once, and has no rows.
        case = Case(op=defect.op, args=(spec(5, 33), spec(5, 33)))
    finding = judged("kinds", case, defect.implementation)
    assert finding.status == FAILED
    assert finding.message.startswith(kind_calls.ALL)


@pytest.mark.parametrize("implementation", ["torch", "ntops.torch"])
@pytest.mark.parametrize("op", ["add", "sub", "mul", "eq", "lt", "clamp"])
def test_torch_and_what_refuses_two_of_them_pass(op, implementation):
    finding = judged("kinds", Case(op=op, args=(spec(5, 33), spec(5, 33))), load(implementation))
    assert (finding.status, finding.message) == (PASSED, "")


@pytest.mark.parametrize("implementation", ["torch", "ntops.torch"])
@pytest.mark.parametrize("op", CASES)
def test_torch_and_what_refuses_them_pass(op, implementation):
    finding = judged("kinds", CASES[op], load(implementation))
    assert (finding.status, finding.message) == (PASSED, "")


def test_each_kind_is_made_as_it_is_called():
    seen = []

    def exp(input):
        seen.append(input)
        return torch.exp(input)

    claims = {"exp": ("fake",)}
    assert judged("kinds", CASES["exp"], Implementation("own", SimpleNamespace(exp=exp), claims)).status == PASSED
    seen = [one for one in seen if type(one) is torch.Tensor]
    assert any(one.is_complex() and not one.is_conj() for one in seen)
    assert any(one.is_conj() for one in seen)
    # torch has no exp of sparse tensors, so that it is not asked.
    assert {one.layout for one in seen} == {torch.strided}
    assert not any(one.is_quantized for one in seen)
    assert any(one.is_meta for one in seen)
    # A kernel that is launched on a tensor without memory ends the process.
    for kernels in ("", "interpreted"):
        seen.clear()
        judged("kinds", CASES["exp"], Implementation("own", SimpleNamespace(exp=exp), {}, kernels=kernels))
        assert seen
        assert any(one.is_meta for one in seen) == (not kernels)


def test_who_is_at_home_in_torch_keeps_a_subclass():
    def mul(input, other):
        return torch.mul(input, other).as_subclass(torch.Tensor)

    provider = SimpleNamespace(mul=mul)
    finding = judged("kinds", CASES["mul"], Implementation("own", provider, {"mul": ("fake",)}))
    assert finding.status == FAILED
    assert finding.message.startswith(kind_calls.SUBCLASS)
    assert judged("kinds", CASES["mul"], Implementation("own", provider, {})).status == PASSED


def test_what_torch_refuses_of_complex_numbers_nobody_takes():
    """Of other kinds it is not judged: torch lacks them on one device and has them on another."""

    def real(input, *args):
        return torch.amax(input.real if input.is_complex() else input, *args)

    def signed(input, other):
        return torch.lt(*(one.view(torch.int32) if one.dtype == torch.uint32 else one for one in (input, other)))

    provider = Implementation("own", SimpleNamespace(amax=real, lt=signed), {})
    finding = judged("kinds", CASES["amax"], provider)
    assert finding.status == FAILED
    assert "took what torch refuses with NotImplementedError" in finding.message
    assert judged("kinds", Case(op="lt", args=(WHOLE, WHOLE)), provider).status == PASSED


def test_one_operand_is_complex_and_differs_in_its_imaginary_part_alone():
    seen = []

    def eq(input, other, *, out=None):
        seen.append((input, other, out))
        return torch.eq(input, other, out=out)

    case = Case(op="eq", args=(spec(5, 33), spec(33)))
    assert judged("kinds", case, Implementation("own", SimpleNamespace(eq=eq), {})).status == PASSED
    mixed = [pair[:2] for pair in seen if pair[0].is_complex() != pair[1].is_complex()]
    assert mixed
    assert all(bool(((one.real == other.real) & (one != other)).any()) for one, other in mixed)
    assert any(bool(one.imag.isnan().any() and not one.real.isnan().any()) for one, *_ in seen if one.is_complex())
    outs = {(input.is_complex(), out.dtype) for input, _, out in seen if out is not None}
    assert outs == {(False, torch.complex64), (True, torch.bool)}


def test_what_overflows_in_other_ways_is_left_alone():
    large = Case(op="mul", args=(TensorSpec((5, 3), "float32", specials=(Special(2, "max"),)), 1.5))
    trial = runner.tried(runner.prepare(large, CPU), load("ntops.torch"))
    assert possible(trial) == [kind_calls.META]


def test_random_and_written_operands_are_left_alone():
    for case in (
        Case(op="dropout", args=(spec(5, 33),)),
        Case(op="relu", args=(spec(5, 33),), kwargs={"inplace": True}),
        Case(op="fused_gated_mlp", args=(spec(2, 8), spec(3, 8), spec(3, 8))),
    ):
        assert not has_kinds(runner.tried(runner.prepare(case, CPU), load("ntops.torch")))


def test_rounding_errors_alone_are_no_difference():
    """Of a row of equal elements, torch leaves nothing, or rounding errors, which no share of the result bounds."""

    def layer_norm(input, normalized_shape):
        return torch.nn.functional.layer_norm(input, normalized_shape) + 3e-14

    row = spec(1, 4096, dtype="float64", layout=Layout(expanded=(1,)))
    provider = Implementation("own", SimpleNamespace(layer_norm=layer_norm), {"layer_norm": ("fake",)})
    for check in ("values", "kinds", "signature"):
        finding = judged(check, Case(op="layer_norm", args=(row, (4096,))), provider)
        assert (finding.status, finding.message) == (PASSED, "")


def test_torch_is_no_measure_where_its_plain_answer_is_wrong_or_its_devices_differ():
    def exp(input):
        return torch.exp(input)

    own = Implementation("own", SimpleNamespace(exp=exp), {"exp": ("fake",)})
    trial = runner.tried(runner.prepare(CASES["exp"], CPU), own)
    wrong = dataclasses.replace(trial.reference, value=trial.reference.value * 2)

    def doubled(*, on_cpu=False, **how):
        found = trial.theirs(**how)
        changes = not on_cpu and how["context"]["which"] == kind_calls.SUBCLASS
        if changes:
            found = dataclasses.replace(found, value=(found.value[0], found.value[1] * 2))
        return found

    # By whichever device.
    always = dataclasses.replace(trial, theirs=lambda on_cpu=False, **how: doubled(**how))
    assert kinds(always).status == FAILED
    assert kinds(dataclasses.replace(always, reference=wrong)).status == PASSED
    assert kinds(dataclasses.replace(trial, theirs=doubled)).status == PASSED
