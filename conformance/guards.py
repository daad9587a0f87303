"""Guard memory: margins around every tensor of a call, and poison in new tensors.

Allocations are intercepted where torch dispatches them, so that this holds for any implementation, compiled or not.
Kernels that torch itself allocates for (``torch.add`` makes its own result) get guarded operands, and no more.

Copied into the ``repro_<id>.py`` scripts of failures that it found, so it needs torch and nothing else.
"""

import contextlib
import ctypes
import inspect
import math
import mmap
import sys
import types

import torch
from torch.utils import dlpack
from torch.utils._python_dispatch import TorchDispatchMode

MARGIN = 1 << 15
"""Bytes on each side: some blocks of a kernel, and a multiple of every alignment that a kernel may ask for."""
NUMBER, OTHER = 0x5A, 0xA5
"""Two bytes that differ, each of which makes a number of every dtype (0xA5A5A5A5 is a small one)."""

_EMPTY = {"empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided"}
_FILLED = {"zeros", "ones", "full"}
_FILLED |= {"clone", "_to_copy", *(f"{name}_like" for name in _FILLED), *(f"new_{name}" for name in _FILLED)}
_TORCHS = {"aten", "prim", "prims", "profiler", "quantized"}
_RESIZED = {"resize_", "resize_as_"}


def poison(dtype, which):
    """Return the byte that fills unknown memory of a dtype, 0 or 1: for floats NaN first, and then a number. Memory
    that holds it both times was written by nobody."""
    if dtype == torch.bool:
        return 1 - which
    if which:
        return NUMBER
    return 0xFF if dtype.is_floating_point or dtype.is_complex else OTHER


def memory_of(tensor):
    """Return the whole storage as bytes, on its device."""
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())


class Guard(TorchDispatchMode):
    """The memory of one call: ``with Guard(device, 0, 0) as guard: function(...)``, operands from ``guard.operand``.

    :param device: Tensors of other devices are left alone.
    :param fill: Which poison new memory is filled with, 0 or 1.
    :param around: Which poison lies around operands that are only read.
    """

    def __init__(self, device, fill, around):
        super().__init__()
        self.device, self.fill, self.around = torch.device(device).type, fill, around
        self.fresh = False
        """Whether anything was allocated without being filled."""
        self._bands = []

    def operand(self, tensor, written):
        """Return a copy of a CPU tensor, margins around its storage; a written operand lies where torch may resize it.

        Made outside of the ``with`` block.
        """
        data = memory_of(tensor).to(self.device)
        if not written:
            band = self._band(len(data), poison(tensor.dtype, self.around), _named("an input", tensor))
            band.buffer[MARGIN : band.last] = data
            return over(band.inside(), tensor, tensor.storage_offset())
        # No NaN, so that storing what was read outside shows.
        around = OTHER if self.around else NUMBER
        band = self._band(len(data), around, _named("an operand that the call is given to write", tensor))
        band.buffer[MARGIN : band.last] = data
        offset = MARGIN // tensor.itemsize + tensor.storage_offset()
        band.operand = over(band.buffer.untyped_storage(), tensor, offset)
        return band.operand

    def trespass(self):
        """Say what was written to margins; empty: nothing."""
        for band in self._bands:
            whole, end = memory_of(band.buffer), band.end()
            for side, margin in (("before", whole[:MARGIN]), ("after", whole[end : end + MARGIN])):
                # Far quicker than comparing bytes one by one, as torch.equal does.
                if len(margin) and any(extreme != band.around for extreme in torch.aminmax(margin)):
                    wrong = (margin != band.around).nonzero().flatten()
                    away = int(wrong[0]) if side == "after" else MARGIN - 1 - int(wrong[-1])
                    return f"{len(wrong)} bytes {side} {band.name} were written, from {away} bytes away on"
        return ""

    @classmethod
    def ignore_compile_internals(cls):
        """Let torch.compile compile as ever; under a mode of another kind it would not, then or later."""
        return True

    def __enter__(self):
        # To keep its compiler out of a mode torch imports it, which takes seconds: avoided where nobody else has
        # imported it.
        if "torch._dynamo" not in sys.modules:
            self.__torch_dispatch__ = types.MethodType(inspect.unwrap(Guard.__torch_dispatch__), self)
        return super().__enter__()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        if name in _RESIZED:
            self._make_room(*args[:2])
        if func.namespace not in _TORCHS:
            return self._within(func, args, kwargs)
        result = func(*args, **kwargs)
        if name not in _EMPTY | _FILLED or "out" in kwargs or type(result) is not torch.Tensor:
            return result
        if result.device.type != self.device or result.layout is not torch.strided or result.is_quantized:
            return result
        length = result.untyped_storage().nbytes()
        # torch itself may resize a tensor without memory, out of sight.
        if not length:
            return result
        band = self._band(length, NUMBER, _named("a tensor that the call allocated", result))
        guarded = over(band.inside(), result, 0)
        if name in _FILLED:
            return guarded.copy_(result)
        self.fresh = True
        band.buffer[MARGIN : band.last] = poison(result.dtype, self.fill)
        return guarded

    def _within(self, func, args, kwargs):
        """Return the result of another library's operator, whose kernel allocates under this mode as it would alone."""
        tensors = [one for one in (*args, *kwargs.values()) if isinstance(one, torch.Tensor)]
        key = "CUDA" if any(one.is_cuda for one in tensors) else "CPU"
        if not func.has_kernel_for_dispatch_key(getattr(torch._C.DispatchKey, key)):
            return func(*args, **kwargs)
        with self:
            return func.redispatch(torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key)), *args, **kwargs)

    def _make_room(self, tensor, size):
        """Prepare for resizing ``tensor`` to a shape, or that of another: move the margin behind it, and poison what it
        gains."""
        shape = size.shape if isinstance(size, torch.Tensor) else size
        storage = tensor.untyped_storage()
        length = (tensor.storage_offset() + math.prod(shape)) * tensor.itemsize
        band = next((band for band in self._bands if band.holds(storage)), None)
        if band is None:
            return
        if band.operand is None:
            if length > storage.nbytes():
                larger = self._band(length, band.around, band.name)
                larger.buffer[MARGIN : larger.last] = poison(tensor.dtype, self.fill)
                larger.buffer[MARGIN : MARGIN + storage.nbytes()] = memory_of(tensor)
                over(larger.inside(), tensor, tensor.storage_offset(), tensor)
        elif length > band.last:
            if storage.nbytes() < length + MARGIN:
                storage.resize_(length + MARGIN)
            whole = memory_of(tensor)
            whole[band.last : length] = poison(tensor.dtype, self.fill)
            whole[length:] = band.around
            band.last, self.fresh = length, True

    def _band(self, length, around, name):
        buffer = torch.empty(MARGIN + length + MARGIN, dtype=torch.uint8, device=self.device)
        band = _Band(buffer, around, name, MARGIN + length)
        buffer[:MARGIN] = around
        buffer[band.last :] = around
        self._bands.append(band)
        return band


