"""KV caches: check where new rows of keys and values go, and write them before attention reads."""

import math
import operator
import os

import torch

from ntops.host.arguments import check_tensor, common_device
from ntops.host.output import check_written
from ntops.kernels.kv_cache import write_rows
from ntops.launch import boundary, recorder
from ntops.launch.devices import next_power_of_2, on_device

_NAMES = ("present_key", "present_value")
_UNEQUAL = "arguments 'present_key_slot' and 'present_value_slot' must be equal, or the latter None"
_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


def is_checked():
    """Tell whether positions on a GPU are checked."""
    return os.environ.get("NTOPS_CHECK") == "1"


def form(presents, slots):
    """Return the form of the cache's arguments: ``"views"`` of it, ``"positions"`` in it, or ``None`` without a cache.

    :raises RuntimeError: An argument is missing.
    """
    if all(x is None for x in (*presents, *slots)):
        return None

    is_views = isinstance(slots[0], torch.Tensor) and slots[0].dtype.is_floating_point
    needed = {"present_key": presents[0], "present_value": presents[1], "present_key_slot": slots[0]}
    needed |= {"present_value_slot": slots[1]} if is_views else {}
    missing = [name for name, value in needed.items() if value is None]

    if missing:
        raise RuntimeError(f"argument '{missing[0]}' is missing: a KV cache needs {', '.join(needed)}")

    return "views" if is_views else "positions"


def check_views(presents, slots, query):
    """Refuse new rows that the views of the cache cannot take.

    :param presents: ``present_key`` and ``present_value``.
    :param slots: ``present_key_slot`` and ``present_value_slot``: tensors of the same shapes and dtypes.
    :raises TypeError: One is not a tensor.
    :raises RuntimeError: Shapes, dtypes or devices do not fit, or a view is expanded.
    """
    for name, present, slot in zip(_NAMES, presents, slots, strict=True):
        check_tensor(present, name)
        check_tensor(slot, f"{name}_slot")
        common_device({"query": query, name: present, f"{name}_slot": slot})

        if present.shape != slot.shape or present.dtype is not slot.dtype:
            raise RuntimeError(
                f"arguments '{name}' and '{name}_slot' must have one shape and dtype, not {tuple(present.shape)} of "
                f"{present.dtype} and {tuple(slot.shape)} of {slot.dtype}"
            )

        check_written(slot, f"{name}_slot")

    if presents[0].ndim != query.ndim or presents[0].shape[:-1] != presents[1].shape[:-1]:
        raise RuntimeError(
            f"arguments 'present_key' {tuple(presents[0].shape)} and 'present_value' {tuple(presents[1].shape)} must "
            f"have {query.ndim} dims that differ in the last alone"
        )


def check_caches(caches, news, query):
    """Refuse caches to which the rows of ``news``, key and value, cannot be written.

    :param caches: ``present_key`` and ``present_value``, of the shapes of key and value except for the rows.
    :return: The capacity, in rows.
    :raises TypeError: One is not a tensor.
    :raises RuntimeError: Shapes, dtypes or devices do not fit, or a cache is expanded.
    """
    for name, cache, new in zip(_NAMES, caches, news, strict=True):
        check_tensor(cache, name)
        common_device({"query": query, name: cache})

        if cache.dtype is not new.dtype:
            raise RuntimeError(f"argument '{name}' has dtype {cache.dtype}, but the rows to write have {new.dtype}")

        wanted = (*new.shape[:-2], "capacity", new.shape[-1])

        if cache.ndim != new.ndim or any(
            size != other for size, other in zip(cache.shape, wanted, strict=True) if other != "capacity"
        ):
            raise RuntimeError(f"argument '{name}' has shape {tuple(cache.shape)}; it must be {wanted}")

        check_written(cache, name)

    if caches[0].shape[-2] != caches[1].shape[-2]:
        raise RuntimeError(
            f"argument 'present_value' has a capacity of {caches[1].shape[-2]}, but that of 'present_key' is "
            f"{caches[0].shape[-2]}"
        )

    return caches[0].shape[-2]


