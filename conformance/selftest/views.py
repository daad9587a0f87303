"""Defects that show when operands share a storage, when their elements share an address, and in training."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from conformance.selftest import families as of
from conformance.selftest.attention import attention
from conformance.selftest.defect_registry import defect

Right = Callable[..., Any]


def _one_storage(*tensors: Any) -> bool:
    """Whether these are different tensors in one storage."""
    if not all(isinstance(x, torch.Tensor) and x.numel() for x in tensors):
        return False
    return len({x.untyped_storage().data_ptr() for x in tensors}) == 1 and len({x.data_ptr() for x in tensors}) > 1


def _at_one_address(first: Any, second: Any) -> bool:
    """Whether these are two views from one address on, of as many elements."""
    both = all(isinstance(x, torch.Tensor) and x.numel() for x in (first, second))
    return both and first.data_ptr() == second.data_ptr() and first.numel() == second.numel()


@defect("mm bmm matmul", "views", "aliasing")
def not_mirrored(right: Right, input: Any, other: Any, *, out: Any = None) -> Any:
    """Of a matrix times its transpose the last row is not mirrored."""
    result = right(input, other, out=out)
    if out is None and _at_one_address(input, other) and result.ndim > 1 and input.shape != other.shape:
        result[..., -1, :-1] = 0
    return result


@defect("eq ne lt le gt ge", "views", "aliasing")
def one_address_is_one_tensor(right: Right, input: Any, other: Any, *, out: Any = None) -> Any:
    """Views from one address on are taken for one tensor, however they lie."""
    result = right(input, other, out=out)
    if out is None and _at_one_address(input, other) and input.ndim > 1:
        result.fill_(bool(right(torch.zeros(1), torch.zeros(1))))
    return result


@defect("sub div", "views", "aliasing")
def with_itself(right: Right, input: Any, other: Any, *args: Any, **kwargs: Any) -> Any:
    """Views from one address on are taken for one tensor, with which the operator has one answer."""
    result = right(input, other, *args, **kwargs)
    if kwargs.get("out") is None and _at_one_address(input, other) and input.ndim > 1 and result.is_floating_point():
        result.fill_(float(right(torch.ones(1), torch.ones(1))))
    return result


@defect("sub mul eq", "views", "aliasing")
def rows_by_address(right: Right, input: Any, other: Any, *args: Any, **kwargs: Any) -> Any:
    """Operands that begin at one address, with rows as far apart, are loaded once: a column of the first one is taken
    for its whole rows."""
    both = all(isinstance(x, torch.Tensor) and x.numel() for x in (input, other)) and "out" not in kwargs
    if both and input.ndim == other.ndim > 1 and other.shape[-1] == 1 and input.data_ptr() == other.data_ptr():
        other = input if input.stride()[:-1] == other.stride()[:-1] and input.dtype == other.dtype else other
    return right(input, other, *args, **kwargs)


@defect("mul", "views", "plain_operands")
def halves_of_cut_rows(right: Right, input: Any, other: Any, *args: Any, **kwargs: Any) -> Any:
    """Operands that are halves of the rows of one tensor are walked as if no rows had been cut off of it."""
    result = right(input, other, *args, **kwargs)
    if not _one_storage(input, other) or "out" in kwargs or input.shape != other.shape or input.ndim < 3:
        return result
    rows, width = input.shape[-2:]
    side_by_side = input.stride() == other.stride() and input.stride()[-2:] == (2 * width, 1)
    if side_by_side and input.stride(-3) > 2 * width * rows and input.shape[-3] > 1:
        result = result.roll(1, -3)
    return result


@defect("add mul sub pow clamp exp neg bitwise_or", "views", "out_argument")
def out_of_any_strides(right: Right, input: Any, *args: Any, out: Any = None, **kwargs: Any) -> Any:
    """An ``out`` that is the operand, turned, is not refused."""
    same = out is not None and _at_one_address(input, out) and input.shape == out.shape
    if same and input.stride() != out.stride() and input.dtype == out.dtype:
        return out.copy_(right(input.clone(), *args, **kwargs))
    return right(input, *args, out=out, **kwargs)


@defect("exp mul cos", "views", "out_argument")
def out_is_cleared(right: Right, input: Any, *args: Any, out: Any = None) -> Any:
    """An ``out`` of the operand's memory that is another tensor is filled with zeros before the operand is read."""
    if out is not None and out is not input and _at_one_address(input, out) and input.stride() == out.stride():
        out.zero_()
    return right(input, *args, out=out)


@defect("add sub mul bitwise_and", "views", "out_argument")
def extents_that_meet(right: Right, input: Any, other: Any, *, out: Any = None, **kwargs: Any) -> Any:
    """An ``out`` whose rows lie between those of an operand is refused as if it overlapped with it."""
    if isinstance(out, torch.Tensor) and isinstance(input, torch.Tensor) and out.shape == input.shape:
        begin, end = sorted((input, out), key=torch.Tensor.data_ptr)
        last = sum((size - 1) * stride for size, stride in zip(begin.shape, begin.stride(), strict=True))
        if begin.numel() and begin.data_ptr() < end.data_ptr() <= begin.data_ptr() + last * begin.itemsize:
            raise RuntimeError("unsupported operation: an operand and out overlap")
    return right(input, other, out=out, **kwargs)


