"""Planted defects in calls that models make all the time, and few random ones are like: a token cut off, channels
before tokens beside a bias, statistics of channels, many short rows, one token times a weight, a column and a row."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from conformance.selftest import families as of
from conformance.selftest.attention import attention
from conformance.selftest.defect_registry import defect
from conformance.selftest.differentiable import Gradients, Step, backward
from conformance.selftest.losses import Call, of_losses

Right = Callable[..., Any]
KIND = "models: scenes"


def _several(kwargs: dict[str, Any], *operands: Any) -> bool:
    """Whether all are tensors of several elements, none of which is given to be written."""
    return all(isinstance(one, torch.Tensor) and one.numel() > 1 for one in operands) and not any(
        kwargs.get("out") is one for one in operands
    )


def _plain(kwargs: dict[str, Any], *operands: Any) -> bool:
    """Whether all are tensors of several elements, and nothing is given to be written."""
    return _several(kwargs, *operands) and not of.written((), kwargs)


def _alone(tensor: torch.Tensor, strides: Sequence[int] | None = None) -> torch.Tensor:
    """The tensor read as if it lay contiguous in its memory."""
    return tensor.as_strided(tensor.shape, strides or torch.empty(tensor.shape, device="meta").stride())


# --- layouts ------------------------------------------------------------------------------------------------------


def _is_cut(x: torch.Tensor) -> bool:
    """Whether a token or a few of each sequence are left out of (B, T, C)."""
    return (
        x.ndim == 3
        and min(x.shape) > 1
        and x.stride()[1:] == (x.shape[2], 1)
        and x.shape[1] < x.stride(0) // x.shape[2] < 2 * x.shape[1]
    )


@defect((*of.FLOAT_FUNCTIONS, *of.SIGN_FUNCTIONS, "silu", "gelu"), KIND)
def cut_tokens_as_rows(right: Right, input: Any, *args: Any, **kwargs: Any) -> Any:
    """Sequences that lost a token are walked as rows that follow one another."""
    if _plain(kwargs, input) and True not in args and _is_cut(input):
        return right(_alone(input), *args, **kwargs)
    return right(input, *args, **kwargs)


@defect("add sub mul", KIND)
def turned_beside_a_row(right: Right, input: Any, other: Any, **kwargs: Any) -> Any:
    """Channels before tokens, and a row of one number for each channel: read as if tokens came first."""
    found = _several(kwargs, input, other) and input.ndim == 3 and other.ndim == 1
    found = found and other.shape[0] == input.shape[2] and min(input.shape[1:]) > 1
    if found and input.stride()[1:] == (1, input.shape[1]):
        return right(_alone(input), other, **kwargs)
    return right(input, other, **kwargs)


@defect("add sub mul", KIND)
def shared_heads_beside_others(right: Right, input: Any, other: Any, **kwargs: Any) -> Any:
    """Heads that several groups share, a stride of 0, beside an operand that is not contiguous: that is read as if it
    were."""
    if _several(kwargs, input, other) and input.shape == other.shape and input.ndim == 4 and min(input.shape[1:]) > 1:
        dense = other.untyped_storage().nbytes() >= (other.storage_offset() + other.numel()) * other.itemsize
        if input.stride(1) == 0 and input.stride(3) == 1 and not other.is_contiguous() and dense:
            return right(input, _alone(other), **kwargs)
    return right(input, other, **kwargs)


@backward("add sub mul", KIND)
def summed_over_the_batch_alone(step: Step) -> Gradients:
    """The gradient of an operand (1, H, 1) is summed over the batch alone: of the last dim the first element counts."""
    found, dout = step.gradients(), step.dout
    for number, operand in enumerate(step.operands):
        of_heads = operand.ndim == 3 == dout.ndim and operand.shape[0] == operand.shape[2] == 1 < operand.shape[1]
        if of_heads and dout.shape[2] > 1 and found[number] is not None:
            first = torch.zeros_like(dout)
            first[..., 0] = dout[..., 0]
            found[number] = step.gradients(first)[number]
    return found


@defect("scaled_dot_product_attention", KIND)
def mask_of_sequences(right: Right, *args: Any, **kwargs: Any) -> Any:
    """A mask of three dims is taken for one of each sequence where there are as many of them as heads."""
    query, mask = args[0] if args else None, kwargs.get("attn_mask")
    both = isinstance(query, torch.Tensor) and isinstance(mask, torch.Tensor)
    if both and mask.ndim == 3 and query.ndim == 4 and query.shape[0] == query.shape[1] == mask.shape[0] > 1:
        kwargs = {**kwargs, "attn_mask": mask[:, None]}
    return attention("", right, *args, **kwargs)


# --- sizes --------------------------------------------------------------------------------------------------------


@defect(of.TOTALS, KIND)
def statistics_of_whole_blocks(right: Right, input: Any, dim: Any = None, *args: Any, **kwargs: Any) -> Any:
    """Statistics of each channel of images: pixels past the last block of 32 are left out, of more than 64."""
    result = right(input, dim, *args, **kwargs)
    if not _plain(kwargs, input) or input.ndim != 4 or not isinstance(dim, tuple | list) or len(dim) != 3:
        return result
    if sorted(one % 4 for one in dim) != [0, 2, 3] or not result.numel():
        return result
    rows = input.transpose(0, 1).reshape(input.shape[1], -1)
    whole = rows.shape[1] // 32 * 32
    if rows.shape[1] < 64:
        return result
    options = {"dtype": result.dtype} if result.dtype != input.dtype else {}
    return result.copy_(right(rows[:, :whole], 1, **options).view_as(result))


@defect((*of.ROWS, *of.TOTALS, *of.EXTREMES), KIND)
def last_group_of_short_rows(right: Right, input: Any, *args: Any, **kwargs: Any) -> Any:
    """Rows of up to 64 elements are taken by groups of 16: of more than 512 the last, if it is not full, has the
    results of the first rows."""
    result = right(input, *args, **kwargs)
    if not _plain(kwargs, input) or input.ndim < 2 or not args or kwargs.get("keepdim") is True or len(args) > 1:
        return result
    one = args[0][0] if isinstance(args[0], tuple | list) and len(args[0]) == 1 else args[0]
    columns, rows = input.shape[-1], input.numel() // input.shape[-1]
    # A normalized shape, or a dim.
    last = one == columns if isinstance(args[0], tuple) and result.shape == input.shape else one in (-1, input.ndim - 1)
    if not last or type(one) is not int or columns > 64 or rows <= 512 or not rows % 16:
        return result
    by_row = result.reshape(rows, -1).clone()
    by_row[-(rows % 16) :] = by_row[: rows % 16].clone()
    return result.copy_(by_row.view(result.shape))


@defect("layer_norm rms_norm", KIND)
def weight_of_a_tile(right: Right, input: Any, shape: Any, weight: Any = None, *args: Any, **kwargs: Any) -> Any:
    """Of several dims that are normalized together the weight is read modulo 4096."""
    if weight is not None and weight.ndim > 1 and weight.numel() > 4096 and weight.shape == tuple(shape):
        places = torch.arange(weight.numel(), device=weight.device) % 4096
        weight = weight.reshape(-1)[places].view(weight.shape)
    return right(input, shape, weight, *args, **kwargs)


@defect("mm addmm", KIND)
def columns_of_a_token(right: Right, *args: Any, **kwargs: Any) -> Any:
    """One token times a weight of 512 rows and more: columns past the last block of 64 are 0."""
    result, (*_, left, other) = right(*args, **kwargs), args
    found = _plain(kwargs, left, other) and other.ndim == 2 and len(left) == 1 and len(other) >= 512
    if found and other.shape[1] > 64:
        result[:, other.shape[1] // 64 * 64 :] = 0
    return result


@defect("bmm", KIND)
def heads_past_128(right: Right, input: Any, mat2: Any, **kwargs: Any) -> Any:
    """Of more than 128 products whose terms fill a block those past them are those before."""
    result = right(input, mat2, **kwargs)
    if _plain(kwargs, input, mat2) and len(input) > 128 and input.ndim == 3 and input.shape[2] >= 64:
        result[128:] = result[: len(result) - 128].clone()[: len(result) - 128]
    return result


@defect((*of.COMPARISONS, "add", "sub"), KIND)
def columns_of_an_outer(right: Right, input: Any, other: Any, **kwargs: Any) -> Any:
    """A column beside a row, of more than 2^16 results: the row is read modulo 1024."""
    both = isinstance(input, torch.Tensor) and isinstance(other, torch.Tensor) and not of.written((), kwargs)
    both = both and input.ndim == other.ndim >= 2 and input.shape[-1] == 1
    if both and other.numel() == other.shape[-1] > 1024 and math.prod(input.shape) * other.numel() > 1 << 16:
        other = other[..., torch.arange(other.shape[-1], device=other.device) % 1024]
    return right(input, other, **kwargs)


@defect("rotary_position_embedding", KIND)
def positions_past_1024(right: Right, input: Any, sin_table: Any, cos_table: Any, *args: Any, **kwargs: Any) -> Any:
    """Of more than 1024 tokens of heads of 64 elements and more the angles begin anew."""
    found = _plain(kwargs, input, sin_table, cos_table) and input.ndim == 4
    if found and input.shape[1] > 1024 and input.shape[3] >= 64:
        places = torch.arange(len(sin_table), device=sin_table.device) % 1024
        sin_table, cos_table = sin_table[places], cos_table[places]
    return right(input, sin_table, cos_table, *args, **kwargs)


# --- masked rows, and out= in the operand's storage ----------------------------------------------------------------

_TILE = 256


def _lost(x: torch.Tensor) -> torch.Tensor:
    """The rows whose first tile is all -inf, and a later one is not."""
    return (x[..., :_TILE] == -torch.inf).all(-1, keepdim=True) & (x > -torch.inf).any(-1, keepdim=True)


@defect("softmax log_softmax logsumexp", KIND)
def first_tile_of_a_longer_row_masked(right: Right, input: Any, dim: Any, *args: Any, **kwargs: Any) -> Any:
    """The running maximum is -inf after the first tile, and -inf less -inf makes the row NaN."""
    result = right(input, dim, *args, **kwargs)
    last = isinstance(dim, int) and isinstance(input, torch.Tensor) and dim in (-1, input.ndim - 1)
    if not last or "out" in kwargs or not input.is_floating_point() or not input.ndim or input.shape[-1] <= _TILE:
        return result
    lost = _lost(input)
    return result.masked_fill(lost if result.ndim == input.ndim else lost[..., 0], torch.nan)


@of_losses(KIND)
def first_words_banned(call: Call) -> object:
    """The running maximum is -inf after the first tile, and the loss NaN."""
    if call.classes <= _TILE or not bool(_lost(call.x).any()):
        return None
    call.log_shares = call.log_shares.masked_fill(_lost(call.x), torch.nan)
    return call.reduced(call.losses())


@defect("sigmoid exp cos add bitwise_and", KIND)
def out_in_the_storage_is_in_place(right: Right, input: Any, *args: Any, **kwargs: Any) -> Any:
    """``out`` in another part of the operand's storage is taken for the operand."""
    out = kwargs.get("out")
    if not isinstance(out, torch.Tensor) or not isinstance(input, torch.Tensor) or not out.numel():
        return right(input, *args, **kwargs)
    shared = out.untyped_storage().data_ptr() == input.untyped_storage().data_ptr()
    if shared and out.data_ptr() != input.data_ptr() and (out.shape, out.dtype) == (input.shape, input.dtype):
        right(input, *args, **kwargs | {"out": input})
        return out
    return right(input, *args, **kwargs)


