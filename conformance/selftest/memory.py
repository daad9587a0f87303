"""Planted defects of memory: reads and writes beside a tensor, by address as compiled kernels make them; elements not
written; and what ends the process."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from typing import Any

import torch

from conformance.runner import CRASH
from conformance.selftest import families as of
from conformance.selftest.defect_registry import defect, plant

Right = Callable[..., Any]


def _zero(tensor: torch.Tensor, element: int, count: int = 1) -> None:
    """Store zeros, counted from the tensor's first element, wherever that is."""
    ctypes.memset(tensor.data_ptr() + element * tensor.itemsize, 0, count * tensor.itemsize)


def _own(result: torch.Tensor) -> torch.Tensor:
    """The result in memory that the call allocates itself, as a kernel's is."""
    return torch.empty_strided(result.shape, result.stride(), dtype=result.dtype).copy_(result)


def _fits(result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether the result is new memory of some elements."""
    return not of.written(args, kwargs) and result.numel() > 3 and not any(result is x for x in args)


@defect(("sub", "gelu", "isnan", "rms_norm", "bmm", "bitwise_and"), "memory", "guard_bands")
def stores_past_result(right: Right, *args: Any, **kwargs: Any) -> Any:
    """The tail block is stored one element too far."""
    result = right(*args, **kwargs)
    if _fits(result, args, kwargs) and result.is_contiguous():
        result = _own(result)
        _zero(result, result.numel())
    return result


@defect(("mul", "silu", "layer_norm", "matmul", "rotary_position_embedding"), "memory", "guard_bands")
def stores_before_result(right: Right, *args: Any, **kwargs: Any) -> Any:
    """A store begins two elements before the result."""
    result = right(*args, **kwargs)
    if _fits(result, args, kwargs) and result.is_contiguous():
        result = _own(result)
        _zero(result, -2, 2)
    return result


@defect(("exp", "eq", "addmm", "clamp"), "memory", "guard_bands")
def stores_past_out(right: Right, *args: Any, out: Any = None, **kwargs: Any) -> Any:
    """The tail block of 16 is stored whole into out=."""
    result = right(*args, out=out, **kwargs)
    if isinstance(out, torch.Tensor) and out.is_contiguous() and out.numel() % 16 and not any(out is x for x in args):
        _zero(out, out.numel(), 16 - out.numel() % 16)
    return result


@defect(("tanh", "sub", "softmax", "mm", "dropout"), "memory", "guard_bands")
def stores_past_input(right: Right, *args: Any, **kwargs: Any) -> Any:
    """Stores past the end of its first operand."""
    result = right(*args, **kwargs)
    first = args[0]
    if isinstance(first, torch.Tensor) and first.is_contiguous() and first.numel() and _fits(result, args, kwargs):
        _zero(
            first, first.untyped_storage().nbytes() // first.itemsize - 8192 // first.itemsize - first.storage_offset()
        )
    return result


@defect(("relu", "abs", "mul", "rsqrt", "softmax", "layer_norm"), "memory", "guard_bands")
def reads_past_input(right: Right, *args: Any, **kwargs: Any) -> Any:
    """Multiplies what lies past a float32 operand with 0 instead of masking it."""
    result = right(*args, **kwargs)
    first = args[0]
    fits = isinstance(first, torch.Tensor) and first.dtype == result.dtype == torch.float32 and first.is_contiguous()
    if fits and _fits(result, args, kwargs):
        beyond = (ctypes.c_char * 4).from_address(first.data_ptr() + first.numel() * 4)
        result = _own(result)
        result.view(-1)[-1] += torch.frombuffer(bytearray(beyond), dtype=torch.float32)[0] * 0
    return result


@defect(("neg", "cos", "ge", "add", "softmax", "rms_norm", "mm", "bitwise_or", "isinf"), "memory", "fully_written")
def unwritten_last(right: Right, *args: Any, **kwargs: Any) -> Any:
    """The last element is left as it was allocated."""
    result = right(*args, **kwargs)
    if not _fits(result, args, kwargs) or not result.is_contiguous():
        return result
    found = torch.empty_strided(result.shape, result.stride(), dtype=result.dtype)
    ctypes.memmove(found.data_ptr(), result.data_ptr(), (result.numel() - 1) * result.itemsize)
    return found


@defect(("sigmoid", "div", "lt", "bmm"), "memory", "fully_written")
def unwritten_resized_out(right: Right, *args: Any, out: Any = None, **kwargs: Any) -> Any:
    """The last element of an out= that was resized is not written."""
    if not isinstance(out, torch.Tensor) or out.numel():
        return right(*args, out=out, **kwargs)
    result = right(*args, **kwargs)
    if out.dtype != result.dtype or result.numel() < 4 or not result.is_contiguous():
        return right(*args, out=out, **kwargs)
    out.resize_(result.shape)
    ctypes.memmove(out.data_ptr(), result.data_ptr(), (result.numel() - 1) * result.itemsize)
    return out


@defect(("softmax", "layer_norm", "mul"), "memory", "fully_written")
def sums_into_scratch(right: Right, *args: Any, **kwargs: Any) -> Any:
    """Adds to memory that it did not zero."""
    result = right(*args, **kwargs)
    if _fits(result, args, kwargs) and result.dtype == torch.float32 and result.is_contiguous():
        scratch = torch.empty(1)
        result.view(-1)[0] += scratch[0].nan_to_num(nan=0.0) * 0 + torch.isnan(scratch[0]) * 2.0**-20
    return result


def _dies(end: Callable[[], object]) -> Right:
    def wrong(right: Right, input: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(input, torch.Tensor) and input.numel() > 16:
            end()
        return right(input, *args, **kwargs)

    return wrong


plant("isnan", "segfault", "death", CRASH, _dies(lambda: ctypes.string_at(0)), "of more than a few elements reads at 0")
plant("isinf", "abort", "death", CRASH, _dies(os.abort), "of more than a few elements aborts")
plant("bitwise_not", "exit", "death", CRASH, _dies(lambda: os._exit(3)), "of more than a few elements ends the process")
