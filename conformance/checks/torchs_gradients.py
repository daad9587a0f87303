"""Gradients, and theirs, of torch's own function."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from conformance import cases, context_calls, gradient_calls
from conformance.checks.call_record import Trial
from conformance.checks.gradient_kinds import Wish


def in_float64(tensors: Iterable[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """Return the tensors, floating-point ones in float64."""
    return tuple(one.double() if one.is_floating_point() else one for one in tensors)


def of_torch(
    trial: Trial, way: Wish, inputs: tuple[torch.Tensor, ...], dtype: torch.dtype | None, again: bool = False
) -> list[torch.Tensor] | None:
    """Return torch's own gradients of the wanted operands, and with ``again`` theirs after them, and the third ones if
    torch has these; None: torch has none, or not of such a call.

    :param dtype: The dtype of all floating-point operands; None: their own.
    """
    try:
        with sdpa_kernel(SDPBackend.MATH):
            value, wanted, dout = _graph_of_torch(trial, way, inputs, dtype)
            found = (gradient_calls.second_order if again else gradient_calls.plain)(value, wanted, dout)
    # torch has no such derivative, or refuses operands that require one; then there is nothing to compare with.
    except (RuntimeError, TypeError):
        return None
    count = len(wanted) * (2 if again else 1)
    if len(found) < count or (again and found[count - 1] is None):
        return None
    count = len(found) if again and found[-1] is not None else count
    owners = wanted * (count // len(wanted))
    pairs = zip(found[:count], owners, strict=True)
    return [torch.zeros_like(own) if one is None else one.detach() for one, own in pairs]


def _graph_of_torch(
    trial: Trial, way: Wish, inputs: tuple[torch.Tensor, ...], dtype: torch.dtype | None
) -> tuple[torch.Tensor, list[torch.Tensor], torch.Tensor]:
    """Return torch's result, the wanted operands of it, and the result's gradient, as of ``of_torch``."""
    given = context_calls.copied(inputs)
    if dtype is not None:
        given = [one.to(dtype) if one.dtype.is_floating_point else one for one in given]
    given = [one.requires_grad_() if n in way.leaves else one for n, one in enumerate(given)]
    args, kwargs = cases.bind(way.case, given)
    return trial.spec.reference(*args, **kwargs), [given[n] for n in way.wanted], given[-1]


def is_freed_by_torch(trial: Trial, way: Wish, inputs: tuple[torch.Tensor, ...]) -> bool:
    """Tell whether autograd refuses the gradients of torch's result once the graph is freed, and an operand or the
    result of several elements is saved in it."""
    try:
        value, wanted, dout = _graph_of_torch(trial, way, inputs, None)
        node = value.grad_fn
        saved = [getattr(node, name) for name in dir(node) if name.startswith("_saved_")]
        # Numbers are saved as tensors, too.
        large = any(isinstance(one, torch.Tensor) and one.numel() > 1 for one in saved)
        return large and bool(gradient_calls.twice(value, wanted, dout)[-1])
    except (RuntimeError, TypeError):
        return False
