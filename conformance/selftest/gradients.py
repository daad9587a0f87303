"""Plant mistakes in any backward pass: in gradients of results that lie otherwise, in what is saved and for whom."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from typing import Any

import torch

from conformance.selftest import families as of
from conformance.selftest.defect_registry import plant
from conformance.selftest.differentiable import Gradients, Step, backward, differentiable

SOME = ("mul", "exp", "gelu", "softmax", "layer_norm", "rms_norm", "mm", "bmm", "matmul", "dropout")
FUSED = ("rotary_position_embedding", "fused_rmsnorm_rope", "fused_gated_mlp", "scaled_dot_product_attention")
NOBODY = 8
"""The references to a result's gradient in a backward pass that autograd alone hands it to."""
SAVING = ("mul", "div", "sin", "silu", "softmax", "layer_norm", "mm", *FUSED)


# --- the gradient of the result ----------------------------------------------------------------------------------


@backward((*SOME, *FUSED, "add", "clamp", "addmm", "sum", "mean", "logsumexp", "amax", "cumsum", "log_softmax"), "dout")
def strides_assumed(step: Step) -> Gradients:
    """The gradient of the result is read as if it were contiguous."""
    return step.gradients(of.dense(step.dout))


@backward(("mul", "silu", "softmax", "rms_norm", "mm", "dropout", "cumsum", "mean", "amax", *FUSED), "dout")
def expanded_once(step: Step) -> Gradients:
    """Of a gradient of the result with a stride of 0, as that of a sum is, the first element along it counts."""
    dout = step.dout.clone()
    for dim, (size, stride) in enumerate(zip(step.dout.shape, step.dout.stride(), strict=True)):
        if size > 1 and stride == 0:
            dout.narrow(dim, 1, size - 1).zero_()
    return step.gradients(dout)


@backward(("gelu", "tanh", "layer_norm"), "dout")
def expanded_in_two_dims(step: Step) -> Gradients:
    """Of a gradient of the result with strides of 0 in its last two dims that are not of one element, and others in
    front, as behind a sum over pixels, one row is read on into the next ones."""
    dims = [dim for dim, size in enumerate(step.dout.shape) if size > 1]
    if len(dims) < 3 or any(step.dout.stride(dim) for dim in dims[-2:]) or not step.dout.stride(dims[-3]):
        return step.gradients()
    return step.gradients(step.dout.roll(1, dims[-3]))


@backward(("exp", "relu", "tanh", "softmax", "layer_norm"), "dout")
def written_to_dout(step: Step) -> Gradients:
    """The gradient is written over that of the result."""
    found = step.gradients()
    dout = step.dout.detach()
    if found[0] is not None and dout.shape == found[0].shape and 0 not in dout.stride():
        dout.copy_(found[0])
    return found


@backward(("rotary_position_embedding", "mul", "layer_norm", "mm"), "dout")
def written_to_dout_beside_constants(step: Step) -> Gradients:
    """The gradient is written over the result's where the first operand alone needs one."""
    found = step.gradients()
    dout = step.dout.detach()
    alone = step.needed[0] and sum(step.needed) == 1 < len(step.needed)
    if alone and found[0] is not None and dout.shape == found[0].shape and 0 not in dout.stride():
        dout.copy_(found[0])
    return found


@backward(("exp", "gelu", "softmax", "log_softmax"), "dout")
def written_to_dout_that_nobody_holds(step: Step) -> Gradients:
    """The gradient is written over that of the result, if no Python name holds that: autograd may hold it twice."""
    found = step.gradients()
    if sys.getrefcount(step.dout) <= NOBODY and found[0] is not None and 0 not in step.dout.stride():
        step.dout.detach().copy_(found[0])
    return found


@backward(("cos", "silu", "matmul", "layer_norm"), "dout")
def negation_of_dout_overlooked(step: Step) -> Gradients:
    """Of a gradient of the result that is negated when it is read, what lies in memory is read."""
    return step.gradients(-step.dout if step.dout.is_neg() else step.dout)


@backward(("abs", "gelu", "matmul", "rms_norm"), "dout")
def refuses_strides(step: Step) -> Gradients:
    """A gradient of the result that is not contiguous is refused."""
    if not step.dout.is_contiguous():
        raise RuntimeError("grad_output must be contiguous")
    return step.gradients()


# --- what is saved, and for whom ---------------------------------------------------------------------------------


@backward(SAVING, "saved", unseen="all")
def unseen(step: Step) -> Gradients:
    """What is saved is kept out of autograd's sight, so that a change in place goes unnoticed."""
    return step.gradients()


@backward(("cross_entropy", "linear_cross_entropy"), "saved", unseen="indices")
def indices_unseen(step: Step) -> Gradients:
    """Class indices are kept out of autograd's sight, so that new ones in their memory go unnoticed."""
    return step.gradients()


@backward(("rms_norm", "layer_norm", "mm", "mul"), "saved")
def grad_overwritten(step: Step) -> Gradients:
    """The gradient of the last operand is written to its ``.grad``, if there is one, in place of being added."""
    found = step.gradients()
    own = step.operands[-1]
    if found[-1] is not None and own.is_leaf and own.grad is not None:
        own.grad.copy_(found[-1])
        found[-1] = None
    return found


@backward(("exp", "sigmoid", "mm", "layer_norm", "scaled_dot_product_attention"), "saved")
def input_overwritten(step: Step) -> Gradients:
    """The backward pass uses an operand for scratch."""
    found = step.gradients()
    operand = step.operands[0].detach()
    if operand.is_contiguous() and operand.numel():
        operand.view(-1)[-1] = 0
    return found


@backward(("mul", "layer_norm", "addmm", "scaled_dot_product_attention", "fused_gated_mlp"), "needs")
def all_or_nothing(step: Step) -> Gradients:
    """Where not all operands need a gradient, the last one that does gets none."""
    found = step.gradients()
    if all(step.needed):
        return found
    last = max(n for n, needed in enumerate(step.needed) if needed)
    return [None if n == last else one for n, one in enumerate(found)]


def _twice(op: str) -> Callable[..., torch.Tensor]:
    def call(right: Callable[..., torch.Tensor], *args: Any, **kwargs: Any) -> torch.Tensor:
        passes = itertools.count(1)

        def wrong(step: Step) -> Gradients:
            scale = next(passes)
            return [one if one is None else one * scale for one in step.gradients()]

        return differentiable(op, wrong)(*args, **kwargs)

    return call


for _op in ("silu", "softmax", "mm", "rms_norm", "fused_rmsnorm_rope", "dropout"):
    _about = "A second pass through one graph adds to what the first left in a buffer."
    plant(_op, "gradient_accumulated", "saved", "gradients", _twice(_op), _about)


def _without(right: Callable[..., torch.Tensor], *args: object, **kwargs: object) -> torch.Tensor:
    """The result knows nothing of its operands, although gradients are claimed."""
    return right(*args, **kwargs)


for _op in ("cos", "neg", "bmm", "dropout", "rotary_position_embedding"):
    plant(_op, "gradient_none", "needs", "gradients", _without)
