"""Plant mistakes that show where several graphs live at a time, or gradients are asked for in another way than once."""

from __future__ import annotations

import collections
import threading
from collections.abc import Callable
from typing import Any

import torch

from conformance.selftest.defect_registry import plant
from conformance.selftest.differentiable import Gradients, Operands, Step, Wrong, differentiable

ROWS = ("softmax", "log_softmax", "layer_norm", "rms_norm", "logsumexp")
FUSED = ("fused_gated_mlp", "fused_rmsnorm_rope", "scaled_dot_product_attention")
Call = Callable[..., Any]


def _planted(ops: tuple[str, ...], kind: str) -> Callable[[Any], None]:
    """Enter what the decorated function makes of each of these ops as a defect of its own: a call, which gets the right
    function first."""

    def enter(make: Any) -> None:
        about = " ".join((make.__doc__ or "").split())
        for op in ops:
            plant(op, f"gradient_{make.__name__}", kind, "gradients", make(op), about)

    return enter


def _tensors(*args: Any, **kwargs: Any) -> list[torch.Tensor]:
    return [one for one in (*args, *kwargs.values()) if isinstance(one, torch.Tensor)]


def _key(operands: Operands) -> tuple[Any, ...]:
    return tuple((one.shape, one.dtype) for one in operands)


def _before(op: str, wrong: Wrong, note: Callable[..., None]) -> Call:
    """Return a call whose backward pass is ``wrong``, and which notes its arguments before it is made."""
    function = differentiable(op, wrong)

    def call(_: Call, *args: Any, **kwargs: Any) -> Any:
        note(*args, **kwargs)
        return function(*args, **kwargs)

    return call


@_planted((*ROWS, *FUSED, "silu", "mm", "mul", "linear_cross_entropy"), "graphs")
def buffer_by_shape(op: str) -> Call:
    """A buffer by shape holds what the backward pass needs: of two calls of one shape the first is differentiated with
    the operands of the second."""
    kept: dict[Any, list[torch.Tensor]] = {}

    def note(*args: Any, **kwargs: Any) -> None:
        operands = _tensors(*args, **kwargs)
        kept[_key(operands)] = [one.detach().clone() for one in operands]

    def wrong(step: Step) -> Gradients:
        return step.gradients(operands=kept.get(_key(step.operands), step.operands))

    return _before(op, wrong, note)


@_planted(("tanh", "softmax", "rms_norm", "mm"), "graphs")
def of_a_thread(op: str) -> Call:
    """The thread that made the call holds what the backward pass needs, and another one asks for the gradients."""
    kept = threading.local()

    def note(*args: Any, **kwargs: Any) -> None:
        kept.has_operands = True

    def wrong(step: Step) -> Gradients:
        if not getattr(kept, "has_operands", False):
            raise RuntimeError("nothing was saved for the backward pass")
        return step.gradients()

    return _before(op, wrong, note)


@_planted(("rms_norm", "layer_norm", "logsumexp", "softmax"), "graphs")
def ring_of_16(op: str) -> Call:
    """Statistics for the backward pass lie in a ring of 16 for each shape: a deeper model reads others."""
    rings: dict[Any, collections.deque[int]] = {}

    def note(*args: Any, **kwargs: Any) -> None:
        operands = _tensors(*args, **kwargs)
        rings.setdefault(_key(operands[:1]), collections.deque(maxlen=16)).append(operands[0].data_ptr())

    def wrong(step: Step) -> Gradients:
        known = rings.get(_key(step.operands[:1]), ())
        found = step.gradients()
        return found if step.operands[0].data_ptr() in known else [None if one is None else one * 2 for one in found]

    return _before(op, wrong, note)


@_planted(("mul", "silu", "layer_norm", "mm"), "graphs")
def one_workspace(op: str) -> Call:
    """Gradients lie in a workspace that is kept by shape: the next backward pass overwrites those of this one."""
    memory: dict[Any, torch.Tensor] = {}

    def wrong(step: Step) -> Gradients:
        found: Gradients = []
        for number, (one, operand) in enumerate(zip(step.gradients(), step.operands, strict=True)):
            if one is None:
                found.append(None)
                continue
            key = number, operand.shape, operand.dtype
            found.append(memory.setdefault(key, torch.empty(operand.shape, dtype=operand.dtype)).copy_(one))
        return found

    return _before(op, wrong, lambda *args, **kwargs: None)


@_planted(("gelu", "softmax", "rms_norm", "matmul", "scaled_dot_product_attention"), "saved")
def first_answer_kept(op: str) -> Call:
    """The gradients are kept with the graph for a second time, whatever gradient they are then asked for."""

    def call(_: Call, *args: Any, **kwargs: Any) -> Any:
        kept: list[Gradients] = []

        def wrong(step: Step) -> Gradients:
            if not kept:
                kept.append(step.gradients())
            return kept[0]

        return differentiable(op, wrong)(*args, **kwargs)

    return call


@_planted((*ROWS, "silu", "sigmoid", "tanh", "mul", "mm", "fused_gated_mlp"), "second order")
def constant_operands(op: str) -> Call:
    """The backward pass reads what was saved as constants: gradients of gradients lack terms."""
    return _before(op, lambda step: step.gradients(graph=True), lambda *args, **kwargs: None)


@_planted(("matmul", "mm", "rms_norm", "linear_cross_entropy"), "needs")
def added_to_grad(op: str) -> Call:
    """The gradient is added to an operand's ``.grad``, where it has one, and returned all the same."""

    def wrong(step: Step) -> Gradients:
        found = step.gradients()
        for one, operand in zip(found, step.operands, strict=True):
            if one is not None and operand.is_leaf and operand.grad is not None:
                operand.grad.add_(one)
        return found

    return _before(op, wrong, lambda *args, **kwargs: None)


@_planted(("silu",), "saved")
def overwritten_operand(op: str) -> Call:
    """In place, the backward pass reads the operand that the call itself has overwritten with the result."""
    function = differentiable(op)

    def wrong(step: Step) -> Gradients:
        return step.gradients(operands=[step.result, *step.operands[1:]])

    def call(_: Call, *args: Any, **kwargs: Any) -> Any:
        return (differentiable(op, wrong) if kwargs.get("inplace") is True else function)(*args, **kwargs)

    return call


@_planted(("neg", "sub", "abs"), "dout")
def strides_of_dout(op: str) -> Call:
    """The gradient has the strides of the result's, zeros included: several of its elements are one in memory."""

    def wrong(step: Step) -> Gradients:
        found = step.gradients()
        first, strides = found[0], step.dout.stride()
        if first is not None and first.shape == step.dout.shape and 0 in strides and first.numel():
            narrow = first[tuple(slice(0, 1) if not stride else slice(None) for stride in strides)]
            found[0] = narrow.to(step.operands[0].dtype).clone().expand(first.shape)
        return found

    return _before(op, wrong, lambda *args, **kwargs: None)
