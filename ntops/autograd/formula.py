"""Helpers that all formulas of gradients use."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ntops.launch import virtual_tensors


@dataclasses.dataclass(frozen=True)
class Formula:
    """The gradient of an operator; the docstring of :mod:`ntops.library.schemas` says what its functions are given."""

    setup_context: Callable[..., None]
    """``setup_context(ctx, inputs, output)`` saves in ``ctx`` what ``backward`` needs."""
    backward: Callable[..., Any]
    """``backward(ctx, *gradients)`` returns one gradient, or ``None``, for each element of ``inputs``."""


def is_composed(*tensors):
    """Tell whether gradients must be composed of torch's functions: if they are to be differentiated once more, or
    traced, so that kernels have no memory to run on."""
    return torch.is_grad_enabled() or virtual_tensors.is_hidden() or not all(map(virtual_tensors.is_ordinary, tensors))


def save(ctx, **values):
    """Save values for the backward pass, tensors through torch and others directly; :func:`saved` returns them by
    name."""
    tensors = {name: value for name, value in values.items() if isinstance(value, torch.Tensor)}
    ctx.save_for_backward(*tensors.values())
    ctx.saved_names = (*tensors,)
    ctx.others = {name: value for name, value in values.items() if name not in tensors}


def saved(ctx):
    """Return the values that :func:`save` saved, by name.

    :raises RuntimeError: A tensor has been written to since.
    """
    tensors = virtual_tensors.without_ended_transforms(ctx.saved_tensors)
    return ctx.others | dict(zip(ctx.saved_names, map(virtual_tensors.resolved, tensors), strict=True))


def needs(ctx, *places):
    """Return whether the arguments at these places need a gradient. Left-out trailing arguments have no place."""
    return tuple(place < len(ctx.needs_input_grad) and bool(ctx.needs_input_grad[place]) for place in places)


def composed_gradients(function, inputs: Sequence[Any], needed: Sequence[bool], gradient):
    """Return the gradients of a function composed of torch's own, which can be differentiated once more.

    :param function: The function, from ``inputs`` to one tensor.
    :param inputs: The saved inputs.
    :param needed: Whether each input needs a gradient.
    :param gradient: The gradient of the result.
    :return: A gradient for each input, or ``None`` if it needs none.
    """
    if virtual_tensors.is_transformed():
        # Which tensors require a gradient depends on the transform, so one more transform differentiates.
        def of_wanted(*tensors):
            left = iter(tensors)
            return function(*(next(left) if is_wanted else one for one, is_wanted in zip(inputs, needed, strict=True)))

        wanted = [one for one, is_wanted in zip(inputs, needed, strict=True) if is_wanted]
        pull_back = torch.func.vjp(of_wanted, *wanted)[1]
        found = iter(pull_back(gradient))
        return [next(found) if is_wanted else None for is_wanted in needed]

    given = [one for one in (*inputs, gradient) if isinstance(one, torch.Tensor)]
    # After the end of a transform nothing is left that asks for a graph.
    again = torch.is_grad_enabled() and any(one.requires_grad for one in given)

    with torch.enable_grad():
        # Each argument gets a tensor object of its own: one tensor may be several arguments.
        inputs = [_named(one, again) if wanted else one for one, wanted in zip(inputs, needed, strict=True)]
        wanted = [one for one, is_wanted in zip(inputs, needed, strict=True) if is_wanted]
        found = iter(torch.autograd.grad(function(*inputs), wanted, gradient, create_graph=again, allow_unused=True))

    return [next(found) if is_wanted else None for is_wanted in needed]


def _named(tensor, again):
    return tensor.view_as(tensor) if again and tensor.requires_grad else tensor.detach().requires_grad_()
