"""Backward passes may not depend on an earlier one, on a ``.grad`` that is there, or on memory that was freed."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from msgspec.structs import replace

from conformance import runner
from conformance import spec as specs
from conformance.cases import Case
from conformance.implementations import Implementation
from strategies.specs import TensorSpec

NEEDS: dict[int, bool] = {}
KEPT: dict[int, torch.Tensor] = {}


class Squared(torch.autograd.Function):
    """A product of two operands, taken for one where they begin at one address."""

    @staticmethod
    def forward(ctx, input, other):
        ctx.save_for_backward(input, other)
        return input * other

    @staticmethod
    def backward(ctx, dout):
        input, other = ctx.saved_tensors
        if input.shape == other.shape and input.data_ptr() == other.data_ptr():
            return 2 * dout * input, torch.zeros_like(other)
        return (dout * other).sum_to_size(input.shape), (dout * input).sum_to_size(other.shape)


class Noted(torch.autograd.Function):
    """A product that notes by the second operand, at the first backward pass, whether the first one's is needed."""

    @staticmethod
    def forward(ctx, input, other):
        ctx.save_for_backward(input, other)
        return input @ other

    @staticmethod
    def backward(ctx, dout):
        input, other = ctx.saved_tensors
        needed = NEEDS.setdefault(other.data_ptr(), ctx.needs_input_grad[0])
        return dout @ other.mT if needed else None, input.mT @ dout


class Adding(torch.autograd.Function):
    """A product that adds to the .grad that a second operand has."""

    @staticmethod
    def forward(ctx, input, other):
        ctx.save_for_backward(input)
        ctx.other = other
        return input @ other.detach()

    @staticmethod
    def backward(ctx, dout):
        (input,), other = ctx.saved_tensors, ctx.other
        own = input.mT @ dout
        if other.grad is not None:
            other.grad += own
            own = None
        return dout @ other.detach().mT, own


class Statistics(torch.autograd.Function):
    """An exponential that keeps its result by the address of it."""

    @staticmethod
    def forward(ctx, input):
        result = torch.exp(input)
        ctx.place = result.data_ptr()
        KEPT[ctx.place] = result.detach().clone()
        return result

    @staticmethod
    def backward(ctx, dout):
        return dout * KEPT[ctx.place]


class Turned(Noted):
    """A product that keeps the transposed second operand of its first backward pass, as that of one parameter."""

    @staticmethod
    def backward(ctx, dout):
        input, other = ctx.saved_tensors
        turned = KEPT.setdefault(other.data_ptr(), other.mT.clone())
        return dout @ turned, input.mT @ dout


class InPlace(torch.autograd.Function):
    """A relu in place that keeps its result past autograd."""

    @staticmethod
    def forward(ctx, input):
        ctx.mark_dirty(input)
        ctx.result = torch.relu_(input).detach()
        return input

    @staticmethod
    def backward(ctx, dout):
        return torch.where(ctx.result > 0, dout, 0)


def relu(input, inplace=False):
    return InPlace.apply(input) if inplace else torch.relu(input)


class Reseeded(torch.autograd.Function):
    """A dropout whose backward pass draws the mask again, from torch's seed of that time."""

    @staticmethod
    def forward(ctx, input):
        ctx.offset = int(torch.randint(1 << 30, ()))
        return input * scales(input.shape, ctx.offset)

    @staticmethod
    def backward(ctx, dout):
        return dout * scales(dout.shape, ctx.offset)


def scales(shape, offset):
    generator = torch.Generator().manual_seed(torch.initial_seed() + offset)
    return (torch.rand(shape, generator=generator) < 0.5) * 2.0


def spec(*shape: int) -> TensorSpec:
    return TensorSpec(shape, "float32")


MM = Case(op="mm", args=(spec(3, 5), spec(5, 4)))


@pytest.mark.parametrize(
    ("case", "function", "message"),
    [
        (Case(op="mul", args=(spec(4, 4), spec(4, 4))), Squared.apply, "two operands one tensor, the second turned"),
        (MM, Noted.apply, "differentiated, operand 0 frozen"),
        (MM, Adding.apply, "changed the .grad of a parameter"),
        (Case(op="exp", args=(spec(5, 33),)), Statistics.apply, "of a result to which another tensor is added"),
        (MM, Turned.apply, "after the same call of other contents differentiated"),
        (Case(op="relu", args=(spec(5, 33),)), relu, "of the call in place, whose result is changed in place after it"),
        (Case(op="dropout", args=(spec(5, 33),)), Reseeded.apply, "between calls with other contents"),
    ],
)
@pytest.mark.parametrize("is_right", [False, True])
def test_it_is_found(case, function, message, is_right):
    """Of 100 seeds, which choose the way, at least one finds the mistake, and none fails the right function."""
    NEEDS.clear()
    KEPT.clear()
    own = specs.registry()[case.op].reference if is_right else function
    implementation = Implementation("own", SimpleNamespace(**{case.op: own}), {})
    failed = set()
    for seed in range(100):
        one = replace(case, args=(replace(case.args[0], seed=seed), *case.args[1:]))
        failure = runner.judge(one, implementation, "cpu", ("gradients",)).failure
        if failure is not None:
            failed.add(failure.message)
    assert not failed if is_right else any(message in one for one in failed)
