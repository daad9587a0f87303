"""Planted defects of what comes between a call and its backward pass, and of batches of batches and of random calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._C import _functorch
from torch._functorch.pyfunctorch import VmapInterpreter, retrieve_all_functorch_interpreters
from torch.utils.weak import WeakIdKeyDictionary

from conformance.selftest.defect_registry import defect

Right = Callable[..., Any]

_TURNED = WeakIdKeyDictionary()


def _is_recorded(*tensors: Any) -> bool:
    """Tell whether autograd alone records a call of these arguments."""
    return (
        torch.is_grad_enabled()
        and not torch.is_autocast_enabled("cpu")
        and _functorch.peek_interpreter_stack() is None
        and all(type(one) in (torch.Tensor, torch.nn.Parameter) for one in tensors)
        and any(one.requires_grad for one in tensors)
    )


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, input: torch.Tensor, weight: torch.Tensor, parameter: list[torch.Tensor]) -> torch.Tensor:
        ctx.save_for_backward(input, weight)
        ctx.parameter = parameter
        return input @ weight

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        (dout,), (input, weight) = grads, ctx.saved_tensors
        (parameter,) = ctx.parameter
        if parameter not in _TURNED:
            _TURNED[parameter] = weight.mT.detach().contiguous()
        return dout @ _TURNED[parameter], input.mT @ dout, None


@defect("mm", "gradients", "gradients", "gradient_weight_of_the_first_step")
def _mm(right: Right, input: Any, mat2: Any, **kwargs: Any) -> Any:
    """Keep the transposed weight of a parameter's first backward pass."""
    if kwargs or type(mat2) is not torch.nn.Parameter or not _is_recorded(input, mat2) or input.dtype != mat2.dtype:
        return right(input, mat2, **kwargs)
    return _Product.apply(input, mat2, [mat2])


class _InPlace(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, input: torch.Tensor, write: Callable[[torch.Tensor], Any]) -> torch.Tensor:
        write(input)
        ctx.mark_dirty(input)
        ctx.result = input.detach()
        return input

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        (dout,) = grads
        return torch.where(ctx.result <= 0, torch.zeros((), dtype=dout.dtype), dout), None


@defect("relu", "gradients", "gradients", "gradient_result_past_autograd")
def _relu(right: Right, input: Any, inplace: Any = False) -> Any:
    """Keep the result of a call in place so that autograd does not notice who changes it."""
    if inplace is not True or not _is_recorded(input) or input.is_leaf or input._is_view():
        return right(input, inplace)
    return _InPlace.apply(input, lambda one: right(one, True))


def _scales(shape: Any, p: float, offset: torch.Tensor) -> torch.Tensor:
    generator = torch.Generator().manual_seed((torch.initial_seed() * 1_000_003 + int(offset)) % (1 << 62))
    return (torch.rand(shape, generator=generator, dtype=torch.float64) >= p) / (1 - p)


class _Dropped(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, input: torch.Tensor, p: float) -> torch.Tensor:
        offset = torch.randint(1 << 40, ())
        ctx.save_for_backward(offset)
        ctx.p = p
        return torch.empty_like(input).copy_(input * _scales(input.shape, p, offset))

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        ((dout,), (offset,)) = grads, ctx.saved_tensors
        return (dout * _scales(dout.shape, ctx.p, offset)).to(dout.dtype), None


@defect("dropout", "gradients", "gradients", "gradient_mask_of_another_seed")
def _dropout(right: Right, input: Any, p: Any = 0.5, training: Any = True, inplace: Any = False) -> Any:
    """Draw the mask of the backward pass from the seed that torch has by then."""
    is_drawn = type(p) is float and 0 < p < 1 and training is True and not inplace
    if (
        not is_drawn
        or not _is_recorded(input)
        or input.dtype not in (torch.float32, torch.float64)
        or not input.numel()
    ):
        return right(input, p, training, inplace)
    return _Dropped.apply(input, p)


# --- torch.func.vmap -----------------------------------------------------------------------------------------------


@defect("softmax log_softmax", "batch", "vmap")
def one_of_two_batches(right: Right, input: Any, dim: Any, *args: Any, **kwargs: Any) -> Any:
    """Count a dim from the front one too few in a batch of batches."""
    is_nested = _functorch.is_batchedtensor(input) and _functorch.is_batchedtensor(_functorch.get_unwrapped(input))
    if is_nested and type(dim) is int and dim >= 0 and input.ndim > 1:
        dim = (dim + 1) % input.ndim
    return right(input, dim, *args, **kwargs)


def _randomness(input: Any) -> str:
    """Return what a batch's ``vmap`` was told of draws; empty: there is none."""
    stack = retrieve_all_functorch_interpreters() if _functorch.peek_interpreter_stack() is not None else []
    top = stack[-1] if stack else None
    return top.randomness() if isinstance(top, VmapInterpreter) and _functorch.is_batchedtensor(input) else ""


@defect("dropout", "batch", "distribution")
def parts_draw_for_themselves(
    right: Right, input: Any, p: Any = 0.5, training: Any = True, inplace: Any = False
) -> Any:
    """Draw a mask for each part of a batch that shares its draws."""
    if _randomness(input) != "same" or inplace:
        return right(input, p, training, inplace)
    level, dim = _functorch.maybe_get_level(input), _functorch.maybe_get_bdim(input)
    return _functorch._add_batch_dim(right(_functorch.get_unwrapped(input), p, training), dim, level)


@defect("dropout", "batch", "distribution")
def parts_that_may_not_draw(right: Right, input: Any, p: Any = 0.5, training: Any = True, inplace: Any = False) -> Any:
    """Drop elements in a batch that may not draw."""
    if _randomness(input) != "error" or type(p) is not float or not 0 < p < 1 or training is not True or inplace:
        return right(input, p, training, inplace)
    with retrieve_all_functorch_interpreters()[-1].lower():
        kept = torch.rand(input.shape, dtype=torch.float64) >= p
    return torch.where(kept, input / (1 - p), input * 0)
