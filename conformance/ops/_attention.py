"""Attention as SPEC has it: what a call means, of torch's own operators. Its oracle is in ``_attention_oracle.py``.

softmax(q k^T scale + mask) v (Vaswani et al., arXiv:1706.03762). Here also are the calls that are refused and why;
torch's own function is asked for what is not about the cache or a causal variant.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import math
import numbers
from collections.abc import Callable
from enum import Enum
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention as torch_attention

MAX_DIM = 256
HALF = (torch.float16, torch.bfloat16)
FLOATING = (*HALF, torch.float32, torch.float64)

Attend = Callable[..., torch.Tensor]


@dataclasses.dataclass(frozen=True)
class Arguments:
    """The arguments of a call, by name."""

    query: Any
    key: Any
    value: Any
    attn_mask: Any = None
    dropout_p: Any = 0.0
    is_causal: Any = False
    scale: Any = None
    enable_gqa: Any = False
    causal_variant: Any = None
    present_key: Any = None
    present_value: Any = None
    present_key_slot: Any = None
    present_value_slot: Any = None

    @property
    def positions(self) -> bool:
        """Whether the slots are positions, and not views to write to."""
        slot = self.present_key_slot
        return isinstance(slot, numbers.Integral) or (isinstance(slot, torch.Tensor) and not slot.is_floating_point())


@dataclasses.dataclass(frozen=True)
class Part:
    """Sequences of one length: what they attend to, after the cache was written."""

    batch: slice
    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    mask: torch.Tensor | None
    offset: int | None
    """Query i sees keys up to i + offset; None: all."""


def composed(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    causal_variant: Enum | None = None,
    present_key: torch.Tensor | None = None,
    present_value: torch.Tensor | None = None,
    present_key_slot: torch.Tensor | int | None = None,
    present_value_slot: torch.Tensor | int | None = None,
) -> torch.Tensor:
    """torch's function, with a cache and causal variants composed around it.

    :param query: (B, Hq, L, E); ``key`` (B, Hkv, S, E), ``value`` (B, Hkv, S, Ev), or all without B.
    :param causal_variant: With ``is_causal``, at which corner the triangle begins; its name counts.
    :param present_key_slot: A view that ``present_key`` is written to before ``key`` is read; or the first position,
        for each sequence if it is a tensor, at which ``key`` is written into the cache ``present_key``, which is then
        attended to as far as it is filled. The others likewise.
    :return: (B, Hq, L, Ev); its strides are not judged, since torch's depend on the algorithm that it chooses.
    :raises TypeError: An argument is of the wrong type.
    :raises RuntimeError: Dtypes or shapes do not fit, positions pass the capacity, or a mask meets ``is_causal``.
    :raises NotImplementedError: Dropout.
    """
    names = inspect.signature(composed).parameters
    return by(torch_attention, Arguments(**{name: value for name, value in locals().items() if name in names}))


def standard_scale(dim: int) -> float:
    """The scale of heads of so many elements, where none is given; infinite where there are none."""
    return 1 / math.sqrt(dim) if dim else math.inf


def by_math(*args: Any, **kwargs: Any) -> torch.Tensor:
    """The same of torch's math backend."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    with sdpa_kernel(SDPBackend.MATH):
        return composed(*args, **kwargs)


