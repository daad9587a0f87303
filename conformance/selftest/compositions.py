"""Planted defects of calls that meet others of the same library: results as operands, graphs of several calls, calls
inside of a backward pass, in other threads, and with what the caller changes in between."""

from __future__ import annotations

import threading
import weakref
from functools import partial
from typing import Any

import torch

from conformance.selftest.defect_registry import defect, plant
from conformance.selftest.differentiable import Gradients, Step, backward, differentiable

KIND = "compositions"
_results: weakref.WeakValueDictionary[int, torch.Tensor] = weakref.WeakValueDictionary()
"""Maps the identity of each result of the functions below to it, while it lives."""


def _noted(result: Any) -> Any:
    if type(result) is torch.Tensor:
        _results[id(result)] = result
    return result


def _is_own(operand: Any) -> bool:
    return type(operand) is torch.Tensor and not operand.requires_grad and _results.get(id(operand)) is operand


@defect("silu exp neg tanh", KIND, "bare")
def own_results_are_temporaries(right: Any, input: Any, *args: Any, **kwargs: Any) -> Any:
    """A result of the library's own is written in place, as an intermediate one of a chain."""
    result = right(input, *args, **kwargs)
    if args or kwargs or not _is_own(input) or result is input or input.is_inference():
        return _noted(result)
    return input.copy_(result).detach()


@defect("abs relu", KIND, "bare")
def own_results_are_not_negative(right: Any, input: Any, *args: Any, **kwargs: Any) -> Any:
    """A result of the library's own is copied, whatever it holds by now."""
    if not args and not kwargs and _is_own(input) and not input.is_inference():
        return input.clone()
    return _noted(right(input, *args, **kwargs))


class _DimOfTheLastCall(torch.autograd.Function):
    dim = 0

    @staticmethod
    def forward(ctx: Any, input: torch.Tensor, dim: int) -> torch.Tensor:
        _DimOfTheLastCall.dim = dim
        result = torch.softmax(input, dim)
        ctx.save_for_backward(result)
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        (result,) = ctx.saved_tensors
        return torch._softmax_backward_data(gradients[0], result, _DimOfTheLastCall.dim, result.dtype), None


def _asks(input: Any) -> bool:
    return isinstance(input, torch.Tensor) and input.requires_grad and torch.is_grad_enabled()


@defect("softmax", KIND, "gradients")
def gradient_along_the_dim_of_the_last_call(right: Any, input: Any, dim: Any = None, dtype: Any = None) -> Any:
    """The dim is kept on the class, where the next call leaves its own."""
    if not _asks(input) or dtype is not None or type(dim) is not int or torch._C._are_functorch_transforms_active():
        return differentiable("softmax")(input, dim, dtype)
    return _DimOfTheLastCall.apply(input, dim)


def _of_their_dtypes(step: Step) -> Gradients:
    pairs = zip(step.gradients(), step.operands, strict=True)
    return [None if one is None else one.to(operand.dtype, copy=True) for one, operand in pairs]


_buffer: list[Any] = [None, lambda: None]


@backward("mm addmm mul", KIND)
def one_buffer_of_a_backward_pass(step: Step) -> Gradients:
    """The last operand's gradient lies where an earlier node of the same backward pass has put it."""
    *others, found = _of_their_dtypes(step)
    pass_ = torch._C._current_graph_task_id(), step.operands[-1].data_ptr()
    last, earlier = _buffer[0], _buffer[1]()
    if found is not None and not torch.is_grad_enabled():
        alike = last == pass_ and earlier is not None and (earlier.shape, earlier.dtype) == (found.shape, found.dtype)
        found = earlier.copy_(found) if alike else found
        _buffer[:] = pass_, weakref.ref(found)
    return [*others, found]


_gradients: weakref.WeakValueDictionary[int, torch.Tensor] = weakref.WeakValueDictionary()


@backward("silu exp softmax", KIND)
def over_gradients_of_its_own(step: Step) -> Gradients:
    """A gradient of the result that a backward pass of the library has made is written over."""
    (found,) = _of_their_dtypes(step)
    if found is None or torch.is_grad_enabled():
        return [found]
    dout = step.dout
    if _gradients.get(dout.data_ptr()) is not None and (dout.shape, dout.stride()) == (found.shape, found.stride()):
        return [dout.copy_(found)]
    _gradients[found.data_ptr()] = found
    return [found]


