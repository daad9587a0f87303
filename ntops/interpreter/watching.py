"""Watching every access to memory of the kernels that run under the interpreter."""

import contextlib
import dataclasses
import functools
import inspect
import sys
import types

import numpy as np
import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from ntops.interpreter.extents import Argument
from ntops.interpreter.faults import MemoryFault

_watches = []


def current():
    """The innermost watch, or ``None``."""
    return _watches[-1] if _watches else None


@contextlib.contextmanager
def watch(inputs=(), writable=()):
    """Check every load and store of the kernels that run inside: ``with watch(inputs=[x]) as watcher: ...``.

    Raised as :class:`MemoryFault` where it happens: an access outside of the argument that the address was made from;
    two programs, or two lanes, that store different values to one element; a program that reads what another one
    stored; a load of an element of a tensor from ``torch.empty`` and the like, made inside, that nothing has written;
    a store to one of ``inputs``. Elements that no kernel has written are for ``watcher.check_written``.

    :param inputs: Tensors that kernels may only read.
    :param writable: Those among them, or views of them, that the call was given to write.
    """
    watcher = Watch(inputs, writable)
    _watches.append(watcher)

    try:
        with _Allocations(watcher):
            yield watcher
    finally:
        _watches.remove(watcher)


def watch_from_here():
    """Watch until the process ends, as ``NTOPS_CHECK_MEMORY=1`` asks for."""
    watcher = Watch()
    _watches.append(watcher)
    _Allocations(watcher).__enter__()


@dataclasses.dataclass
class _Fresh:
    """A storage that was allocated but not filled: which of its bytes have been written since, and by whom."""

    reference: StorageWeakRef
    written: np.ndarray
    kernels: dict = dataclasses.field(default_factory=dict)

    def mark(self, places, size, log):
        """Elements of ``size`` bytes at ``places`` are written; ``log`` takes what undoes that."""
        flags = self._flags(size)

        if log is not None:
            # What is undone was never stored.
            log.append((flags.__setitem__, places, flags[places].copy()))

        flags[places] = _all_bytes(size)

    def is_written(self, places, size):
        """Whether all bytes of the elements at ``places`` are."""
        return self._flags(size)[places] == _all_bytes(size)

    def _flags(self, size):
        # One integer for the flags of all bytes of an element.
        return self.written[: self.written.size // size * size].view(f"u{size}")


@functools.cache
def _all_bytes(size):
    return np.ones(size, bool).view(f"u{size}")[0]


class Watch:
    """What is known about memory while it is watched."""

    def __init__(self, inputs=(), writable=()):
        self._fresh = {}
        allowed = [_range(tensor) for tensor in writable]
        # An input of which any part may be written is left alone.
        self._read_only = [
            (*_range(tensor), number)
            for number, tensor in enumerate(inputs)
            if not any(_overlap(_range(tensor), other) for other in allowed)
        ]

    def allocated(self, tensor):
        """A tensor whose memory holds nothing yet."""
        storage = tensor.untyped_storage()

        if tensor.device.type == "cpu" and storage.nbytes():
            written = np.zeros(storage.nbytes(), bool)
            self._fresh[storage.data_ptr()] = _Fresh(StorageWeakRef(storage), written)

    def filled(self, tensor):
        """A tensor that torch has written."""
        fresh = self.fresh(_storage(tensor))

        if fresh is not None:
            _bytes_of(tensor, fresh.written).fill_(True)

    def fresh(self, storage):
        """What is known of the storage at an address, if it began empty."""
        fresh = self._fresh.get(storage)

        if fresh is not None and fresh.reference.expired():
            # Another tensor has the memory now.
            del self._fresh[storage]

            return None

        return fresh

    def read_only_overlap(self, argument):
        """The number of the input with which ``argument`` shares memory that only may be read, else ``None``."""
        start, length = argument.extent

        for low, high, number in self._read_only:
            if low < start + length and start < high:
                return number

        return None

    def check_written(self, outputs):
        """Raise unless each element of ``outputs``, a tensor or a nest of tuples and lists of them, was written."""
        if isinstance(outputs, (tuple, list)):
            for output in outputs:
                self.check_written(output)
        elif isinstance(outputs, torch.Tensor):
            fresh = self.fresh(_storage(outputs))

            if fresh is not None:
                _check_written(outputs, fresh)


def _check_written(tensor, fresh):
    if fresh.written.all():
        return

    missing = ~_bytes_of(tensor, fresh.written)[..., 0]

    if missing.any():
        index = tuple(missing.nonzero()[0].tolist())
        kernel, line = next(reversed(fresh.kernels.items()), (None, None))
        raise MemoryFault(
            "unwritten",
            f"element {list(index)} of an output of shape {tuple(tensor.shape)} was never written, "
            f"one of {int(missing.sum())} among {tensor.numel()}"
            + ("" if kernel else "; no kernel stored anything to it"),
            kernel=kernel,
            line=line,
            index=index,
        )


def _bytes_of(tensor, written):
    """The flags of each element of ``tensor`` in the flags of its storage, its bytes last."""
    size = tensor.element_size()
    strides = [stride * size for stride in tensor.stride()]

    return torch.from_numpy(written).as_strided((*tensor.shape, size), (*strides, 1), tensor.storage_offset() * size)


def _storage(tensor):
    return tensor.untyped_storage().data_ptr()


def _range(tensor):
    start, length = Argument("", tensor).extent

    return start, start + length


def _overlap(one, other):
    return one[0] < other[1] and other[0] < one[1]


_EMPTY = {"empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided", "resize_"}


class _Allocations(TorchDispatchMode):
    """Tells a watch what torch allocates without filling it, and what it writes."""

    def __init__(self, watcher):
        super().__init__()
        self._watcher = watcher

    def __enter__(self):
        # To keep its compiler out of a mode torch imports it, which takes seconds: not where nobody else has.
        if "torch._dynamo" not in sys.modules:
            self.__torch_dispatch__ = types.MethodType(inspect.unwrap(_Allocations.__torch_dispatch__), self)

        return super().__enter__()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        result = function(*args, **kwargs)

        if function.overloadpacket.__name__ in _EMPTY:
            if isinstance(result, torch.Tensor):
                self._watcher.allocated(result)
        elif function._schema.is_mutable:
            self._note_writes(function._schema.arguments, args, kwargs)

        return result

    def _note_writes(self, parameters, args, kwargs):
        for place, parameter in enumerate(parameters):
            if parameter.alias_info is not None and parameter.alias_info.is_write:
                value = args[place] if place < len(args) else kwargs.get(parameter.name)

                for tensor in value if isinstance(value, (list, tuple)) else [value]:
                    if isinstance(tensor, torch.Tensor):
                        self._watcher.filled(tensor)
