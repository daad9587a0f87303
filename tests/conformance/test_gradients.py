"""The check of gradients: what it finds, what it leaves alone, and that a failure can be repeated."""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from gradient_ways import with_way
from msgspec.structs import replace

from conformance import float_formats, forms, messages, repro, runner
from conformance.cases import Case, Same, operands
from conformance.checks import FAILED, PASSED, UNCLAIMED
from conformance.checks.gradient_kinds import KINDS, wish
from conformance.implementations import Implementation, load
from conformance.ops import _gradients_positions
from conformance.running import Running, exact
from conformance.selftest import defect_registry
from conformance.selftest.differentiable import differentiable
from conformance.selftest.gradients_of_broadcasts import half_partial_sums
from conformance.spec import Call
from strategies.specs import Layout, Special, TensorSpec

CPU = torch.device("cpu")
BANK = defect_registry.bank()


def spec(*shape, dtype="float32", **more):
    return TensorSpec(shape, dtype, **more)


def judged(case, implementation):
    """The finding of ``gradients``."""
    (finding,) = runner.judge(case, implementation, CPU, ["gradients"]).findings
    return finding


def in_way(case, kind, *, overwritten=None, dout=None):
    """The case with other elements, which is differentiated in a way of this kind, all operands being wanted; of the
    origin and mode that its note names, or what becomes of saved tensors, or in that form; for such values ``dout``."""

    def is_it(way):
        made = not case.note or case.note in (f"{way.origin} {way.evaluated}", way.saved, way.case.form)
        made = made and way.case.form in ("", case.note) and dout in (None, way.dout.values)
        if case.note == forms.SIZES:
            # Of lists, which a checkpointed call gets again.
            made = made and forms.sizes(way.case) is list and way.saved != "checkpoint"
        made = made and all(0 not in one.shape for one in operands(way.case))
        # One infinity hides what else is wrong in its row and column.
        made = made and not way.dout.specials
        return made and (way.kind, way.overwritten) == (kind, overwritten) and len(way.wanted) == len(operands(case))

    return with_way(case, is_it)


CASES = {
    "silu": Case(op="silu", args=(spec(5, 33),)),
    "mul": Case(op="mul", args=(spec(5, 33), spec(33))),
    "softmax": Case(op="softmax", args=(spec(5, 33, dtype="bfloat16"), -1)),
    "rms_norm": Case(op="rms_norm", args=(spec(6, 33), (33,)), kwargs={"weight": spec(33)}),
    "addmm": Case(op="addmm", args=(spec(7), spec(20, 9), spec(9, 7)), kwargs={"alpha": 2.0, "beta": 0.5}),
    "scaled_dot_product_attention": Case(
        op="scaled_dot_product_attention",
        args=(spec(1, 4, 5, 8), spec(1, 2, 20, 8), spec(1, 2, 20, 8)),
        kwargs={"enable_gqa": True, "is_causal": True},
    ),
}


@pytest.mark.parametrize("op", CASES)
def test_what_is_right_passes_in_every_way(op):
    """That of torch's float64 too, which shares no formula with the oracle."""
    right = Implementation("right", SimpleNamespace(**{op: differentiable(op)}), {})
    kinds = {"mul": [one for one in KINDS if one != "in place"], "silu": ["in place", "second order"]}
    for kind in kinds.get(op, KINDS[:2]):
        case = in_way(CASES[op], kind, overwritten=1 if kind == "overwritten" else None)
        for implementation in (load("torch"), right):
            finding = judged(case, implementation)
            assert (finding.status, finding.message) == (PASSED, "")
            assert finding.share is None if kind in ("overwritten", "second order") else 0 <= finding.share <= 1


def test_what_cancels_need_not_be_torchs_by_luck():
    """The mean of equal numbers is exact in torch's order of sums, and times 1 / sqrt(eps) an ulp of it is much."""
    input = TensorSpec((1, 4097), "float32", seed=24, layout=Layout(expanded=(1,)))
    options = {"weight": TensorSpec((4097,), "float32", seed=85), "bias": TensorSpec((4097,), "float32"), "eps": 1e-8}
    finding = judged(Case(op="layer_norm", args=(input, (4097,)), kwargs=options), load("ntops.torch"))
    assert (finding.status, finding.message) == (PASSED, "")


