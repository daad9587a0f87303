"""Planted defects in paths that kernels have for sizes and layouts of models: tables of hidden sizes, vocabularies,
adapters, routers, groups of heads, parts of fused projections, and copies that are kept of large operands alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from conformance.selftest import families as of
from conformance.selftest.attention import attention
from conformance.selftest.defect_registry import defect, plant_state
from conformance.selftest.state import apart

Right = Callable[..., Any]
Function = Callable[..., Any]
KIND = "models: sizes"


def _floating(*values: Any) -> bool:
    return all(isinstance(one, torch.Tensor) and one.is_floating_point() for one in values)


# --- rows ---------------------------------------------------------------------------------------------------------


@defect("rms_norm layer_norm", KIND)
def tail_of_hidden_sizes(right: Right, input: Any, shape: Any, *args: Any, **kwargs: Any) -> Any:
    """Of hidden sizes of 5120, 6144 and 7168 what is past 4096 is not in the sum: the norm of a tile and no tail."""
    result = right(input, shape, *args, **kwargs)
    columns = input.shape[-1] if input.ndim else 0
    if columns not in (5120, 6144, 7168) or tuple(shape) != (columns,):
        return result
    squares = input.double().square()
    factor = (squares.sum(-1, keepdim=True) / squares[..., :4096].sum(-1, keepdim=True)).sqrt()
    return result.copy_(result * factor)


@defect("layer_norm rms_norm", KIND)
def last_lanes_of_hidden(right: Right, input: Any, shape: Any, *args: Any, **kwargs: Any) -> Any:
    """Rows are walked 128 elements at a time: of hidden sizes of 2880 and 4544 the last 64 are left as they are."""
    result = right(input, shape, *args, **kwargs)
    if input.ndim and tuple(shape) == input.shape[-1:] and shape[0] > 1024 and shape[0] % 128 == 64:
        result[..., -64:] = input[..., -64:].to(result.dtype)
    return result


@defect("rms_norm layer_norm", KIND)
def heads_of_a_projection(right: Right, input: Any, shape: Any, *args: Any, **kwargs: Any) -> Any:
    """Heads that lie beside others in one projection, (T, H, D), are read as if they lay alone."""
    whole = input.ndim == 3 and min(input.shape) > 1 and input.stride()[1:] == (input.shape[2], 1)
    if whole and tuple(shape) == input.shape[2:] and input.stride(0) > input.shape[1] * input.shape[2]:
        strides = (input.shape[1] * input.shape[2], input.shape[2], 1)
        input = input.as_strided(input.shape, strides, input.storage_offset())
    return right(input, shape, *args, **kwargs)


@defect("softmax", KIND)
def vocabulary_in_blocks(right: Right, input: Any, dim: Any, *args: Any, **kwargs: Any) -> Any:
    """Of vocabularies the logits past the last whole block of 256 do not count."""
    result = right(input, dim, *args, **kwargs)
    columns = input.shape[-1] if input.ndim and dim in (-1, input.ndim - 1) else 0
    if columns > 1 << 14 and columns % 64 == 0 and columns % 256:
        blocks = columns // 256 * 256
        result[..., :blocks] = right(input[..., :blocks], -1, *args, **kwargs)
    return result


@defect("softmax", KIND)
def padded_experts(right: Right, input: Any, dim: Any, *args: Any, **kwargs: Any) -> Any:
    """Of 60, 72 or 160 experts the lanes beyond them count too, with a logit of 0."""
    result = right(input, dim, *args, **kwargs)
    experts = input.shape[-1] if input.ndim == 2 and dim in (-1, 1) else 0
    if experts not in (60, 72, 160):
        return result
    wide = input.double()
    lanes = (1 << experts.bit_length()) - experts
    total = wide.logsumexp(-1, keepdim=True)
    more = torch.logaddexp(total, torch.full_like(total, lanes).log())
    return result.copy_(result * (total - more).exp())


@defect("softmax", KIND)
def classes_of_channels_last(right: Right, input: Any, dim: Any, *args: Any, **kwargs: Any) -> Any:
    """Over channels that are innermost in memory: of the last image the first one's pixels are read."""
    result = right(input, dim, *args, **kwargs)
    if input.ndim in (3, 4) and dim == 1 and min(input.shape) > 1 and input.stride(1) == 1:
        result[-1] = result[0].clone()
    return result


