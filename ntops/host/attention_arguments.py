"""Check the arguments of attention and work out what a call means."""

import math
from typing import NamedTuple

import torch

from ntops.host import kv_cache
from ntops.host.arguments import check_real, check_tensor, common_device
from ntops.kernels.scaled_dot_product_attention import CausalVariant

LARGEST_HEAD_DIM = 256


class Checked(NamedTuple):
    """The checked arguments of a call of attention."""

    lower_right: bool | None
    """The return value of :func:`check_causal`."""
    scale: float
    mask: torch.Tensor | None
    """The mask, expanded to (*batch, L, S)."""
    form: str | None
    """The form of the KV cache, named as by :func:`ntops.host.kv_cache.form`."""
    slot: int | torch.Tensor | None
    """The positions, for a cache of that form."""
    length: int
    """The number of keys of the longest sequence."""


def check_call(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa, causal_variant, presents, slots):
    """Refuse a call that attention does not take, before anything is written, and return the checked arguments.

    :param presents: ``present_key`` and ``present_value``.
    :param slots: ``present_key_slot`` and ``present_value_slot``.
    :raises: The errors of :func:`ntops.torch.scaled_dot_product_attention`.
    """
    check_inputs(query, key, value, enable_gqa)
    lower_right = check_causal(is_causal, causal_variant, attn_mask)
    check_dropout(dropout_p)
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else check_real(scale, "scale")
    form = kv_cache.form(presents, slots)
    slot, length = None, key.shape[-2]

    if form == "views":
        kv_cache.check_views(presents, slots, query)
    elif form == "positions":
        capacity = kv_cache.check_caches(presents, (key, value), query)
        slot, length = kv_cache.check_positions(slots, query, capacity, key.shape[-2], attn_mask)

        if is_causal and causal_variant is None:
            lower_right = True

    mask = None if attn_mask is None else check_mask(attn_mask, query, (*query.shape[:-1], length))
    return Checked(lower_right, scale, mask, form, slot, length)


def check_inputs(query, key, value, enable_gqa):
    """Refuse queries, keys and values that do not fit together.

    :raises TypeError: One is not a tensor.
    :raises RuntimeError: Shapes, dtypes or devices do not fit.
    :raises NotImplementedError: torch takes the call, and this operator does not.
    """
    if not isinstance(enable_gqa, bool):
        raise TypeError(f"argument 'enable_gqa' must be a bool, not {type(enable_gqa).__name__}")

    tensors = {"query": query, "key": key, "value": value}

    for name, tensor in tensors.items():
        check_tensor(tensor, name)

    if not query.dtype is key.dtype is value.dtype:
        raise RuntimeError(
            f"arguments 'query', 'key' and 'value' must have one dtype, not {query.dtype}, {key.dtype} and "
            f"{value.dtype}"
        )

    if not query.dtype.is_floating_point:
        raise RuntimeError(f"argument 'query' has dtype {query.dtype}; attention is of floating-point only")

    common_device(tensors)

    for name, tensor in tensors.items():
        if tensor.ndim < 2:
            raise RuntimeError(f"argument '{name}' must have 3 or 4 dims, not {tensor.ndim}")

        if tensor.ndim not in (3, 4):
            raise NotImplementedError(f"argument '{name}' has {tensor.ndim} dims; attention is of 3 or 4 dims only")

        if tensor.ndim != query.ndim:
            raise NotImplementedError(
                f"argument '{name}' has {tensor.ndim} dims, but 'query' has {query.ndim}; they must have as many"
            )

    if key.shape[-1] != query.shape[-1]:
        raise RuntimeError(
            f"argument 'key' has a head dim of {key.shape[-1]}, but that of 'query' is {query.shape[-1]}"
        )

    if key.shape[-2] != value.shape[-2]:
        raise RuntimeError(f"argument 'key' has {key.shape[-2]} rows, but 'value' has {value.shape[-2]}")

    for name, tensor in tensors.items():
        if not 1 <= tensor.shape[-1] <= LARGEST_HEAD_DIM:
            raise NotImplementedError(
                f"argument '{name}' has a head dim of {tensor.shape[-1]}; those from 1 to {LARGEST_HEAD_DIM} are "
                "supported"
            )

    if query.ndim == 4:
        _check_batch("batch", query.shape[0], key.shape[0], value.shape[0])

    heads = [tensor.shape[-3] for tensor in tensors.values()]

    if not enable_gqa or heads[1] != heads[2]:
        divides = enable_gqa and all(count and heads[0] % count == 0 for count in heads[1:])
        _check_batch("head", *heads, broadcasts=divides)
    elif heads[0] and (not heads[1] or heads[0] % heads[1]):
        raise RuntimeError(
            f"argument 'query' has {heads[0]} heads, of which the {heads[1]} of 'key' and 'value' are no divisor"
        )


