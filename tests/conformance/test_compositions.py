"""Calls that meet others of the same library: what the judge finds of them, and that right ones pass."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from gradient_ways import with_way
from msgspec.structs import replace

from conformance import calls, drawing, profiles, repro, runner, sequence_variations
from conformance.cases import Case, Same, operands
from conformance.checks import FAILED, PASSED
from conformance.checks.gradient_kinds import Wish, wish
from conformance.implementations import Implementation, load
from conformance.selftest import defect_registry
from conformance.selftest.differentiable import differentiable
from conformance.spec import registry
from strategies.specs import TensorSpec

CPU = torch.device("cpu")
BANK = defect_registry.bank()


def spec(*shape: int, dtype: str = "float32", **more: Any) -> TensorSpec:
    return TensorSpec(shape, dtype, **more)


CASES = {
    "softmax": Case(op="softmax", args=(spec(5, 7), 1)),
    "mm": Case(op="mm", args=(spec(5, 9), spec(9, 7))),
    "mul": Case(op="mul", args=(spec(4, 6), spec(6))),
    "addmm": Case(op="addmm", args=(spec(7), spec(20, 9), spec(9, 7))),
    "silu": Case(op="silu", args=(spec(5, 7),)),
    "exp": Case(op="exp", args=(spec(5, 7),)),
    "add": Case(op="add", args=(spec(5, 7), spec(5, 7)), kwargs={"alpha": 2.5}),
    "rms_norm": Case(op="rms_norm", args=(spec(6, 9), (9,)), kwargs={"weight": spec(9)}),
    "dropout": Case(op="dropout", args=(spec(40, 30), 0.5, True)),
}


def asked(case: Case) -> Wish:
    return wish(case, runner.prepare(case, CPU).reference.value)


def whole(way: Wish) -> bool:
    apart = not any(isinstance(one, Same) for one in way.case.args)
    return (
        apart and all(0 not in one.shape for one in operands(way.case)) and len(way.wanted) == len(operands(way.case))
    )


def judged(case: Case, implementation: Implementation, check: str = "gradients") -> Any:
    (finding,) = runner.judge(case, implementation, CPU, [check]).findings
    return finding


@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [
        ("softmax_gradient_along_the_dim_of_the_last_call", "between", "that of operand 0 is wrong"),
        ("mm_gradient_one_buffer_of_a_backward_pass", "both", "is not the sum of both"),
        ("mul_gradient_one_buffer_of_a_backward_pass", "both", "is not the sum of both"),
        ("silu_gradient_over_gradients_of_its_own", "chained", "is another one than in two passes"),
        ("softmax_gradient_over_gradients_of_its_own", "chained", "is another one than in two passes"),
    ],
)
def test_gradients_of_several_calls(name: str, kind: str, message: str) -> None:
    defect = BANK[name]
    case = with_way(CASES[defect.op], lambda way: way.kind == kind and whole(way) and not way.case.form)
    finding = judged(case, defect.implementation)
    assert (finding.status, message in finding.message) == (FAILED, True), finding
    for right in (
        load("torch"),
        Implementation("right", SimpleNamespace(**{defect.op: differentiable(defect.op)}), {}),
    ):
        assert judged(case, right).status == PASSED


def test_a_script_is_no_proof_of_several_calls() -> None:
    """It compares the gradients of one."""
    case = with_way(CASES["mm"], lambda way: way.kind == "both" and whole(way) and not way.case.form)
    verdict = runner.judge(case, BANK["mm_gradient_one_buffer_of_a_backward_pass"].implementation, CPU, ["gradients"])
    with pytest.raises(repro.ReproError, match="compares gradients alone"):
        repro.script(case, verdict, load("torch"), CPU)


@pytest.mark.parametrize("op", ["mm", "addmm", "mul", "rms_norm"])
def test_calls_without_rows_have_gradients(op: str) -> None:
    case = with_way(CASES[op], lambda way: not whole(way) and any(0 in one.shape for one in operands(way.case)))
    left = [one.shape for one in operands(asked(case).case)]
    assert any(0 not in shape for shape in left)
    for name in ("torch", "ntops.torch"):
        assert judged(case, load(name)).status == PASSED


def test_what_nobody_wrote_is_found() -> None:
    def emptied(way: Wish) -> bool:
        first, *others = operands(way.case)
        return 0 in first.shape and 1 in way.wanted and all(0 not in one.shape for one in others)

    case = with_way(Case(op="mm", args=(spec(5, 9), spec(9, 7))), emptied)
    assert judged(case, BANK["mm_gradient_of_no_terms_unwritten"].implementation).status == FAILED


def test_gradients_and_numbers_are_the_callers_own() -> None:
    class HandsOut(torch.autograd.Function):
        @staticmethod
        def forward(ctx, input):
            result = torch.exp(input)
            ctx.save_for_backward(result, result.clone())
            return result

        @staticmethod
        def backward(ctx, *douts):
            result, own = ctx.saved_tensors
            return own if bool((douts[0] == 1).all()) else douts[0] * result

    # As loss.backward() begins.
    case = with_way(Case(op="exp", args=(spec(),)), lambda way: way.kind == "twice" and way.dout.values == "listed:1")
    handed_out = Implementation("own", SimpleNamespace(exp=HandsOut.apply), {})
    assert judged(case, handed_out).status == FAILED
    assert judged(case, load("torch")).status == PASSED
    case = with_way(
        CASES["add"],
        lambda way: (way.case.form, way.kind, way.saved) == ("0-d tensors", "contiguous", "") and whole(way),
    )
    assert judged(case, BANK["add_gradient_alpha_read_again"].implementation).status == FAILED
    assert judged(case, load("torch")).status == PASSED


def test_who_saves_a_number_as_a_tensor_may_notice_its_change() -> None:
    def add(input, other, *, alpha=1):
        return input + alpha * other

    case = with_way(
        CASES["add"],
        lambda way: (way.case.form, way.kind, way.saved) == ("0-d tensors", "contiguous", "") and whole(way),
    )
    assert judged(case, Implementation("own", SimpleNamespace(add=add), {})).status == PASSED

    def wrong(input, other, *, alpha=1):
        return input + alpha * (other + 0 * other.detach() + (other - other.detach()))

    assert judged(case, Implementation("own", SimpleNamespace(add=wrong), {})).status == FAILED


def test_what_has_no_elements_needs_no_meta_tensor() -> None:
    def silu(input, inplace=False):
        if not input.numel():
            return torch.empty(input.shape, dtype=input.dtype)
        return torch.nn.functional.silu(input, inplace)

    implementation = Implementation("own", SimpleNamespace(silu=silu), {})
    assert judged(Case(op="silu", args=(spec(0, 7),)), implementation, "kinds").status == PASSED


def test_gradients_of_empty_attention_are_right() -> None:
    call = Case(op="scaled_dot_product_attention", args=(spec(2, 3, 5, 8), spec(2, 3, 6, 8), spec(2, 3, 6, 8)))
    right = Implementation("right", SimpleNamespace(**{call.op: differentiable(call.op)}), {})
    seen = 0
    for seed in range(400):
        case = replace(call, args=(replace(call.args[0], seed=seed), *call.args[1:]))
        way = asked(case)
        if any(0 in one.shape for one in operands(way.case)):
            seen += 1
            assert not way.dout.specials
            finding = judged(case, right)
            assert finding.status == PASSED, finding
    assert seen


def test_a_thread_that_returns_nothing_is_found() -> None:
    def dropout(input, p=0.5, training=True, inplace=False):
        main = threading.current_thread() is threading.main_thread()
        return torch.nn.functional.dropout(input, p, training, inplace) if main else None

    finding = judged(CASES["dropout"], Implementation("own", SimpleNamespace(dropout=dropout), {}), "distribution")
    assert (finding.status, "in another thread" in finding.message) == (FAILED, True), finding


@pytest.mark.parametrize(
    ("name", "check", "message"),
    [
        ("silu_own_results_are_temporaries", "bare", "in results of the implementation's own"),
        ("relu_own_results_are_not_negative", "bare", "in results of the implementation's own"),
        ("mm_inside_a_backward_pass_in_bfloat16", "modes", "inside a backward pass"),
        ("dropout_threads_have_generators_of_one_seed", "distribution", "in another thread"),
    ],
)
def test_states(name: str, check: str, message: str) -> None:
    defect = BANK[name]
    case = CASES.get(defect.op, Case(op=defect.op, args=(spec(5, 7),)))
    finding = judged(case, defect.implementation, check)
    assert (finding.status, message in finding.message) == (FAILED, True), finding
    for one in ("torch", "ntops.torch"):
        assert judged(case, load(one), check).status == PASSED


def test_one_mask_of_a_batch_is_found() -> None:
    @torch.library.custom_op("compositions::mask", mutates_args=())
    def mask(sizes: list[int], keep: float) -> torch.Tensor:
        return torch.empty(sizes).bernoulli_(keep)

    def dropout(input, p=0.5, training=True, inplace=False):
        if not torch._C._are_functorch_transforms_active():
            return torch.nn.functional.dropout(input, p, training, inplace)
        return input * (mask(list(input.shape), 1 - p) / (1 - p))

    implementation, case = Implementation("own", SimpleNamespace(dropout=dropout), {}), CASES["dropout"]
    # Of these seeds two ask for parts that differ.
    calls = [replace(case, args=(replace(case.args[0], seed=seed), *case.args[1:])) for seed in range(0, 76, 19)]
    found = [judged(one, implementation, "distribution") for one in calls]
    assert any("two parts of a batch have one mask" in one.message for one in found if one.status == FAILED)


def test_calls_in_between_have_other_options() -> None:
    def options(case: Case) -> tuple[Any, ...]:
        return tuple(one for one in case.args if not isinstance(one, TensorSpec)), case.kwargs

    for op in ("softmax", "addmm", "add"):
        case = with_way(CASES[op], lambda way: way.kind == "between" and way.beside is not None)
        way = asked(case)
        assert way.beside is not None
        assert operands(way.beside) == operands(way.case)
        assert options(way.beside) != options(way.case)
    assert sequence_variations.dim(CASES["softmax"], 0).args[1] == 0


@pytest.mark.parametrize("op", ["pow", "cross_entropy"])
def test_scenes_meet_the_ends(op: str) -> None:
    """Powers that are subnormal; class 156 in labels of 8 bits, which is -100 modulo 256."""
    scenes = registry()[op].all_scenes()
    drawn = [case for start in range(12) for case in drawing.drawn(scenes(("float32",)), start, profiles.ROUND)]
    found = []
    for case in drawn:
        prepared = runner.prepare(case, CPU)
        if op == "pow":
            smallest = torch.finfo(torch.float32).smallest_normal
            found.append(
                bool(((prepared.reference.value.abs() > 0) & (prepared.reference.value.abs() < smallest)).any())
            )
        else:
            labels = prepared.inputs[1]
            found.append(labels.dtype == torch.uint8 and bool((labels == 156).any()))
    assert any(found)


def test_a_call_inside_of_a_backward_pass_raises_what_it_raises() -> None:
    local = calls.Local(torch.mm)
    x = torch.ones(2, 3)
    call = calls.described("mm", (x, x), {}, (x,), context={"kind": "inside"})
    outcome = local.made(call, (x,), CPU)
    assert isinstance(outcome.error, RuntimeError)
    assert "cannot be multiplied" in str(outcome.error)