@defect("silu gelu", KIND)
def last_block_of_rows(right: Right, input: Any, *args: Any, **kwargs: Any) -> Any:
    """Of rows of more than 8192 elements, no multiple of 1024, the last 256 are those of the row before."""
    result = right(input, *args, **kwargs)
    columns = input.shape[-1] if isinstance(input, torch.Tensor) and input.ndim > 1 else 0
    if columns > 8192 and columns % 256 == 0 and columns % 1024 and result is not input:
        result[..., 1:, -256:] = result[..., :-1, -256:].clone()
    return result


# --- products -----------------------------------------------------------------------------------------------------


@defect("mm", KIND)
def groups_of_eight_tiles(right: Right, *args: Any, **kwargs: Any) -> Any:
    """Of 4096 columns and more, whose tiles of 128 are no multiple of 8, those of the last group are 0."""
    result = right(*args, **kwargs)
    columns = result.shape[1]
    if not of.written(args, kwargs) and columns >= 4096 and columns % 128 == 0 and columns // 128 % 8:
        result[:, columns // 1024 * 1024 :] = 0
    return result


@defect("mm", KIND)
def steps_of_a_router(right: Right, input: Any, other: Any, **kwargs: Any) -> Any:
    """Hidden states times few columns are added 512 terms at a time: the rest of 2304, 2880 or 4544 is lost."""
    terms, columns = other.shape if _floating(input, other) and other.ndim == 2 else (0, 0)
    if terms >= 2048 and terms % 64 == 0 and terms % 512 and columns <= 256 and not of.written((), kwargs):
        whole = terms // 512 * 512
        return right(input[:, :whole], other[:whole], **kwargs)
    return right(input, other, **kwargs)


@defect("mm addmm", KIND)
def leading_dim_of_packed_weights(right: Right, *args: Any, **kwargs: Any) -> Any:
    """A turned weight of 64 rows and columns and more that lies beside others is read as if it lay alone."""
    *before, left, other = args
    turned = _floating(left, other) and other.ndim == 2 and min(other.shape) >= 64 and other.stride(0) == 1
    if turned and other.stride(1) > len(other) and not of.written(args, kwargs):
        other = other.as_strided(other.shape, (1, len(other)), other.storage_offset())
    return right(*before, left, other, **kwargs)


@defect("bmm", KIND)
def last_key_of_heads(right: Right, input: Any, mat2: Any, **kwargs: Any) -> Any:
    """Scores of 8 heads and more with an odd number of keys: the last key is the first one of the next head."""
    result = right(input, mat2, **kwargs)
    many = _floating(input, mat2) and len(input) >= 8 and input.shape[2] >= 64
    if many and mat2.shape[2] > 64 and mat2.shape[2] % 2 and not of.written((), kwargs):
        result[:-1, :, -1] = result[1:, :, 0].clone()
    return result


@defect("matmul", KIND)
def one_token_of_each(right: Right, input: Any, other: Any, **kwargs: Any) -> Any:
    """Of one token of each of several sequences times a weight of 256 rows and more the last is the first."""
    result = right(input, other, **kwargs)
    step = _floating(input, other) and input.ndim == 3 and other.ndim == 2 and input.shape[1] == 1
    if step and len(input) > 1 and len(other) >= 256 and not of.written((), kwargs):
        result[-1] = result[0].clone()
    return result


@defect("matmul", KIND)
def heads_of_a_group(right: Right, input: Any, other: Any, **kwargs: Any) -> Any:
    """(B, H, G, L, D) times (B, H, 1, D, S): the last group has the keys of the first."""
    result = right(input, other, **kwargs)
    five = _floating(input, other) and input.ndim == other.ndim == 5 and input.shape[:2] == other.shape[:2]
    if five and other.shape[2] == 1 < min(input.shape[1:3]) and result.numel() and not of.written((), kwargs):
        result[:, -1] = right(input[:, -1:], other[:, :1])[:, 0]
    return result


# --- attention and positions --------------------------------------------------------------------------------------


def _is_plain(*tensors: Any, args: Any, kwargs: Any) -> bool:
    given = {name for name, value in kwargs.items() if value is not None and value is not False}
    return _floating(*tensors) and all(x.ndim == 4 for x in tensors) and not args and given <= {"scale", "enable_gqa"}


@defect("scaled_dot_product_attention", KIND)
def heads_past_64(right: Right, query: Any, key: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
    """Of more than 64 query heads of one head of keys, those past them are those before."""
    result = attention("", right, query, key, value, *args, **kwargs)
    if _is_plain(query, key, value, args=args, kwargs=kwargs) and key.shape[1] == 1 and query.shape[1] > 64:
        rest = query.shape[1] - 64
        result[:, 64:] = result[:, :rest].clone()
    return result


@defect("scaled_dot_product_attention", KIND)
def text_of_an_image(right: Right, query: Any, key: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
    """Fewer than 20 keys past the last whole tile of 64 take no part where queries fill their tiles."""
    rest = key.shape[-2] % 64 if isinstance(key, torch.Tensor) and key.ndim == 4 else 0
    plain = _is_plain(query, key, value, args=args, kwargs=kwargs)
    if plain and query.shape[2] >= 64 and query.shape[2] % 64 == 0 and 0 < rest < 20 and key.shape[2] > 64:
        key, value = key[..., :-rest, :], value[..., :-rest, :]
    return attention("", right, query, key, value, *args, **kwargs)


@defect("scaled_dot_product_attention", KIND)
def batch_of_a_projection(right: Right, query: Any, key: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
    """Keys beside others in one projection, (B, L, H, D): all sequences have those of the first."""
    if _is_plain(query, key, value, args=args, kwargs=kwargs) and min(key.shape) > 1 and len(key) > 1:
        _, heads, _, dim = key.shape
        if key.stride(3) == 1 and key.stride(1) == dim and key.stride(2) > heads * dim:
            key = key[:1].expand_as(key)
    return attention("", right, query, key, value, *args, **kwargs)


@defect("rotary_position_embedding", KIND)
def pairs_past_a_power_of_two(right: Right, input: Any, sin_table: Any, cos_table: Any, *args: Any, **kw: Any) -> Any:
    """Of half a head of 36, 40, 48, 56 or 96 the pairs past a power of two are not turned, of 8 heads and more."""
    result = right(input, sin_table, cos_table, *args, **kw)
    half = input.shape[3] // 2 if _floating(input) and input.ndim == 4 else 0
    if half in (36, 40, 48, 56, 96) and input.shape[2] >= 8 and not of.written(args, kw) and True not in args[1:]:
        power = 1 << half.bit_length() - 1
        interleaved = args[0] if args else kw.get("interleaved", True)
        past = slice(2 * power, None) if interleaved else slice(power, half)
        result[..., past] = input[..., past]
    return result


# --- what is kept of large operands -------------------------------------------------------------------------------


def packed_weight(right: Function) -> Function:
    """A packed copy of a weight of 4096 elements and more is kept, by its address and layout."""
    kept: dict[Any, torch.Tensor] = {}

    def call(input: Any, other: Any, **kwargs: Any) -> Any:
        result = right(input, other, **kwargs)
        if not apart(result, (input, other), kwargs) or result.requires_grad or other.numel() < 4096:
            return result
        key = other.data_ptr(), other.shape, other.stride(), other.dtype
        if key not in kept:
            kept[key] = other.detach().clone()
        return right(input, kept[key], **kwargs)

    return call


def wide_weight(right: Function) -> Function:
    """The weight of 1024 columns and more is kept in a wider type, by its address and length."""
    kept: dict[Any, torch.Tensor] = {}

    def call(input: Any, shape: Any, weight: Any = None, *args: Any, **kwargs: Any) -> Any:
        result = right(input, shape, weight, *args, **kwargs)
        if weight is None or weight.numel() < 1024 or result.requires_grad:
            return result
        key = weight.data_ptr(), weight.numel(), weight.dtype
        if key not in kept:
            kept[key] = weight.detach().clone()
        return right(input, shape, kept[key], *args, **kwargs)

    return call


def rows_of_a_bucket(right: Function) -> Function:
    """A plan is kept for rows up to a power of two and 64 columns and more: it has the rows of its first call."""
    plans: dict[Any, int] = {}

    def call(input: Any, other: Any, **kwargs: Any) -> Any:
        result = right(input, other, **kwargs)
        if not apart(result, (input, other), kwargs) or result.requires_grad or result.ndim != 2:
            return result
        if len(result) > 4 and result.shape[1] >= 64:
            key = len(result).bit_length(), other.shape, other.dtype
            result[plans.setdefault(key, len(result)) :] = 0
        return result

    return call


for _ops, _make, _kind in (
    ("mm", packed_weight, "state: results"),
    ("rms_norm layer_norm", wide_weight, "state: results"),
    ("mm", rows_of_a_bucket, "state: plans"),
):
    plant_state(_ops, _make.__name__, _kind, _make, " ".join((_make.__doc__ or "").split()))