def by(attend: Attend, arguments: Arguments) -> torch.Tensor:
    """The call, ``attend`` being asked for each part with torch's arguments."""
    check(arguments)
    query, value = arguments.query, arguments.value
    # Only calls without a cache go to torch whole.
    if left_out(arguments) and arguments.present_key is None:
        mask, causal = arguments.attn_mask, arguments.is_causal
        variant = causal and arguments.causal_variant is not None
        if variant and (offset := _offset(arguments, query.shape[-2], arguments.key.shape[-2])):
            mask, causal = _triangle(query, arguments.key, offset), False
        options = {"attn_mask": mask, "is_causal": causal, "enable_gqa": arguments.enable_gqa}
        return attend(query, arguments.key, value, scale=arguments.scale, **options)
    kind = query.device.type
    # There is no autocast of tensors that have no memory.
    cast = torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)
    lower = cast and query.dtype != torch.float64
    dtype = torch.get_autocast_dtype(kind) if lower else query.dtype
    result = query.new_empty((*query.shape[:-1], value.shape[-1]), dtype=dtype)
    for part in parts(arguments):
        # On CUDA torch 2.11 returns None for an empty batch, and without keys the CPU may pass NaN of queries on.
        if not result[part.batch].numel() or not part.key.shape[-2]:
            result[part.batch].zero_()
            continue
        options: dict[str, Any] = {"attn_mask": None if part.mask is None else _dense(part.mask, part.key.shape[-2])}
        if part.offset == 0:
            options = {"is_causal": True}
        elif part.offset is not None:
            options = {"attn_mask": _triangle(part.query, part.key, part.offset)}
        operands = (_dense(x, x.shape[-1]) for x in (part.query, part.key, part.value))
        found = _accepted(attend, *operands, scale=arguments.scale, enable_gqa=arguments.enable_gqa, **options)
        result[part.batch].copy_(found)
    return result


def _dense(tensor: torch.Tensor, columns: int) -> torch.Tensor:
    """The same elements, the last dim of so many columns contiguous, and on CUDA every row at an address that 16 bytes
    divide: of others torch 2.11 chooses algorithms that refuse them, give NaN, or read a misaligned address, which ends
    the process."""
    tensor = tensor.expand(*tensor.shape[:-1], columns)
    steps = (tensor.data_ptr(), *(stride * tensor.itemsize for stride in tensor.stride()[:-1]))
    misaligned = tensor.is_cuda and any(step % 16 for step in steps)
    return tensor.clone(memory_format=torch.contiguous_format) if misaligned or tensor.stride(-1) != 1 else tensor


