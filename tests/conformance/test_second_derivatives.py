"""Derivatives of derivatives: as many as a library has, and none where it says that they may not be differentiated."""

from __future__ import annotations

import torch
from torch.autograd.function import once_differentiable

from conformance import gradient_calls

ONES = torch.ones(5, dtype=torch.float64)
X = torch.linspace(-1, 2, 5, dtype=torch.float64, requires_grad=True)


class Tanh(torch.autograd.Function):
    """Its derivative is another function, which refuses to be recorded."""

    @staticmethod
    def forward(ctx, x):
        y = x.tanh()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, *grads):
        return Slope.apply(*ctx.saved_tensors, *grads)


class Slope(torch.autograd.Function):
    @staticmethod
    def forward(ctx, y, dout):
        ctx.save_for_backward(y, dout)
        return dout * (1 - y * y)

    @staticmethod
    def backward(ctx, *grads):
        if torch.is_grad_enabled():
            raise NotImplementedError("third derivatives")
        (again,), (y, dout) = grads, ctx.saved_tensors
        return again * dout * -2 * y, again * (1 - y * y)


class Once(Tanh):
    @staticmethod
    @once_differentiable
    def backward(ctx, *grads):
        (y,) = ctx.saved_tensors
        return grads[0] * (1 - y * y)


def orders(value):
    return gradient_calls.second_order(value, [X], ONES)


def test_there_are_three():
    first, second, third = orders(X.tanh())
    value = X.tanh()
    found = torch.autograd.grad(value, X, 1 + value, create_graph=True)[0]
    assert torch.equal(first, found)
    for expected in (second, third):
        found = torch.autograd.grad((found * gradient_calls.factors(found)).sum(), X, create_graph=True)[0]
        assert torch.equal(expected, found)


def test_who_does_not_record_the_second_has_it():
    first, second, *others = orders(Tanh.apply(X))
    torch.testing.assert_close([first, second], orders(X.tanh())[:2])
    assert others in ([], [None])


def test_what_may_be_differentiated_once_has_none():
    """Autograd itself would find the operands unused, and give zeros."""
    first, second = orders(Once.apply(X))
    assert torch.allclose(first, orders(X.tanh())[0])
    assert second is None