@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [
        ("mul_gradient_first_of_broadcast", "contiguous", "that of operand 1 is wrong"),
        ("mul_gradient_unseen", "overwritten", "changed in place after the call"),
        ("softmax_gradient_written_to_dout", "contiguous", "that of the result, operand 1 (an input) was changed"),
        ("softmax_gradient_accumulated", "twice", "the second time, that of operand 0 is wrong"),
        (
            "rms_norm_gradient_refuses_strides",
            "transposed",
            "the backward pass raised RuntimeError: grad_output",
        ),
        ("addmm_gradient_alpha_forgotten", "contiguous", "that of operand 1 is wrong"),
        ("scaled_dot_product_attention_gradient_causal_ignored_for_keys", "expanded", "that of operand 1 is wrong"),
    ],
)
def test_defects(name, kind, message):
    defect = BANK[name]
    case = in_way(CASES[defect.op], kind, overwritten=1 if kind == "overwritten" else None)
    finding = judged(case, defect.implementation)
    assert finding.status == FAILED
    assert message in finding.message


class Saved(torch.autograd.Function):
    """An exponential that keeps its result by hand, where autograd does not free it."""

    @staticmethod
    def forward(ctx, input):
        ctx.result = torch.exp(input)
        return ctx.result.clone()

    @staticmethod
    def backward(ctx, dout):
        return dout * ctx.result


def evaluated(weights):
    """A product that casts a parameter once."""

    def mul(input, other):
        if isinstance(other, torch.nn.Parameter):
            if id(other) not in weights:
                weights.clear()
                weights[id(other)] = other, other.double()
            other = weights[id(other)][1].float()
        return input * other

    return mul


@pytest.mark.parametrize(
    ("case", "function", "message"),
    [
        (Case(op="exp", args=(spec(5, 33),)), Saved.apply, "though the graph is not retained"),
        (CASES["mul"], evaluated({}), "under no_grad"),
        (
            Case(op="tanh", args=(spec(5, 33, dtype="float64"),)),
            BANK["tanh_gradient_second_of_float64_lost"],
            "no excep",
        ),
        (Case(op="tanh", args=(spec(5, 33, dtype="float64"),)), torch.tanh, ""),
        (Case(op="sigmoid", args=(spec(5, 33),)), BANK["sigmoid_gradient_operands_kept"], "references to operand 0"),
        (Case(op="silu", args=(spec(5, 33),)), BANK["silu_gradient_generator_set_back"], "torch's random generators"),
        (Case(op="sin", args=(spec(5, 33),)), BANK["sin_gradient_results_rounded"], "the result is wrong where"),
    ],
)
def test_what_is_around_a_backward_pass_is_looked_at(case, function, message):
    """Of some elements, on which the way depends."""
    own = Implementation("own", SimpleNamespace(**{case.op: function}), {})
    implementation = getattr(function, "implementation", own)
    cases = [replace(case, args=(replace(case.args[0], seed=seed), *case.args[1:])) for seed in range(120)]
    failed = {judged(one, implementation).message for one in cases} - {""}
    assert any(message in one for one in failed) if message else not failed


def in_place(is_view):
    """A call that is differentiated in place, of a view of another tensor or of none."""
    result = runner.prepare(CASES["silu"], CPU).reference.value
    for seed in range(2000):
        found = replace(CASES["silu"], args=(replace(CASES["silu"].args[0], seed=seed),))
        way = wish(found, result)
        if (way.kind, way.view) == ("in place", is_view):
            return found
    raise AssertionError(is_view)


@pytest.mark.parametrize("is_view", [False, True])
def test_what_is_written_in_place_is_recorded(is_view):
    names = {"silu_gradient_lost_in_place", "silu_gradient_lost_in_place_of_views"}
    failed = {name for name in names if judged(in_place(is_view), BANK[name].implementation).status == FAILED}
    assert failed == (names if is_view else {"silu_gradient_lost_in_place"})
    message = judged(in_place(is_view), BANK["silu_gradient_lost_in_place"].implementation).message
    assert "the result does not know its operands, but that out of place does" in message
    for implementation in (load("torch"), load("ntops.torch")):
        assert judged(in_place(is_view), implementation).status == PASSED


def test_the_tensor_of_which_a_view_is_written_depends_on_it():
    class Apart(torch.autograd.Function):
        @staticmethod
        def forward(ctx, input):
            ctx.save_for_backward(input)
            return torch.nn.functional.silu(input)

        @staticmethod
        def backward(ctx, dout):
            with torch.enable_grad():
                input = ctx.saved_tensors[0].detach().requires_grad_()
                return torch.autograd.grad(torch.nn.functional.silu(input), input, dout)

    def silu(input, inplace=False):
        result = Apart.apply(input)
        if inplace:
            # The right numbers and a right node, but the others in the memory do not know of it.
            input.data.copy_(result.detach())
        return result

    finding = judged(in_place(True), Implementation("apart", SimpleNamespace(silu=silu), {}))
    assert (finding.status, "of the call in place, of a view" in finding.message) == (FAILED, True)


