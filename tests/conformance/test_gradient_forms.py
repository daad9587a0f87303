"""Calls are differentiated in other forms, too: by name, with tensors for numbers, of lazily negated operands."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from msgspec.structs import replace

from conformance import call_contexts, forms, runner
from conformance.cases import Case
from conformance.checks.gradient_kinds import FORMS, wish
from conformance.implementations import Implementation
from strategies.specs import TensorSpec


class Scaled(torch.autograd.Function):
    """A sum or a difference whose backward pass reads the factor as ``factor`` does."""

    @staticmethod
    def forward(ctx, input, other, alpha, function, factor):
        ctx.shapes, ctx.factor = (input.shape, other.shape), factor(alpha)
        return function(input, other, alpha=alpha)

    @staticmethod
    def backward(ctx, dout):
        own, other = (dout.sum_to_size(shape) for shape in ctx.shapes)
        return own, other * ctx.factor, None, None, None


def forgetful_add(input, other, *, alpha=1, out=None):
    """Take an alpha that is a tensor for 1."""
    return Scaled.apply(input, other, alpha, torch.add, lambda alpha: 1 if isinstance(alpha, torch.Tensor) else alpha)


def wrapping_sub(input, other, *, alpha=1, out=None):
    """Negate an alpha that is an unsigned number of NumPy."""
    with np.errstate(over="ignore"):
        return Scaled.apply(input, other, alpha, torch.sub, lambda alpha: float(-alpha))


def detaching_mm(input, *others, out=None, **named):
    """Record nothing of a call by name."""
    with torch.set_grad_enabled(not named):
        return torch.mm(input, *others, **named)


class Product(torch.autograd.Function):
    """A product that reads a saved operand as it lies in memory."""

    @staticmethod
    def forward(ctx, input, other):
        ctx.save_for_backward(input, other)
        return input @ other

    @staticmethod
    def backward(ctx, dout):
        input, other = (torch._neg_view(one) if one.is_neg() else one for one in ctx.saved_tensors)
        return dout @ other.mT, input.mT @ dout


def misreading_matmul(input, other, *, out=None):
    return Product.apply(input, other)


class Largest(torch.autograd.Function):
    """A maximum along a dim that keeps the dim where the argument of that name says so, and not NumPy's."""

    @staticmethod
    def forward(ctx, input, dim, options):
        result = torch.amax(input, dim, **options)
        ctx.save_for_backward(input, torch.amax(input, dim, keepdim=True))
        ctx.dim, ctx.keepdim = dim, options.get("keepdim", False)
        return result

    @staticmethod
    def backward(ctx, dout):
        input, largest = ctx.saved_tensors
        dout = dout if ctx.keepdim else dout.unsqueeze(ctx.dim)
        ties = input.eq(largest)
        return dout * ties / ties.sum(ctx.dim, keepdim=True), None, None


class Total(torch.autograd.Function):
    """A sum that keeps the caller's list of dims for the backward pass."""

    @staticmethod
    def forward(ctx, input, dim):
        ctx.shape, ctx.dim = input.shape, dim
        return torch.sum(input, dim)

    @staticmethod
    def backward(ctx, dout):
        for dim in sorted(one % len(ctx.shape) for one in ctx.dim):
            dout = dout.unsqueeze(dim)
        return dout.expand(ctx.shape), None


def trusting_sum(input, dim=None, keepdim=False, *, axis=None, keepdims=False, dtype=None, out=None):
    dim, keepdim = (dim if axis is None else axis), keepdim or keepdims
    return torch.sum(input, dim, keepdim) if type(dim) is not list or keepdim else Total.apply(input, dim)


def unkept_amax(input, dim=(), keepdim=False, *, axis=None, out=None, **options):
    if axis is None:
        return torch.amax(input, dim, keepdim)
    return Largest.apply(input, axis, options)


class Unread(Largest):
    """A maximum whose backward pass raises where the dim is kept by NumPy's name."""

    @staticmethod
    def backward(ctx, dout):
        if dout.ndim == ctx.saved_tensors[0].ndim:
            raise TypeError("unexpected dim")
        return Largest.backward(ctx, dout)


def raising_amax(input, dim=(), keepdim=False, *, axis=None, out=None, **options):
    return torch.amax(input, dim, keepdim) if axis is None else Unread.apply(input, axis, options)


def spec(*shape: int) -> TensorSpec:
    return TensorSpec(shape, "float32")


CASES = {
    "add": Case(op="add", args=(spec(5, 4), spec(4)), kwargs={"alpha": 0.25}),
    "sub": Case(op="sub", args=(spec(5, 4), spec(4)), kwargs={"alpha": 3}),
    "mm": Case(op="mm", args=(spec(3, 5), spec(5, 4))),
    "matmul": Case(op="matmul", args=(spec(3, 5), spec(5, 4))),
    "sum": Case(op="sum", args=(spec(3, 4, 5), (0, 2))),
    "amax": Case(op="amax", args=(spec(3, 3), 1), kwargs={"keepdim": True}),
    "cross_entropy": Case(
        op="cross_entropy",
        args=(spec(4, 5), TensorSpec((4,), "int64", "listed:0,3,-100,4")),
        kwargs={"label_smoothing": 0.25, "reduction": "sum"},
    ),
}


def others(case: Case) -> list[Case]:
    return [replace(case, args=(replace(case.args[0], seed=seed), *case.args[1:])) for seed in range(250)]


def failures(case: Case, function: object) -> set[str]:
    implementation = Implementation("own", SimpleNamespace(**{case.op: function}), {})
    verdicts = (runner.judge(one, implementation, "cpu", ("gradients",)) for one in others(case))
    return {verdict.failure.message for verdict in verdicts if verdict.failure is not None}


@pytest.mark.parametrize(
    ("op", "function", "form"),
    [
        ("add", forgetful_add, forms.TENSORS),
        ("sub", wrapping_sub, forms.NUMPY),
        ("mm", detaching_mm, forms.BY_NAME),
        ("matmul", misreading_matmul, call_contexts.NEGATED),
        ("amax", unkept_amax, forms.AXES),
        ("amax", raising_amax, forms.AXES),
        ("sum", trusting_sum, forms.SIZES),
    ],
)
def test_a_form_without_its_gradients_is_found(op, function, form):
    found = failures(CASES[op], function)
    assert found
    assert all(f"in the form {form!r}" in one for one in found)


@pytest.mark.parametrize("op", CASES)
def test_torch_has_those_of_every_form(op):
    case = CASES[op]
    result = runner.prepare(case, torch.device("cpu")).reference.value
    drawn = {wish(one, result).case.form for one in others(case)}
    assert drawn == {"", *FORMS} & {"", *forms.possible(case)}
    function = getattr(torch, op, None) or getattr(torch.nn.functional, op)
    assert not failures(case, function)
