"""Sequences of calls that are differentiated: at once, or after all calls were made."""

from __future__ import annotations

import itertools

import msgspec
import pytest
import torch
from sequence_tools import CPU, EXP, of

from conformance import case_files, cases, messages, sequence_draws, sequence_judge, sequence_training
from conformance.cases import Case
from conformance.implementations import Implementation, load
from conformance.sequences import Settings, Step
from strategies.specs import TensorSpec

WIDER, WIDER_OF_FIVE = (Case(op="exp", args=(TensorSpec((rows, 9), "float32"),)) for rows in (4, 5))


class Exp(torch.autograd.Function):
    @staticmethod
    def forward(ctx, input, keep):
        result = input.exp()
        keep[len(input)] = result
        ctx.rows, ctx.keep = len(input), keep
        return result

    @staticmethod
    def backward(ctx, *douts):
        kept = ctx.keep[ctx.rows]
        if kept.shape != douts[0].shape:
            raise RuntimeError("the slot is another call's")
        return douts[0] * kept, None


def implementation(function, claims=()):
    return Implementation("own", type("Own", (), {"exp": staticmethod(function)}), {"exp": claims}, {})


def slots(claims=()):
    """Keeps the last result of each number of rows for its backward pass."""
    keep = {}
    return implementation(lambda input, *, out=None: Exp.apply(input, keep), claims)


def judged(one, *steps):
    return sequence_judge.judge(of(*steps), one, CPU).failure


def test_gradients_that_are_asked_for_in_the_end_are_judged():
    first = Step(EXP, gradients="in reverse")
    assert judged(slots(), first, Step(WIDER_OF_FIVE)) is None
    failure = judged(slots(), first, Step(training(EXP, 1)))
    assert failure is not None
    assert "call 1 of 2, gradients in reverse: that of operand 0 is wrong" in failure.message


def training(case, seed):
    (spec,) = cases.operands(case)
    return msgspec.structs.replace(case, args=(msgspec.structs.replace(spec, seed=seed),))


def test_a_backward_pass_that_raises_is_judged():
    failure = judged(slots(), Step(EXP, gradients="in order"), Step(WIDER, gradients="in order"))
    assert failure is not None
    assert "the backward pass raised RuntimeError: the slot is another call's" in failure.message
    assert failure.index == (0,)


@pytest.mark.parametrize(("when", "expected"), [("at once", None), ("in order", (0,)), ("in reverse", (0,))])
def test_when_gradients_are_asked_for(when, expected):
    failure = judged(slots(), Step(EXP, gradients=when), Step(training(EXP, 1), gradients=when))
    assert (failure and failure.index) == expected


def test_order_of_backward_passes():
    order, calls = [], itertools.count()

    def call(input, *, out=None):
        result, number = input.exp(), next(calls)
        result.register_hook(lambda gradient: order.append(number))
        return result

    times = ("in reverse", "in order", "at once", "in reverse", "in order")
    steps = [Step(training(EXP, n), gradients=when) for n, when in enumerate(times)]
    assert judged(implementation(call), *steps) is None
    assert order == [2, 1, 4, 3, 0]


def test_who_claims_gradients_has_to_have_them():
    def without(input, *, out=None):
        return input.detach().exp()

    step = Step(EXP, gradients="at once")
    assert judged(implementation(without), step) is None
    failure = judged(implementation(without, ("gradients",)), step)
    assert failure is not None
    assert "the result does not know its operands" in failure.message


def test_the_same_weights_are_the_same_tensors():
    seen = []

    def mul(input, other, *, out=None):
        seen.append((input, other))
        return torch.mul(input, other)

    def case(rows):
        return Case(op="mul", args=(TensorSpec((rows, 8), "float32"), TensorSpec((8,), "float32")))

    own = Implementation("own", type("Own", (), {"mul": staticmethod(mul)}), {"mul": ()}, {})
    assert judged(own, *(Step(case(rows), "same", gradients="at once") for rows in (4, 3))) is None
    (_, first), (_, second) = seen
    assert first is second
    assert first.requires_grad