@pytest.mark.parametrize("layout", [Layout(steps=(1, 2)), Layout(padding=(0, 5), offset=1), Layout(order=(1, 0))])
def test_operands_of_any_strides_are_changed_in_place(layout):
    first, *others = CASES["mul"].args
    case = replace(CASES["mul"], args=(replace(first, layout=layout), *others))
    finding = judged(in_way(case, "overwritten", overwritten=0), BANK["mul_gradient_unseen"].implementation)
    assert (finding.status, "changed in place after the call" in finding.message) == (FAILED, True)


def test_who_has_no_gradients_claims_none():
    def detached(input):
        return torch.exp(input.detach())

    def refused(input):
        if input.requires_grad:
            raise NotImplementedError("no gradients")
        return torch.exp(input)

    case = Case(op="exp", args=(spec(5),))
    for function in (detached, refused):
        provider = SimpleNamespace(exp=function)
        assert judged(case, Implementation("without", provider, {})).status == UNCLAIMED
        assert judged(case, Implementation("without", provider, {"exp": ("gradients",)})).status == FAILED


@pytest.mark.parametrize("layout", [Layout(steps=(1, 2)), Layout(order=(1, 0)), Layout(expanded=(0,))])
def test_gradients_that_the_layout_of_an_operand_loses_are_wrong(layout):
    def lost(input):
        found = torch.exp(input)
        return found if input.is_contiguous() else found.detach()

    implementation = Implementation("lost", SimpleNamespace(exp=lost), {})
    assert judged(Case(op="exp", args=(spec(5, 4),)), implementation).status == PASSED
    finding = judged(Case(op="exp", args=(spec(5, 4, layout=layout),)), implementation)
    assert (finding.status, "that of contiguous copies" in finding.message) == (FAILED, True)


def test_of_a_tensor_that_is_two_operands_both_gradients_are_summed():
    case = in_way(Case(op="mul", args=(spec(5, dtype="float16"), Same(0))), "contiguous")
    assert judged(case, load("torch")).status == PASSED

    def one_alone(input, other):
        return input * other.detach()

    assert judged(case, Implementation("one", SimpleNamespace(mul=one_alone), {})).status == FAILED


def test_the_way_of_a_case_follows_from_it():
    case = Case(op="mul", args=(spec(5, 4, specials=(Special(0, "nan"),)), spec(4, layout=Layout(expanded=(0,)))))
    strides = {"contiguous": (4, 1), "transposed": (1, 8), "sliced": (8, 2), "cut": (9, 1), "one for all": (0, 0)}
    for kind, strided in strides.items():
        way = wish(in_way(case, kind), torch.empty(5, 4))
        assert way == wish(in_way(case, kind), torch.empty(5, 4))
        assert way.inputs()[-1].stride() == strided
    assert not wish(in_way(case, "zeros"), torch.empty(5, 4)).inputs()[-1].any()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "kind", "defect"),
    [
        (CASES["softmax"], "twice", "softmax_gradient_accumulated"),
        # What the result is decides how its gradient is shared.
        (Case(op="amax", args=(spec(5, 33, values="integers"), -1)), "contiguous", "amax_gradient_ties_get_all"),
        # Of parameters after an evaluation, and of results.
        (replace(CASES["mul"], note="parameter no_grad"), "contiguous", "mul_gradient_first_of_broadcast"),
        (replace(CASES["mul"], note="result inference"), "contiguous", "mul_gradient_first_of_broadcast"),
        # Of saved tensors that come back, or are computed again.
        (replace(CASES["mul"], note="elsewhere"), "contiguous", "mul_gradient_first_of_broadcast"),
        (replace(CASES["mul"], note="checkpoint"), "contiguous", "mul_gradient_first_of_broadcast"),
        # In other forms.
        (replace(CASES["mul"], note="by name"), "contiguous", "mul_gradient_first_of_broadcast"),
        (replace(CASES["mul"], note="negated"), "contiguous", "mul_gradient_first_of_broadcast"),
        (Case(op="sum", args=(spec(3, 4, 5), (0, 2)), note="sizes"), "contiguous", "sum_gradient_of_the_callers_list"),
    ],
)
def test_a_failure_is_told_and_repeated_without_the_harness(tmp_path, case, kind, defect):
    told_and_repeated(in_way(case, kind), defect, tmp_path)


@pytest.mark.slow
def test_a_gradient_that_is_asked_for_alone_is_so_in_the_script(tmp_path):
    case = Case(op="layer_norm", args=(spec(6, 33), (33,), spec(33)))
    case = with_way(
        case, lambda way: (way.kind, way.wanted, way.unasked, way.case.form) == ("contiguous", (0,), (1,), "")
    )
    assert "operands 0, beside 1, which require one as well" in told_and_repeated(
        case, "layer_norm_gradient_of_the_input_alone", tmp_path
    )


