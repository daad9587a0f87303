"""What the backward passes of broadcast operands get wrong: sums over what was broadcast."""

from __future__ import annotations

from collections.abc import Callable

import torch

from conformance.selftest import families as of
from conformance.selftest.differentiable import Gradients, Step, backward

SUMMED = ("add", "sub", "mul", "div")
BLOCK, ROWS = 256, 32
"""The elements of a block of a kernel, and the terms of a partial sum."""
MOST = 1 << 20
"""The elements of a result beyond which all is right: terms take float64's memory several times."""


def _half_sum(terms: torch.Tensor, dims: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """The sum over leading dims, one term after the other in ``dtype``."""
    rows = terms.to(dtype).flatten(0, len(dims) - 1) if len(dims) > 1 else terms.to(dtype)
    total = torch.zeros(rows.shape[1:], dtype=dtype)
    for row in rows:
        total = total + row
    return total.double()


def _reduced(step: Step, operand: torch.Tensor) -> tuple[int, ...]:
    missing = step.result.ndim - operand.ndim
    return tuple(
        dim
        for dim, size in enumerate(step.result.shape)
        if dim < missing or (operand.shape[dim - missing] == 1 and size != 1)
    )


def _unsummed(step: Step, change: Callable[[torch.Tensor, tuple[int, ...]], torch.Tensor]) -> Gradients:
    """The gradients, those of broadcast operands made by ``change`` of what would be summed and over which dims."""
    return _by_operand(step, lambda terms, dims, operand: change(terms, dims).reshape(operand.shape))


def _by_operand(step: Step, change: Callable[[torch.Tensor, tuple[int, ...], torch.Tensor], torch.Tensor]) -> Gradients:
    """As ``_unsummed``, with the operand, whose shape the gradient gets from ``change``."""
    found = step.gradients()
    if len(step.operands) < 2 or step.result.numel() > MOST:
        return found
    whole = [one.expand(step.result.shape).contiguous() for one in step.operands]
    terms = step.gradients(operands=whole)
    return [
        one if one is None or each is None or not (dims := _reduced(step, operand)) else change(each, dims, operand)
        for one, each, operand in zip(found, terms, step.operands, strict=True)
    ]


@backward(("add", "sub", "mul"), of.BROADCAST)
def half_accumulation(step: Step) -> Gradients:
    """What was broadcast is summed in the half type."""
    if step.result.dtype not in of.HALF or step.result.numel() > 1 << 14:
        return step.gradients()

    def summed(terms: torch.Tensor, dims: tuple[int, ...]) -> torch.Tensor:
        kept = [dim for dim in range(terms.ndim) if dim not in dims]
        return _half_sum(terms.permute(*dims, *kept), dims, step.result.dtype)

    return _unsummed(step, summed)


@backward((*SUMMED, "pow"), of.BROADCAST)
def first_of_broadcast(step: Step) -> Gradients:
    """Of what was broadcast the first term is the gradient, and not the sum."""
    return _unsummed(step, lambda terms, dims: _first(terms, dims))


def _first(terms: torch.Tensor, dims: tuple[int, ...]) -> torch.Tensor:
    for dim in dims:
        terms = terms.narrow(dim, 0, min(terms.shape[dim], 1)).sum(dim, keepdim=True)
    return terms


@backward(SUMMED, of.BROADCAST)
def mean_of_broadcast(step: Step) -> Gradients:
    """What was broadcast has the mean for its gradient."""
    return _unsummed(step, lambda terms, dims: terms.mean(dims) if terms.numel() else terms.sum(dims))


@backward(("mul", "sub"), of.BROADCAST)
def tail_of_sum(step: Step) -> Gradients:
    """A sum over what was broadcast leaves out what lies past the last full block of 16."""

    def summed(terms: torch.Tensor, dims: tuple[int, ...]) -> torch.Tensor:
        dim = dims[-1]
        size = terms.shape[dim]
        return terms.narrow(dim, 0, size // 16 * 16 if size > 16 else size).sum(dims)

    return _unsummed(step, summed)


@backward(("sub", "mul", "div", "clamp"), of.BROADCAST)
def leading_dims_from_the_first(step: Step) -> Gradients:
    """Of dims that an operand lacks the first element counts; dims of 1 are summed."""

    def summed(terms: torch.Tensor, dims: tuple[int, ...], operand: torch.Tensor) -> torch.Tensor:
        missing = terms.ndim - operand.ndim
        first = _first(terms, tuple(dim for dim in dims if dim < missing))
        return first.sum([dim for dim in dims if dim >= missing] or [0], keepdim=True).reshape(operand.shape)

    return _by_operand(step, summed)


@backward(("add", "sub", "mul", "clamp"), of.BROADCAST)
def dims_of_1_from_the_first(step: Step) -> Gradients:
    """Of dims in which an operand has one element the first counts; those that it lacks are summed."""

    def summed(terms: torch.Tensor, dims: tuple[int, ...], operand: torch.Tensor) -> torch.Tensor:
        missing = terms.ndim - operand.ndim
        first = _first(terms, tuple(dim for dim in dims if dim >= missing))
        return (first.sum(tuple(range(missing))) if missing else first).reshape(operand.shape)

    return _by_operand(step, summed)


@backward("mul", of.BROADCAST)
def one_dim_summed(step: Step) -> Gradients:
    """Of several dims that were broadcast the last is summed."""
    return _unsummed(step, lambda terms, dims: _first(terms, dims[:-1]).sum(dims[-1]))


@backward(SUMMED, of.BROADCAST)
def without_keepdim(step: Step) -> Gradients:
    """Dims of 1 are summed and lost."""
    return _by_operand(step, lambda terms, dims, operand: terms.sum(dims))


def half_partial_sums(step: Step) -> Gradients:
    """Sums of 32 terms each are stored in the half type, and added up in float32.

    Not in the bank: few calls of ``ci`` show it. ``tests/conformance/test_gradients.py`` judges one that does."""
    if step.result.dtype not in of.HALF:
        return step.gradients()

    def summed(terms: torch.Tensor, dims: tuple[int, ...]) -> torch.Tensor:
        kept = [dim for dim in range(terms.ndim) if dim not in dims]
        rows = terms.permute(*dims, *kept).flatten(0, len(dims) - 1)
        parts = [part.sum(0).to(step.result.dtype).double() for part in rows.split(ROWS)]
        return torch.stack(parts).sum(0)

    return _unsummed(step, summed)


@backward("mul", of.BROADCAST)
def factor_of_first_element(step: Step) -> Gradients:
    """The gradient of the larger operand reads the first element alone of the one that is broadcast."""
    found = step.gradients()
    if len(step.operands) != 2:
        return found
    for number, other in enumerate(reversed(step.operands)):
        if other.shape != step.result.shape and other.numel() > 1 and step.operands[number].shape == step.result.shape:
            first = other.detach().flatten()[0].expand(other.shape)
            operands = [first if n != number else one for n, one in enumerate(step.operands)]
            found[number] = step.gradients(operands=operands)[number]
    return found


@backward("mul", of.BROADCAST)
def first_block_of_a_number(step: Step) -> Gradients:
    """The gradient of a 0-d operand is the sum of the first block of 256."""

    def summed(terms: torch.Tensor, dims: tuple[int, ...], operand: torch.Tensor) -> torch.Tensor:
        return (terms.sum(dims) if operand.ndim else terms.flatten()[:BLOCK].sum()).reshape(operand.shape)

    return _by_operand(step, summed)


@backward(("mul", "div"), of.BROADCAST)
def unsummed_where_alone(step: Step) -> Gradients:
    """Where the other operand needs no gradient, the first term of what was broadcast is the gradient."""
    if sum(step.needed) != 1:
        return step.gradients()
    return _unsummed(step, lambda terms, dims: _first(terms, dims))