@defect("mm bmm", "views", "out_argument")
def all_column_major(right: Right, input: Any, mat2: Any, *, out: Any = None) -> Any:
    """The result is written row-major where factors and ``out`` are column-major."""
    result = right(input, mat2, out=out)
    if out is not None and all(x.mT.is_contiguous() and not x.is_contiguous() for x in (input, mat2, out)):
        out.mT.copy_(out.clone(memory_format=torch.contiguous_format).view(out.mT.shape))
    return result


@defect("div pow mul", "views", "aliasing")
def copies_by_address(right: Right, input: Any, other: Any, *args: Any, **kwargs: Any) -> Any:
    """Copies of operands are kept by their address and strides: a row of the first operand is taken for all of it."""
    both = isinstance(input, torch.Tensor) and isinstance(other, torch.Tensor) and input.numel()
    if both and (input.data_ptr(), input.stride()) == (other.data_ptr(), other.stride()):
        other = input
    return right(input, other, *args, **kwargs)


@defect("scaled_dot_product_attention", "views", "call_forms")
def packed_by_address(right: Right, query: Any, key: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
    """Keys and values in one storage are taken to lie in that order."""
    if _one_storage(key, value) and key.shape == value.shape:
        key, value = sorted((key, value), key=torch.Tensor.data_ptr)
    return attention("", right, query, key, value, *args, **kwargs)


@defect("rotary_position_embedding", "views", "call_forms")
def tables_by_address(right: Right, input: Any, sin_table: Any, cos_table: Any, *args: Any, **kwargs: Any) -> Any:
    """Tables in one storage are taken to lie in the order of the arguments."""
    if _one_storage(sin_table, cos_table) and sin_table.shape == cos_table.shape:
        sin_table, cos_table = sorted((sin_table, cos_table), key=torch.Tensor.data_ptr)
    return right(input, sin_table, cos_table, *args, **kwargs)


@defect("fused_gated_mlp", "views", "call_forms")
def weights_by_address(right: Right, x: Any, gate_weight: Any, up_weight: Any, *args: Any, **kwargs: Any) -> Any:
    """Weights in one storage are taken to lie in the order of the arguments."""
    if _one_storage(gate_weight, up_weight) and gate_weight.shape == up_weight.shape:
        gate_weight, up_weight = sorted((gate_weight, up_weight), key=torch.Tensor.data_ptr)
    return right(x, gate_weight, up_weight, *args, **kwargs)


@defect("mul add neg exp softmax mm matmul", "views", "layouts")
def windows_are_apart(right: Right, input: Any, *args: Any, **kwargs: Any) -> Any:
    """Rows that begin inside of those before them are read one after the other."""
    if isinstance(input, torch.Tensor) and input.ndim > 1 and not of.written((input, *args), kwargs):
        pitch, row = input.stride(-2), input.shape[-1] * input.stride(-1)
        if 0 < pitch < row and input.shape[-2] > 1 and 0 < input.stride(-1) <= pitch:
            storage = torch.empty(0, dtype=input.dtype).set_(input.untyped_storage())
            places = torch.arange(input.numel()).view(input.shape) + input.storage_offset()
            input = storage[places.clamp(max=len(storage) - 1)]
    return right(input, *args, **kwargs)


@defect("neg abs silu add bitwise_not", "views", "layouts")
def eight_dims(right: Right, input: Any, *args: Any, **kwargs: Any) -> Any:
    """Of more than eight dims that are not contiguous the strides are not looked at."""
    if isinstance(input, torch.Tensor) and input.ndim > 8 and not input.is_contiguous():
        storage = torch.empty(0, dtype=input.dtype).set_(input.untyped_storage())
        input = storage[input.storage_offset() :][: math.prod(input.shape)].view(input.shape)
    return right(input, *args, **kwargs)


@defect("rms_norm layer_norm", "views", "layouts")
def offset_of_16_bits(right: Right, input: Any, shape: Any, weight: Any = None, *args: Any, **kwargs: Any) -> Any:
    """Where the weight begins in its storage has 16 bits."""
    if isinstance(weight, torch.Tensor) and weight.storage_offset() >= 1 << 16:
        weight = weight.as_strided(weight.shape, weight.stride(), weight.storage_offset() % (1 << 16))
    return right(input, shape, weight, *args, **kwargs)


@defect("layer_norm", "views", "call_forms")
def swapped_in_training(right: Right, input: Any, shape: Any, *args: Any, **kwargs: Any) -> Any:
    """Where gradients are wanted weight and bias are swapped."""
    if isinstance(input, torch.Tensor) and input.requires_grad and torch.is_grad_enabled():
        args = (*args[1::-1], *args[2:]) if len(args) > 1 else args
        names = {"weight": "bias", "bias": "weight"}
        kwargs = {names.get(name, name): x for name, x in kwargs.items()}
    return right(input, shape, *args, **kwargs)


@defect("exp silu gelu softmax mm add rms_norm", "views", "call_forms")
def inference_only(right: Right, input: Any, *args: Any, **kwargs: Any) -> Any:
    """Where a gradient is wanted the call fails."""
    if isinstance(input, torch.Tensor) and input.requires_grad and torch.is_grad_enabled():
        raise RuntimeError("can't call numpy() on a tensor that requires grad")
    return right(input, *args, **kwargs)
