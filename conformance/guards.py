"""Memory that shows who wrote and who read where: margins around every tensor of a call, and poison in new ones.

Allocations are intercepted where torch dispatches them, so that this holds for any implementation, compiled or not.
Kernels that torch itself allocates for (``torch.add`` makes its own result) get guarded operands, and no more.

Copied into the ``repro_<id>.py`` scripts of failures that it found, so it needs torch and nothing else.
"""

import inspect
import math
import sys
import types

import torch
from torch.utils import dlpack
from torch.utils._python_dispatch import TorchDispatchMode

MARGIN = 1 << 15
"""Bytes on each side: some blocks of a kernel, and a multiple of every alignment that a kernel may ask for."""
NUMBER, OTHER = 0x5A, 0xA5
"""Bytes that make a number of every dtype (a small one is 0xA5A5A5A5), and differ."""

_EMPTY = {"empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided"}
_FILLED = {"zeros", "ones", "full"}
_FILLED |= {"clone", "_to_copy", *(f"{name}_like" for name in _FILLED), *(f"new_{name}" for name in _FILLED)}
_RESIZED = {"resize_", "resize_as_"}


def poison(dtype, which):
    """The byte that unknown memory of a dtype is filled with, 0 or 1: of floats NaN first, and then a number. What
    holds it both times was written by nobody."""
    if dtype == torch.bool:
        return 1 - which
    if which:
        return NUMBER
    return 0xFF if dtype.is_floating_point or dtype.is_complex else OTHER


def memory_of(tensor):
    """The whole storage as bytes, where it is."""
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
        """A copy of a CPU tensor, margins around its storage; what is written lies where torch may resize it.

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
        """What was written to margins, or nothing."""
        for band in self._bands:
            whole, end = memory_of(band.buffer), band.end()
            for side, margin in (("before", whole[:MARGIN]), ("after", whole[end : end + MARGIN])):
                # Quicker by far than comparing bytes one by one, which torch.equal does.
                if len(margin) and any(extreme != band.around for extreme in torch.aminmax(margin)):
                    wrong = (margin != band.around).nonzero().flatten()
                    away = int(wrong[0]) if side == "after" else MARGIN - 1 - int(wrong[-1])
                    return f"{len(wrong)} bytes {side} {band.name} were written, from {away} bytes away on"
        return ""

    @classmethod
    def ignore_compile_internals(cls):
        """torch.compile is to compile as ever; under a mode of another kind it would not, then or later."""
        return True

    def __enter__(self):
        # To keep its compiler out of a mode torch imports it, which takes seconds: not where nobody else has.
        if "torch._dynamo" not in sys.modules:
            self.__torch_dispatch__ = types.MethodType(inspect.unwrap(Guard.__torch_dispatch__), self)
        return super().__enter__()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        if name in _RESIZED:
            self._make_room(*args[:2])
        result = func(*args, **kwargs)
        if name not in _EMPTY | _FILLED or "out" in kwargs or type(result) is not torch.Tensor:
            return result
        if result.device.type != self.device or result.layout is not torch.strided or result.is_quantized:
            return result
        length = result.untyped_storage().nbytes()
        # What has no memory may be resized by torch itself, out of sight.
        if not length:
            return result
        band = self._band(length, NUMBER, _named("a tensor that the call allocated", result))
        guarded = over(band.inside(), result, 0)
        if name in _FILLED:
            return guarded.copy_(result)
        self.fresh = True
        band.buffer[MARGIN : band.last] = poison(result.dtype, self.fill)
        return guarded

    def _make_room(self, tensor, size):
        """Before ``tensor`` is resized, to a shape or that of another: the margin behind it moves, and what it gains is
        poisoned."""
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
    """``buffer``, bytes of which those up to the margin and those from ``last`` on are margins.

    ``operand``: the one that lies in it, with an offset into its storage. Otherwise what is between the margins is a
    storage of its own, so that its tensor lies in it as it would without them; torch cannot resize that.
    """

    def __init__(self, buffer, around, name, last):
        self.buffer, self.around, self.name, self.last = buffer, around, name, last
        self.operand = self.storage = None

    def inside(self):
        """The storage between the margins."""
        self.storage = dlpack.from_dlpack(dlpack.to_dlpack(self.buffer[MARGIN : self.last])).untyped_storage()
        return self.storage

    def holds(self, storage):
        return storage._cdata == (self.storage or self.buffer.untyped_storage())._cdata

    def end(self):
        """Where the second margin begins now: torch may have resized the operand on the way."""
        view = self.operand
        if view is None or not view.numel() or not self.holds(view.untyped_storage()):
            return self.last
        extent = sum((size - 1) * stride for size, stride in zip(view.shape, view.stride(), strict=True)) + 1
        return max(self.last, (view.storage_offset() + extent) * view.itemsize)


guarded = Guard


def _named(name, tensor):
    return f"{name} ({tensor.dtype}, shape {list(tensor.shape)})"


def over(storage, like, offset, tensor=None):
    """A tensor (this one, or a new one) in ``storage`` with dtype, shape and strides of another."""
    tensor = torch.empty(0, dtype=like.dtype, device=storage.device) if tensor is None else tensor
    return tensor.set_(storage, offset, like.shape, like.stride())


def unwritten(first, second):
    """Of the results of two equal calls, the memory of each filled with another poison: elements that hold it still."""
    rows = (bits(tensor) for tensor in (first, second))
    held = [(row == poison(first.dtype, which)).all(1) for which, row in enumerate(rows)]
    return (held[0] & held[1]).view(first.shape)


def bits(tensor):
    """One row of bytes per element, row-major: equal exactly where the elements are the same bits."""
    flat = tensor.detach().cpu().reshape(-1, 1).clone(memory_format=torch.contiguous_format)
    return flat.view(torch.uint8)


def same(first, second):
    """Whether memory, as ``memory_of`` gives it, is the same. By words, where it begins with one: bytes take long."""
    if first.storage_offset() % 8 or second.storage_offset() % 8:
        return torch.equal(first, second)
    words = len(first) // 8 * 8
    halves = ((memory[:words].view(torch.int64), memory[words:]) for memory in (first, second))
    return all(torch.equal(*parts) for parts in zip(*halves, strict=True))
