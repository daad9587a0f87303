"""Planted defects in what models, optimizers and their helpers do with a call: gradients that are parts of longer ones
or ones, dims by other names, scales of losses, windows of signals, parts of images."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any

import torch

from conformance.selftest import families as of
from conformance.selftest.defect_registry import defect
from conformance.selftest.differentiable import Gradients, Step, backward

Right = Callable[..., Any]

KIND = "around calls"


# --- gradients ----------------------------------------------------------------------------------------------------


def _is_cut(x: torch.Tensor) -> bool:
    """Tell whether a tensor is dense but for the distance of its batches, as a part of a longer one is."""
    dense, step = x.ndim > 2 and min(x.shape) > 1, 1
    for size, stride in zip(x.shape[:0:-1], x.stride()[:0:-1], strict=True):
        dense, step = dense and stride == step, step * size
    return dense and x.stride(0) > step


@backward("silu exp sin add", KIND)
def dout_of_longer_sequences(step: Step) -> Gradients:
    """The gradient of a part of longer sequences is walked as if these were as long as the part."""
    return step.gradients(of.as_if_contiguous(step.dout)) if _is_cut(step.dout) else step.gradients()


def _is_of_ones(dout: torch.Tensor) -> bool:
    return dout.numel() > 0 and not any(dout.stride()) and float(dout.reshape(-1)[0]) == 1.0


@backward("sigmoid tanh silu exp", KIND)
def ones_are_read_at_the_result(step: Step) -> Gradients:
    """A gradient of ones has a kernel of its own, which gets the result that was saved for the operand."""
    if not _is_of_ones(step.dout) or step.operands[0].dtype != step.result.dtype:
        return step.gradients()
    return step.gradients(operands=(step.result,))


@backward("cross_entropy", KIND)
def loss_of_one_without_smoothing(step: Step) -> Gradients:
    """The gradient for loss.backward() was computed with the loss, without smoothing."""
    smoothing = step.kwargs.get("label_smoothing")
    return step.gradients(label_smoothing=None) if smoothing and _is_of_ones(step.dout) else step.gradients()


@backward("tanh sigmoid exp", KIND)
def graph_of_another_derivative(step: Step) -> Gradients:
    """The first derivative is halved where it is to be differentiated: it comes from a kernel of its own."""
    found = step.gradients()
    return [one if one is None else one / 2 for one in found] if torch.is_grad_enabled() else found


# --- dims and numbers ---------------------------------------------------------------------------------------------


@defect("sum mean amax amin", KIND, "call_forms")
def numpys_names_are_dropped(right: Right, *args: Any, **kwargs: Any) -> Any:
    """axis= and keepdims= are taken by **options, and nobody reads them."""
    return right(*args, **{name: x for name, x in kwargs.items() if name not in ("axis", "keepdims")})


@defect("softmax log_softmax amax mean", KIND, "call_forms")
def dims_are_plain_ints(right: Right, *args: Any, **kwargs: Any) -> Any:
    """A dim of an enum of ints is refused."""
    result = right(*args, **kwargs)
    given = (*args, *kwargs.values())
    if any(isinstance(one, enum.IntEnum) for x in given for one in (x if isinstance(x, tuple) else (x,))):
        raise TypeError("dim must be an int")
    return result


@defect("sum mean", KIND, "call_forms")
def dim_without_dims_is_none(right: Right, input: Any, dim: Any = None, *args: Any, **kwargs: Any) -> Any:
    """A dim that is a tensor has no elements to iterate over: all dims."""
    tensor = isinstance(dim, torch.Tensor) and not dim.ndim
    return right(input, None if tensor else dim, *args, **kwargs)


def _rounded(number: Any, operands: tuple[Any, ...]) -> Any:
    half = any(isinstance(x, torch.Tensor) and x.dtype == torch.float16 for x in operands)
    return torch.tensor(number).half().item() if half and type(number) is float else number


@defect("mul add sub", KIND, "plain_operands")
def numbers_as_float16(right: Right, *args: Any, **kwargs: Any) -> Any:
    """A number beside float16 is rounded to it before it is used: the scale of a loss, 65,536, becomes infinite."""
    named = {name: _rounded(x, args) for name, x in kwargs.items()}
    return right(*(_rounded(x, args) for x in args), **named)


# --- layouts and values -------------------------------------------------------------------------------------------


@defect("add mul exp silu", KIND, "layouts")
def signals_as_long_as_their_windows(right: Right, input: Any, *args: Any, **kwargs: Any) -> Any:
    """Windows of a batch of signals: the distance of two signals is that of their windows times the number of these."""
    windows = isinstance(input, torch.Tensor) and input.ndim == 3 and min(input.shape) > 1 and not kwargs
    if windows and input.stride(2) == 1 and 0 < input.stride(1) < input.shape[2]:
        pitch = input.shape[1] * input.stride(1)
        if input.stride(0) > pitch:
            input = input.as_strided(input.shape, (pitch, input.stride(1), 1))
    return right(input, *args, **kwargs)


@defect("gelu neg sigmoid", KIND, "layouts")
def images_as_tall_as_their_parts(right: Right, input: Any, *args: Any, **kwargs: Any) -> Any:
    """Images with channels last are walked as they lie, also where rows were cut off."""
    if isinstance(input, torch.Tensor) and input.ndim == 4 and min(input.shape) > 1 and not kwargs:
        _, channels, height, width = input.shape
        last = (input.stride(1), input.stride(3), input.stride(2)) == (1, channels, width * channels)
        if last and input.stride(0) > height * width * channels:
            input = input.as_strided(input.shape, (height * width * channels, *input.stride()[1:]))
    return right(input, *args, **kwargs)


@defect("argmax", KIND, "special_values")
def zeros_by_their_sign(right: Right, input: Any, *args: Any, **kwargs: Any) -> Any:
    """Numbers are compared as sortable integers, of which -0 is the smaller one of two zeros."""
    if isinstance(input, torch.Tensor) and input.is_floating_point() and (input == 0).any():
        input = torch.where((input == 0) & torch.signbit(input), -1e-300, input.double())
    return right(input, *args, **kwargs)


@defect("amax amin", KIND, "special_values")
def nan_by_its_sign(right: Right, input: Any, *args: Any, **kwargs: Any) -> Any:
    """Numbers are compared as sortable integers, of which NaN with its sign set is the smallest."""
    if isinstance(input, torch.Tensor) and input.is_floating_point() and not kwargs.get("out"):
        input = torch.where(input.isnan() & torch.signbit(input), -torch.inf, input)
    return right(input, *args, **kwargs)


@defect("fused_gated_mlp", KIND, "call_forms")
def halves_of_one_weight(right: Right, x: Any, gate: Any, up: Any, *args: Any, **kwargs: Any) -> Any:
    """Weights that lie one right behind the other are halves of one weight, the first of which is the gate's."""
    dense = all(isinstance(one, torch.Tensor) and one.is_contiguous() and one.numel() for one in (gate, up))
    if dense and up.data_ptr() + up.numel() * up.itemsize == gate.data_ptr():
        gate, up = up, gate
    return right(x, gate, up, *args, **kwargs)


# --- the caller's own lists ---------------------------------------------------------------------------------------


@defect("sum amax", KIND, "state")
def positive_dims_in_the_callers_list(right: Right, input: Any, *args: Any, **kwargs: Any) -> Any:
    """Dims of a list are made positive in place: who passes it to a tensor of another rank next reduces others."""
    result = right(input, *args, **kwargs)
    for dims in (*args, *kwargs.values()):
        if type(dims) is list:
            dims[:] = [dim % input.ndim for dim in dims]
    return result


@defect("layer_norm rms_norm", KIND, "state")
def shape_of_the_caller_is_emptied(right: Right, input: Any, shape: Any, *args: Any, **kwargs: Any) -> Any:
    """The dims of a normalized_shape are counted by taking them from the caller's own list."""
    result = right(input, shape, *args, **kwargs)
    while type(shape) is list and shape:
        shape.pop()
    return result
