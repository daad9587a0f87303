"""Lay an operand far away: 2^31 elements behind the beginning of its storage, or from its first row to its last, as a
part of a large pool of pages, of a model's weights in one buffer, or of a KV cache.

Offsets of 32 bits, of elements or of bytes, end before that. On the CPU the system gives no memory for what lies in
between, which nobody touches. ``runtime`` loads this file by its path, and it imports nothing of the harness.
"""

import ctypes
import fcntl
import mmap
import os
import tempfile

import torch

FAR_OFFSET, FAR_ROWS = "far offset", "far rows"
"""Ways to lay an operand: all of it behind the beginning of its storage; or its outermost dim spread."""
FEWEST_ROWS, MOST_ROWS = 3, 128
"""The rows that are spread. Each takes a page, which may have 2 MiB; and two would be 2^31 elements apart, which
torch's own products of half types do not survive."""
_UNIT = 64
"""Distances are multiples of so many elements, so that the operand is aligned as it was."""
_SPARE = 2, 4
"""Memory is taken where the machine has so many times as much, and where the GPU has as much that is free."""
_WIDE = 1 << 26
"""The most bytes from the first element of a result to its last."""

_lock = []
"""The file by which one process at a time takes such memory of a GPU."""


def laid(operands, inputs, how, turn, left=()):
    """Return the operands, one of which lies far away, and its number: None where there is none, or no memory for it.

    :param operands: Tensors on the device, each in a storage of its own.
    :param inputs: The same on the CPU.
    :param how: ``FAR_OFFSET`` or ``FAR_ROWS``.
    :param turn: Any number: it chooses among the operands that have elements, or rows.
    :param left: The numbers of operands that are left as they are.
    """
    able = [one.numel() > 0 and (how == FAR_OFFSET or _outermost(one) >= 0) for one in inputs]
    numbers = [number for number, is_able in enumerate(able) if is_able and number not in left]
    if numbers:
        number = numbers[turn % len(numbers)]
        # 2^31 elements, or as many bytes.
        for distance in (1 << 31, (1 << 31) // inputs[number].itemsize):
            moved = _moved(operands[number], how, distance)
            if moved is not None:
                return (*operands[:number], moved, *operands[number + 1 :]), number
    return operands, None


def brought_back(operand, like):
    """Return a copy of an operand that was laid far away in a storage of its own, as ``like`` lies in its."""
    if operand.shape != like.shape:
        # It was resized.
        return operand.clone(memory_format=torch.contiguous_format)
    near = torch.empty(0, dtype=torch.uint8).set_(like.untyped_storage()).clone().to(operand.device)
    found = torch.empty(0, dtype=like.dtype, device=operand.device)
    return _filled(found.set_(near.untyped_storage(), like.storage_offset(), like.shape, like.stride()), operand)


def narrow(result):
    """Return a result; a dense copy of one that a call has laid as far apart as its operand was."""
    if type(result) is not torch.Tensor or result.layout is not torch.strided or not result.numel():
        return result
    is_wide = _extent(result.shape, result.stride()) * result.itemsize > max(_WIDE, result.nbytes)
    return result.clone(memory_format=torch.contiguous_format) if is_wide else result


def keep_from_children(tensor):
    """Leave a CPU tensor's memory, which nobody may touch, out of processes that are forked: the system may refuse
    these so much."""
    storage = tensor.untyped_storage()
    # The page before has what the allocator needs to free it.
    start = -(-storage.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
    size = storage.data_ptr() + storage.nbytes() - start
    ctypes.CDLL(None).madvise(ctypes.c_void_p(start), ctypes.c_size_t(size), mmap.MADV_DONTFORK)


def free(device):
    """Give a GPU's memory back, and let other processes take as much."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
        while _lock:
            os.close(_lock.pop())


def _moved(operand, how, distance):
    """Return the operand with so many elements in front of it, or between its rows; None: there is no memory for
    them."""
    size, strides, start = operand.untyped_storage().nbytes(), list(operand.stride()), operand.storage_offset()
    if how == FAR_OFFSET:
        start += distance
    else:
        dim = _outermost(operand)
        step = -(-distance // (operand.shape[dim] - 1))
        strides[dim] = max(strides[dim], -(-step // _UNIT) * _UNIT)
    end = start + _extent(operand.shape, strides)
    storage = _storage(max(end * operand.itemsize, size), operand.device)
    if storage is None:
        return None
    found = torch.empty(0, dtype=operand.dtype, device=operand.device)
    return _filled(found.set_(storage, start, operand.shape, strides), operand)


def _extent(shape, strides):
    """Return the number of elements from the first to the last of a tensor that is not empty."""
    return sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True)) + 1


def _filled(tensor, other):
    """Give a tensor the elements of another, those of an expanded dim once, and return it."""
    first = tuple(slice(None) if stride else slice(1) for stride in tensor.stride())
    # torch copies bools as truth values.
    bits = torch.uint8 if tensor.dtype is torch.bool else tensor.dtype
    tensor[first].view(bits).copy_(other[first].view(bits))
    return tensor


def _outermost(tensor):
    """Return the dim of the largest stride of those with several elements; -1: it has too few or too many, or elements
    share memory. The order of the dims is that of a result's, and stays."""
    dims = [dim for dim, size in enumerate(tensor.shape) if size > 1]
    if not dims:
        return -1
    dim = max(dims, key=tensor.stride)
    inside = sum((tensor.shape[one] - 1) * tensor.stride(one) for one in dims if one != dim)
    is_apart = all(map(tensor.stride, dims)) and tensor.stride(dim) > inside
    return dim if is_apart and FEWEST_ROWS <= tensor.shape[dim] <= MOST_ROWS else -1


def _storage(size, device):
    """Return a storage of so many bytes that nobody has touched; None where it cannot be had."""
    of_machine, of_gpu = _SPARE
    if device.type == "cuda" and not (_locked(device) and torch.cuda.mem_get_info(device)[0] >= of_gpu * size):
        return None
    if device.type == "cpu" and os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") < of_machine * size:
        return None
    try:
        # Not torch.empty: where torch is set to be deterministic, that fills it.
        return torch.UntypedStorage(size, device=device)
    except RuntimeError:
        return None


def _locked(device):
    """Tell whether no other process has such memory of the GPU."""
    if not _lock:
        gpu = getattr(torch.cuda.get_device_properties(device), "uuid", device.index)
        path = os.path.join(tempfile.gettempdir(), f"conformance-far-{os.getuid()}-{gpu}")
        file = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(file)
            return False
        _lock.append(file)
    return True