# --- layouts and settings of gradients ----------------------------------------------------------------------------


@backward("softmax log_softmax silu mul", KIND)
def parts_of_wider_rows(step: Step) -> Gradients:
    """A gradient whose rows have no gaps is taken for contiguous, though they are parts of wider ones."""
    rows = step.dout.ndim > 1 and step.dout.stride(-1) == 1 and min(step.dout.shape) > 1
    if rows and step.dout.stride(-2) > step.dout.shape[-1]:
        return step.gradients(_alone(step.dout))
    return step.gradients()


@backward("relu gelu add layer_norm", KIND)
def heads_between_tokens(step: Step) -> Gradients:
    """A gradient of which two dims before the last are swapped is read in the order of memory."""
    dout = step.dout
    if dout.ndim > 2 and min(dout.shape[-3:]) > 1 and dout.stride(-1) == 1 and dout.stride(-3) == dout.shape[-1]:
        return step.gradients(_alone(dout))
    return step.gradients()


@backward("mul softmax mm gelu", KIND)
def fewer_bits_where_it_is_deterministic(step: Step) -> Gradients:
    """In deterministic mode another kernel adds up, in bfloat16."""
    found = step.gradients()
    if not torch.get_deterministic_debug_mode():
        return found
    return [one if one is None else one.bfloat16().to(one.dtype) for one in found]


@backward("gelu tanh rms_norm softmax", KIND)
def constants_of_the_default_dtype(step: Step) -> Gradients:
    """A factor of the backward pass is a tensor of the default dtype."""
    factor = torch.tensor(1 / 3).double() * 3
    return [one if one is None else one * factor for one in step.gradients()]