def _check_batch(what, query, key, value, broadcasts=False):
    """Refuse unequal sizes: as not implemented if torch would broadcast them, else with torch's error."""
    if query == key == value:
        return

    sizes = {query, key, value} - {1}
    error = NotImplementedError if broadcasts or len(sizes) == 1 else RuntimeError
    advice = "expand() it first" if error is NotImplementedError else "enable_gqa=True lets query heads share keys"
    raise error(
        f"arguments 'query', 'key' and 'value' must have one {what} size, not {query}, {key} and {value}"
        + (f"; {advice}" if what == "head" or error is NotImplementedError else "")
    )


def check_mask(mask, query, shape):
    """Refuse a mask that does not broadcast to ``shape``, (*batch, L, S), and return it expanded to that shape.

    :raises TypeError: It is not a tensor.
    :raises RuntimeError: Its shape, dtype or device is wrong.
    """
    check_tensor(mask, "attn_mask")

    if mask.dtype not in (torch.bool, torch.float32, query.dtype):
        raise RuntimeError(
            f"argument 'attn_mask' has dtype {mask.dtype}; it must be bool, float32 or that of the query, {query.dtype}"
        )

    if mask.device != query.device:
        raise RuntimeError(f"argument 'attn_mask' is on {mask.device}, but the query is on {query.device}")

    sizes = (1,) * (len(shape) - mask.ndim) + tuple(mask.shape)

    if len(sizes) > len(shape) or any(size not in (1, wanted) for size, wanted in zip(sizes, shape, strict=True)):
        raise RuntimeError(f"argument 'attn_mask' {tuple(mask.shape)} does not broadcast to {tuple(shape)}")

    return mask.expand(shape)


def check_causal(is_causal, causal_variant, mask):
    """Return which keys queries see: ``None`` for all of them, else whether the variant is LOWER_RIGHT.

    :raises TypeError: ``is_causal`` is not a bool, or ``causal_variant`` is not a variant.
    :raises RuntimeError: A mask is given too.
    """
    if not isinstance(is_causal, bool):
        raise TypeError(f"argument 'is_causal' must be a bool, not {type(is_causal).__name__}")

    # torch's enumeration is another class with the same members; importing it here would be slow.
    if causal_variant is not None and type(causal_variant).__name__ != "CausalVariant":
        raise TypeError(
            f"argument 'causal_variant' must be CausalVariant.UPPER_LEFT or LOWER_RIGHT, not {causal_variant!r}"
        )

    if is_causal and mask is not None:
        raise RuntimeError("arguments 'attn_mask' and 'is_causal' cannot both be given; put the one into the other")

    return causal_variant == CausalVariant.LOWER_RIGHT if is_causal else None


def check_dropout(p):
    """Refuse dropout.

    :raises TypeError: It is not a number.
    :raises RuntimeError: It is not a probability.
    :raises NotImplementedError: It is not 0.
    """
    p = check_real(p, "dropout_p")

    if not 0 <= p <= 1:
        raise RuntimeError(f"argument 'dropout_p' is {p}; it must be from 0 to 1")

    if p:
        raise NotImplementedError(f"argument 'dropout_p' is {p}; dropout of attention is left out")