def check_positions(slots, query, capacity, new_rows, mask):
    """Refuse positions from which ``new_rows`` rows do not fit into the caches.

    Positions on a GPU are checked only with ``NTOPS_CHECK=1`` in the environment, since that waits for the GPU.

    :param slots: ``present_key_slot`` and ``present_value_slot``.
    :param mask: ``attn_mask`` or ``None``.
    :return: The positions, an int or a contiguous integer tensor (B,) on the query's device, and the number of keys of
        the longest sequence. Positions on a GPU do not tell it: then it is the number of keys of the mask, or the
        capacity.
    :raises TypeError: They are not integers.
    :raises RuntimeError: They differ, have the wrong shape, are negative or lead past the capacity.
    """
    key_slot, value_slot = slots

    if value_slot is not None and isinstance(key_slot, torch.Tensor) != isinstance(value_slot, torch.Tensor):
        raise RuntimeError("arguments 'present_key_slot' and 'present_value_slot' must be both ints or both tensors")

    if not isinstance(key_slot, torch.Tensor):
        slot = _integer(key_slot, "present_key_slot")

        if value_slot is not None and _integer(value_slot, "present_value_slot") != slot:
            raise RuntimeError(_UNEQUAL)

        _check_range(slot, slot, new_rows, capacity)
        return slot, slot + new_rows

    for name, slot in (("present_key_slot", key_slot), ("present_value_slot", value_slot)):
        if slot is not None:
            _check_tensor(slot, name, query)

    on_gpu = key_slot.is_cuda
    length = capacity if mask is None or not mask.ndim or mask.shape[-1] == 1 else min(mask.shape[-1], capacity)

    if boundary.has_work(key_slot) and (not on_gpu or is_checked()):
        recorder.prevent()

        if value_slot is not None and (key_slot.cpu() != value_slot.cpu()).any():
            raise RuntimeError(_UNEQUAL)

        lowest, highest = int(key_slot.min()), int(key_slot.max())
        _check_range(lowest, highest, new_rows, capacity)
        length = highest + new_rows

    return key_slot.to(query.device, non_blocking=True).contiguous(), length


def _check_tensor(slot, name, query):
    if slot.dtype not in _INTEGERS:
        raise TypeError(f"argument '{name}' must be an int or a tensor of integers, not of {slot.dtype}")

    check_tensor(slot, name, _INTEGERS)

    if query.ndim != 4:
        raise RuntimeError(f"argument '{name}' must be an int where tensors have no batch dim")

    if slot.shape != query.shape[:1]:
        raise RuntimeError(
            f"argument '{name}' must be a position for each of {query.shape[0]} sequences, not of shape "
            f"{tuple(slot.shape)}"
        )

    if slot.is_cuda and slot.device != query.device:
        raise RuntimeError(f"argument '{name}' is on {slot.device}, but the query is on {query.device}")


def _integer(value, name):
    try:
        if isinstance(value, bool):
            raise TypeError

        return value if isinstance(value, torch.SymInt) else operator.index(value)
    except TypeError:
        raise TypeError(f"argument '{name}' must be an int or a tensor, not {type(value).__name__}") from None


def _check_range(lowest, highest, new_rows, capacity):
    if lowest < 0:
        raise RuntimeError(f"argument 'present_key_slot' is {lowest}; positions are not negative")

    if highest + new_rows > capacity:
        raise RuntimeError(
            f"argument 'present_key_slot' is {highest}: with {new_rows} new rows that is past the capacity of the "
            f"cache, {capacity}"
        )


def write(caches, news, slot):
    """Write the new rows of key and value to the caches at the positions that :func:`check_positions` returned.

    :param caches: The two caches, (B, H, capacity, E) or without the first dim.
    :param news: Likewise, with the new rows instead of the capacity.
    """
    *batch, heads, new_rows, width = news[0].shape
    largest = max(width, news[1].shape[-1])

    for cache in caches:
        recorder.written(cache)

    if not boundary.has_work(news[0]):
        return

    caches, news = ([x if x.ndim == 4 else x.unsqueeze(0) for x in pair] for pair in (caches, news))
    block_e = next_power_of_2(largest)
    # A tile of about 4096 elements keeps a program busy.
    block_m = min(next_power_of_2(new_rows), max(4096 // block_e, 1))
    row_tiles = -(-new_rows // block_m)
    by_sequence = isinstance(slot, torch.Tensor)
    pairs = [(cache, new) for cache, new in zip(caches, news, strict=True)]

    with on_device(news[0].device):
        recorder.launch(
            write_rows,
            (math.prod(batch) * heads * row_tiles, 2),
            {},
            *caches,
            *news,
            slot if by_sequence else caches[0],
            *(stride for pair in pairs for tensor in pair for stride in tensor.stride()),
            0 if by_sequence else slot,
            heads,
            new_rows,
            width,
            news[1].shape[3],
            caches[0].shape[2],
            row_tiles,
            by_sequence,
            all(tensor.stride(3) == 1 for tensor in (*caches, *news)),
            block_m,
            block_e,
        )


def written(caches, slot, length):
    """Return the part of the caches that attention reads: all if each sequence has a length of its own."""
    return tuple(cache.narrow(-2, 0, length) for cache in caches) if not isinstance(slot, torch.Tensor) else caches