class _Band:
    """A buffer of bytes, of which the first ``MARGIN`` and those from ``last`` on are margins.

    ``operand``: the one that lies in it, with an offset into its storage. Without one, the bytes between the margins
    are a storage of their own, in which a tensor lies as it would without margins; torch cannot resize that.
    """

    def __init__(self, buffer, around, name, last):
        self.buffer, self.around, self.name, self.last = buffer, around, name, last
        self.operand = self.storage = None

    def inside(self):
        """Return the storage between the margins."""
        self.storage = dlpack.from_dlpack(dlpack.to_dlpack(self.buffer[MARGIN : self.last])).untyped_storage()
        return self.storage

    def holds(self, storage):
        return storage._cdata == (self.storage or self.buffer.untyped_storage())._cdata

    def end(self):
        """Return where the second margin begins now: torch may have resized the operand on the way."""
        view = self.operand
        if view is None or not view.numel() or not self.holds(view.untyped_storage()):
            return self.last
        extent = sum((size - 1) * stride for size, stride in zip(view.shape, view.stride(), strict=True)) + 1
        return max(self.last, (view.storage_offset() + extent) * view.itemsize)


guarded = Guard


def _named(name, tensor):
    return f"{name} ({tensor.dtype}, shape {list(tensor.shape)})"


def over(storage, like, offset, tensor=None):
    """Return a tensor (this one, or a new one) in ``storage`` with dtype, shape and strides of another."""
    tensor = torch.empty(0, dtype=like.dtype, device=storage.device) if tensor is None else tensor
    return tensor.set_(storage, offset, like.shape, like.stride())


def read_only(tensor):
    """Return a CPU tensor's copy in memory that nothing may write: the process ends where something does. An ordinary
    copy where the system knows no such memory, and an empty one of none."""
    memory = memory_of(tensor)
    if not len(memory):
        return over(torch.UntypedStorage(0), tensor, tensor.storage_offset())
    pages = mmap.mmap(-1, len(memory))
    storage = torch.frombuffer(pages, dtype=torch.uint8)
    storage.copy_(memory)
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).mprotect(ctypes.c_void_p(storage.data_ptr()), ctypes.c_size_t(len(pages)), mmap.PROT_READ)
    return over(storage.untyped_storage(), tensor, tensor.storage_offset())


def foreign(tensor):
    """Return a CPU tensor's copy in memory that is not torch's, which it cannot resize; an ordinary one of none."""
    memory = memory_of(tensor)
    if not len(memory):
        return over(torch.UntypedStorage(0), tensor, tensor.storage_offset())
    storage = torch.frombuffer(bytearray(memory.numpy()), dtype=torch.uint8).untyped_storage()
    return over(storage, tensor, tensor.storage_offset())


def unwritten(first, second):
    """Tell which elements of the results of two equal calls still hold the poison, which differed between the calls."""
    rows = (bits(tensor) for tensor in (first, second))
    held = [(row == poison(first.dtype, which)).all(1) for which, row in enumerate(rows)]
    return (held[0] & held[1]).view(first.shape)


def bits(tensor):
    """Return the bits of each element as a row of bytes, row-major: rows are equal exactly where the bits are."""
    flat = tensor.detach().cpu().reshape(-1, 1).clone(memory_format=torch.contiguous_format)
    return flat.view(torch.uint8)


def same(first, second):
    """Tell whether two memories, as ``memory_of`` gives them, are the same. Compares words where it can: bytes take
    long."""
    if first.storage_offset() % 8 or second.storage_offset() % 8:
        return torch.equal(first, second)
    words = len(first) // 8 * 8
    halves = ((memory[:words].view(torch.int64), memory[words:]) for memory in (first, second))
    return all(torch.equal(*parts) for parts in zip(*halves, strict=True))