@pytest.mark.parametrize(
    "changed",
    [
        {"memory": "address"},
        {"memory": "same", "gradients": "in order"},
        {"result": "overwritten"},
        {"result": "dropped"},
        {"settings": Settings(mode="no_grad")},
    ],
    ids=str,
)
def test_what_cannot_be_differentiated_is_refused(changed):
    with pytest.raises(ValueError, match="need the mode 'grad'"):
        msgspec.structs.replace(Step(EXP, gradients="at once"), **changed)


def test_a_model_of_several_operators_is_drawn():
    (sequence,) = sequence_draws.drawn("layer_norm", ("float32",), 1, 0)
    trained = [step for step in sequence.steps if step.gradients]
    assert {step.gradients for step in trained} == {"at once", "in order", "in reverse"}
    assert len({step.case.op for step in trained}) > 5
    own = [step.case for step in trained if step.case.op == "layer_norm"]
    assert len({cases.operands(case)[0].shape for case in own}) > 4
    for step in trained:
        assert case_files.on_meta(step.case) is not None
    assert sequence_judge.judge(sequence, load("torch"), CPU).failure is None


def test_batches_beyond_the_numbers_of_the_code_come_first():
    spec = TensorSpec((6, 5), "float32")
    case = Case(op="softmax", args=(spec, 1))
    steps = [*sequence_training.steps([case], [], ("float32",), [64, 16, 32])]
    again = [cases.operands(step.case)[0].shape[0] for step in steps if step.memory == "same"]
    assert again[:2] == [65, 129]
    assert min(again[2:]) < 6


def test_what_a_call_of_no_rows_leaves_shows():
    """addmm without rows holds a semaphore that the next product of many terms waits for."""
    state = {"held": False}

    class Provider:
        @staticmethod
        def addmm(input, mat1, mat2, *, beta=1, alpha=1, out=None):
            state["held"] |= not len(mat1)
            return torch.addmm(input, mat1, mat2, beta=beta, alpha=alpha, out=out)

        @staticmethod
        def mm(input, mat2, *, out=None):
            held, state["held"] = state["held"], False
            result = torch.mm(input, mat2, out=out)
            return result * 2 if held and len(mat2) > 64 else result

    own = Implementation("own", Provider, {}, {})
    found = sequence_draws.drawn("mm", ("float32",), 3, 0, (64,))
    assert any(sequence_judge.judge(sequence, own, CPU).failure for sequence in found)


def test_calls_without_out_follow_those_with_one():
    (sequence,) = sequence_draws.drawn("exp", ("bfloat16",), 1, 0)
    pairs = [pair for pair in itertools.pairwise(sequence.steps) if "out" in pair[0].case.kwargs]
    pairs = [(first, second) for first, second in pairs if first.case.args == second.case.args]
    outs = {first.case.kwargs["out"].dtype for first, second in pairs if "out" not in second.case.kwargs}
    assert outs >= {"float32", "float64"}


def test_who_leaves_gradients_out_has_to_say_so():
    class Refused(torch.autograd.Function):
        @staticmethod
        def forward(ctx, input):
            return input.exp()

        @staticmethod
        def backward(ctx, *douts):
            raise NotImplementedError("no gradients")

    step = Step(EXP, gradients="at once")
    assert judged(implementation(lambda input, *, out=None: Refused.apply(input)), step) is None
    failure = judged(implementation(lambda input, *, out=None: Refused.apply(input), ("gradients",)), step)
    assert failure is not None
    assert "the backward pass raised NotImplementedError: no gradients" in failure.message


def test_a_pass_that_changes_its_result_is_told_as_that():
    def call(input, *, out=None):
        result = input.exp()
        result.register_hook(lambda gradient: result.detach().zero_())
        return result

    failure = judged(implementation(call), Step(EXP, gradients="at once"))
    assert failure is not None
    assert "gradients at once" in failure.message or "what the user kept of it changed" in failure.message


def test_messages_say_when_a_call_is_differentiated():
    assert "gradients in reverse" in messages.steps(of(Step(EXP, gradients="in reverse")))