def told_and_repeated(case, defect, tmp_path):
    """Return the message; check that the script fails, and passes with torch."""
    implementation = load(f"{defect_registry.NAME}:{defect}")
    verdict = runner.judge(case, implementation, CPU, ["gradients"])
    assert verdict.failure.check == "gradients"
    kept = messages.Kept(tmp_path / "case.json", tmp_path / "repro.py")
    text = messages.failure(case, verdict, implementation.name, CPU, kept)
    assert "gradients of operands" in text
    assert "oracle" in text or "pass raised" in text
    kept.script.write_text(repro.script(case, verdict, implementation, CPU))
    for which, status in ((implementation.name, 1), ("torch", 0)):
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
        command = [sys.executable, str(kept.script), which]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
        assert (done.returncode, done.stderr) == (status, ""), done.stdout + done.stderr
    return text


def test_running_errors_hold_what_is_computed():
    """Sums, products and quotients of float32 lie within, and the bound is of the order of their errors."""
    a, b = (torch.randn(40, 40, generator=torch.Generator().manual_seed(seed)) for seed in (0, 1))
    x, y = exact(a, torch.float32), exact(b, torch.float32)
    pairs = {
        "sum": ((x + y).sum(1), (a + b).sum(1)),
        "product": (x @ y, a @ b),
        "quotient": (x / (y * y + 1.0), a / (b * b + 1)),
        "exponential": ((x * y).applied(np.exp, lambda value: 2.0**-22 * value), (a * b).exp()),
    }
    for running, computed in pairs.values():
        error = np.abs(computed.double().numpy() - running.value)
        assert (error <= running.error).all()
        assert running.error.max() <= 2.0**-15 * np.abs(running.value).max()


def test_what_may_leave_the_range_or_is_not_finite_is_not_followed():
    large = exact(torch.tensor([3e38, 1.0, float("nan"), float("inf")]), torch.float32)
    assert np.isinf((large + large).error).tolist() == [True, False, True, True]
    assert np.isinf(large.stored().error).tolist() == [False, False, True, True]
    half = Running(np.array([70000.0, 1.0]), np.zeros(2), torch.float16)
    assert np.isinf(half.stored().error).tolist() == [True, False]
    assert np.isinf((half + 1.0).error).tolist() == [False, False]


def test_what_is_of_a_half_type_already_is_stored_as_it_is():
    """A gradient that is passed on, and summed, is rounded once: at the end."""
    given = torch.tensor([1.0, 3.0, 0.1], dtype=torch.bfloat16)
    stored = exact(given, torch.bfloat16).stored()
    assert stored.error.max() <= float_formats.FORMATS[torch.bfloat16].subnormal
    (error,) = (exact(torch.tensor([0.1]), torch.bfloat16) * 1.5).stored().error
    assert error >= 0.15 * 2.0**-9


def test_sums_of_half_types_are_not_rounded_in_between():
    call = Case(op="add", args=(spec(300, 33, dtype="bfloat16"), spec(33, dtype="bfloat16")))
    case = in_way(call, "contiguous", dout="positive")
    wrong, right = (
        Implementation("add", SimpleNamespace(add=differentiable("add", one)), {}) for one in (half_partial_sums, None)
    )
    assert [judged(case, one).status for one in (wrong, right, load("torch"))] == [FAILED, PASSED, PASSED]


@pytest.mark.parametrize("interleaved", [False, True])
def test_two_sums_that_overflow_have_a_difference_that_is_not_judged(interleaved):
    """The gradient of the sine is 0 where both elements of each pair are alike, and its two sums are infinite."""
    x, weight = torch.ones(1, 1, 320), torch.full((320,), 3e37)
    cos, sin, dout = torch.full((1, 1), 0.7), torch.full((1, 1), 0.7), torch.ones(1, 1, 320)
    call = Call((x, weight, cos, sin), {"head_dim": 2, "interleaved": interleaved}, None)
    assert np.isinf(_gradients_positions.norm_and_rotation(call, dout)[3].error).all()
    call = Call((x, weight / 320, cos, sin), {"head_dim": 2, "interleaved": interleaved}, None)
    assert np.isfinite(_gradients_positions.norm_and_rotation(call, dout)[3].error).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_sum_that_overflows_in_one_order_is_not_judged(dtype):
    """A batch's difference is 4.8e38, the sum of both is 3e38, and each product's terms stay within the range."""
    x = torch.tensor([[2.4e38, -2.4e38], [-0.9e38, 0.9e38]], dtype=dtype).reshape(2, 1, 1, 2)
    angle = torch.full((1, 1), 0.7, dtype=dtype)
    dout = torch.ones(2, 1, 1, 2, dtype=dtype)
    found = _gradients_positions.rotation(Call((x, angle, angle), {}, None), dout)
    assert np.isinf(found[1].error).all()
    found = _gradients_positions.rotation(Call((x / 4, angle, angle), {}, None), dout)
    assert np.isfinite(found[1].error).all()