@backward("mm bmm matmul addmm", KIND)
def of_no_terms_unwritten(step: Step) -> Gradients:
    """The gradient of an operand is memory that nobody wrote, where the result is empty."""
    if step.dout.numel():
        return step.gradients()
    return [None if one is None else torch.empty_like(one).fill_(float("nan")) for one in step.gradients()]


class _WithAlphaOfNow(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, other: torch.Tensor, alpha: torch.Tensor) -> torch.Tensor:
        ctx.alpha, ctx.was = alpha, alpha.clone()
        return other.view_as(other)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        changed = not torch.equal(ctx.alpha, ctx.was)
        return gradients[0] * (3 if changed else 1), None


def _with_alpha_of_now(right: Any, *args: Any, _call: Any, **kwargs: Any) -> Any:
    alpha = kwargs.get("alpha")
    if not isinstance(alpha, torch.Tensor) or len(args) < 2 or not _asks(args[1]) or "out" in kwargs:
        return _call(*args, **kwargs)
    return _call(args[0], _WithAlphaOfNow.apply(args[1], alpha), **kwargs)


for _op in ("add", "sub"):
    _call = partial(_with_alpha_of_now, _call=differentiable(_op))
    _about = "An alpha that is a 0-d tensor is read again in the backward pass."
    plant(_op, "gradient_alpha_read_again", KIND, "gradients", _call, _about)


@defect("mm bmm matmul", KIND, "modes")
def inside_a_backward_pass_in_bfloat16(right: Any, *args: Any, **kwargs: Any) -> Any:
    """A call inside of a backward pass is taken for one of a gradient, and rounded to bfloat16."""
    result = right(*args, **kwargs)
    inside = torch._C._current_graph_task_id() != -1 and type(result) is torch.Tensor and result.is_floating_point()
    return result.bfloat16().to(result.dtype) if inside and "out" not in kwargs else result


_own = threading.local()


@defect("dropout", KIND, "distribution")
def threads_have_generators_of_one_seed(
    right: Any, input: Any, p: Any = 0.5, training: Any = True, **kwargs: Any
) -> Any:
    """Each other thread has a generator of its own, which a later seed does not reach."""
    if threading.current_thread() is threading.main_thread() or kwargs or training is not True or type(p) is not float:
        return right(input, p, training, **kwargs)
    if not hasattr(_own, "generator"):
        _own.generator = torch.Generator().manual_seed(torch.initial_seed())
    state = torch.default_generator.get_state()
    torch.default_generator.set_state(_own.generator.get_state())
    try:
        return right(input, p, training)
    finally:
        _own.generator.set_state(torch.default_generator.get_state())
        torch.default_generator.set_state(state)


@defect("relu", KIND, "kinds")
def quantized_as_whole_numbers(right: Any, input: Any, *args: Any, **kwargs: Any) -> Any:
    """Of a quantized tensor the whole numbers that are stored are taken for its elements."""
    if not isinstance(input, torch.Tensor) or not input.is_quantized:
        return right(input, *args, **kwargs)
    found = right(input.int_repr().float(), *args, **kwargs).clamp(0, 255)
    return torch._make_per_tensor_quantized_tensor(found.to(torch.uint8), input.q_scale(), input.q_zero_point())


@defect("gelu relu sigmoid tanh", KIND, "kinds")
def dense_instead_of_onednn(right: Any, input: Any, *args: Any, **kwargs: Any) -> Any:
    """The result of a tensor in oneDNN's layout is dense."""
    if not isinstance(input, torch.Tensor) or not input.is_mkldnn:
        return right(input, *args, **kwargs)
    return right(input.to_dense(), *args, **kwargs)


@defect("cross_entropy", KIND)
def ignored_modulo_256(right: Any, input: Any, target: Any, *args: Any, **kwargs: Any) -> Any:
    """The index that is ignored is cast to the dtype of the labels."""
    if not args and isinstance(target, torch.Tensor) and target.dtype == torch.uint8:
        kwargs["ignore_index"] = kwargs.get("ignore_index", -100) % 256
    return right(input, target, *args, **kwargs)


@defect("pow", KIND)
def small_powers_of_two_are_zero(right: Any, input: Any, exponent: Any, **kwargs: Any) -> Any:
    """Powers of 2 below the normal numbers are 0."""
    result = right(input, exponent, **kwargs)
    if (
        kwargs
        or not isinstance(result, torch.Tensor)
        or not result.is_floating_point()
        or isinstance(input, torch.Tensor)
        or input != 2
    ):
        return result
    return torch.where(result.abs() < torch.finfo(result.dtype).smallest_normal, 0.0, result)