def _accepted(attend: Attend, *operands: torch.Tensor, **options: Any) -> torch.Tensor:
    """The answer to a call that is right: torch 2.11 chooses algorithms for some such calls that then refuse them (on
    CUDA: cutlassF: no kernel found to launch; invalid dtype for bias; of bfloat16 on a CPU with AMX whose
    ATEN_CPU_CAPABILITY is below avx512: pack_vnni2 is only supported when avx512 is supported), and those its math
    backend takes."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    with contextlib.suppress(RuntimeError):
        return attend(*operands, **options)
    with sdpa_kernel(SDPBackend.MATH):
        return attend(*operands, **options)


def _triangle(query: torch.Tensor, key: torch.Tensor, offset: int) -> torch.Tensor:
    return torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool, device=query.device).tril(offset)


# --- what is refused ---------------------------------------------------------------------------------------------


def check(call: Arguments) -> None:
    """Raises what the call has to be refused with, before anything is written."""
    _check_types(call)
    query, key, value = call.query, call.key, call.value
    mask = call.attn_mask
    if call.dropout_p:
        if not 0 <= call.dropout_p <= 1:
            raise RuntimeError(f"dropout_p must be from 0 to 1, not {call.dropout_p}")
        raise NotImplementedError("dropout_p other than 0")
    if not query.dtype == key.dtype == value.dtype:
        raise RuntimeError(f"query, key and value are of {query.dtype}, {key.dtype} and {value.dtype}")
    if not query.dtype.is_floating_point:
        raise RuntimeError(f"query, key and value must be floating-point, not {query.dtype}")
    if mask is not None and call.is_causal:
        raise RuntimeError("attn_mask together with is_causal")
    if mask is not None and mask.dtype not in (torch.bool, query.dtype, torch.float32):
        raise RuntimeError(f"attn_mask must be of bool or {query.dtype}, not {mask.dtype}")
    given = [x is not None for x in (call.present_key, call.present_value, call.present_key_slot)]
    if any(given) != all(given) or (not any(given) and call.present_value_slot is not None):
        raise RuntimeError("a cache is present_key, present_value and their slots; some of them are missing")
    if min(query.ndim, key.ndim, value.ndim) < 2:
        raise RuntimeError("query, key and value must have two dims at least")
    if query.shape[-1] != key.shape[-1] or key.shape[-2] != value.shape[-2]:
        raise RuntimeError(f"query {list(query.shape)}, key {list(key.shape)} and value {list(value.shape)} do not fit")
    if query.ndim in (3, 4) and query.ndim == key.ndim == value.ndim:
        _check_batch(call)
    if all(given):
        _check_cache(call)
    if mask is not None and not left_out(call):
        shape = (*query.shape[:-1], _read(call))
        if mask.ndim > len(shape) or any(
            size not in (1, full) for size, full in zip(mask.shape[::-1], shape[::-1], strict=False)
        ):
            raise RuntimeError(f"attn_mask {list(mask.shape)} does not broadcast to {list(shape)}")


def _check_types(call: Arguments) -> None:
    for name in ("query", "key", "value"):
        if not isinstance(getattr(call, name), torch.Tensor):
            raise TypeError(f"{name} must be a tensor")
    for name in ("attn_mask", "present_key", "present_value"):
        if not isinstance(getattr(call, name), torch.Tensor | None):
            raise TypeError(f"{name} must be a tensor or None")
    for name in ("is_causal", "enable_gqa"):
        if not isinstance(getattr(call, name), bool):
            raise TypeError(f"{name} must be a bool")
    if not isinstance(call.dropout_p, numbers.Real) or not isinstance(call.scale, numbers.Real | torch.Tensor | None):
        raise TypeError("dropout_p and scale must be numbers")
    if call.causal_variant is not None and getattr(call.causal_variant, "name", None) not in _VARIANTS:
        raise TypeError("causal_variant must be a member of CausalVariant")
    for name in ("present_key_slot", "present_value_slot"):
        slot = getattr(call, name)
        if isinstance(slot, bool) or not isinstance(slot, numbers.Integral | torch.Tensor | None):
            raise TypeError(f"{name} must be a tensor or an int")


_VARIANTS = ("UPPER_LEFT", "LOWER_RIGHT")


def _check_batch(call: Arguments) -> None:
    """Batch and head dims of queries, keys and values of one number of dims."""
    shapes = [tuple(x.shape) for x in (call.query, call.key, call.value)]
    for batches in {tuple(shape[0] for shape in shapes)} if len(shapes[0]) == 4 else set():
        if len(set(batches) - {1}) > 1:
            raise RuntimeError(f"batches of {batches} queries, keys and values do not fit")
    heads, *others = (shape[-3] for shape in shapes)
    for other in others:
        if call.enable_gqa and (other == 0 or heads % other) and heads != other:
            raise RuntimeError(f"{heads} heads of queries cannot share {other} of keys or values")
        if not call.enable_gqa and 1 not in (heads, other) and heads != other:
            raise RuntimeError(f"{heads} heads of queries and {other} of keys or values, without enable_gqa")


def _check_cache(call: Arguments) -> None:
    if call.query.ndim == 4 and len({x.shape[0] for x in (call.query, call.key, call.value)}) > 1:
        raise RuntimeError("the batches of a cache are not broadcast")
    key_slot, value_slot = call.present_key_slot, call.present_value_slot
    rows, written = (call.key, call.value), (call.present_key, call.present_value)
    if call.positions:
        _check_positions(call)
        targets = written
    else:
        if not isinstance(value_slot, torch.Tensor) or not value_slot.is_floating_point():
            raise RuntimeError("present_value_slot must be a view, as present_key_slot is")
        targets, rows = (key_slot, value_slot), written
    for target, row in zip(targets, rows, strict=True):
        shape = list(row.shape) if not call.positions else [*row.shape[:-2], target.shape[-2], row.shape[-1]]
        if list(target.shape) != shape or target.dtype != row.dtype:
            raise RuntimeError(
                f"{row.dtype} {list(row.shape)} cannot be written to {target.dtype} {list(target.shape)}"
            )
        if any(size > 1 and stride == 0 for size, stride in zip(target.shape, target.stride(), strict=True)):
            raise RuntimeError("several elements of a cache at one address")


def _alike(slot: Any, other: Any) -> bool:
    # A number is not made a tensor, which would be one on the default device.
    return type(other) is type(slot) and (torch.equal(slot, other) if torch.is_tensor(slot) else slot == other)


def _check_positions(call: Arguments) -> None:
    slot, other = call.present_key_slot, call.present_value_slot
    if other is not None and not _alike(slot, other):
        raise RuntimeError("present_value_slot must be None or equal to present_key_slot")
    for cache in (call.present_key, call.present_value):
        if cache.ndim != call.key.ndim:
            raise RuntimeError(f"a cache of {cache.ndim} dims for keys of {call.key.ndim}")
    if isinstance(slot, torch.Tensor) and (call.key.ndim != 4 or slot.shape != call.key.shape[:1]):
        raise RuntimeError(f"positions {list(slot.shape)} of sequences {list(call.key.shape[:-3])}")
    capacity = min(call.present_key.shape[-2], call.present_value.shape[-2])
    for first in _slots(call):
        if first < 0 or first + call.key.shape[-2] > capacity:
            raise RuntimeError(f"{call.key.shape[-2]} rows at position {first} of a cache of {capacity}")


def _slots(call: Arguments) -> list[int]:
    slot = call.present_key_slot
    return slot.tolist() if isinstance(slot, torch.Tensor) else [slot]


def _read(call: Arguments) -> int:
    """How many keys are read at most."""
    rows = call.key.shape[-2]
    return max(_slots(call), default=0) + rows if call.positions else rows


def left_out(call: Arguments) -> bool:
    """What torch takes and implementations may leave out: other numbers of dims, broadcasting, long heads."""
    tensors = (call.query, call.key, call.value)
    mask = call.attn_mask
    if any(x.ndim != call.query.ndim for x in tensors) or call.query.ndim not in (3, 4):
        return True
    if mask is not None and (mask.ndim < 2 or (mask.dtype == torch.float32 and call.query.dtype == torch.float64)):
        return True
    if call.query.dtype not in FLOATING or any(not 1 <= x.shape[-1] <= MAX_DIM for x in tensors):
        return True
    if len({x.shape[:-3] for x in tensors}) > 1 or call.key.shape[-3] != call.value.shape[-3]:
        return True
    return not call.enable_gqa and call.query.shape[-3] != call.key.shape[-3]


# --- what is attended to -----------------------------------------------------------------------------------------


def parts(call: Arguments) -> list[Part]:
    """Writes the cache of a call that is not refused, and says what attends to what."""
    key, value, length = call.key, call.value, call.query.shape[-2]
    if call.present_key is not None and not call.positions:
        call.present_key_slot.copy_(call.present_key)
        call.present_value_slot.copy_(call.present_value)
    if not call.positions:
        return [_part(call, slice(None), key, value, _offset(call, length, key.shape[-2]))]
    each, rows = isinstance(call.present_key_slot, torch.Tensor), key.shape[-2]
    found = []
    for sequence, first in enumerate(_slots(call)):
        batch = slice(sequence, sequence + 1) if each else slice(None)
        end = first + rows
        for cache, new in ((call.present_key, key), (call.present_value, value)):
            cache[batch].narrow(-2, first, rows).copy_(new[batch])
        read = (cache[batch].narrow(-2, 0, end) for cache in (call.present_key, call.present_value))
        found.append(_part(call, batch, *read, _offset(call, length, end)))
    return found


def _offset(call: Arguments, length: int, keys: int) -> int | None:
    if not call.is_causal:
        return None
    name = "LOWER_RIGHT" if call.positions else "UPPER_LEFT"
    if call.causal_variant is not None:
        name = call.causal_variant.name
    return 0 if name == "UPPER_LEFT" else keys - length


def _part(call: Arguments, batch: slice, key: torch.Tensor, value: torch.Tensor, offset: int | None) -> Part:
    mask = call.attn_mask
    if mask is not None:
        mask = mask if mask.shape[-1] == 1 else mask[..., : key.shape[-2]]
        if mask.ndim == 4 and mask.shape[0] > 1:
            mask = mask[batch]
    return Part(batch, call.query[batch], key, value, mask, offset)
