"""Watch every memory access of the kernels that run under the interpreter."""

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

from ntops.interpreter.errors import MemoryFault
from ntops.interpreter.extents import Argument

_watches = []


def current():
    """Return the innermost watch, or ``None``."""
    return _watches[-1] if _watches else None


@contextlib.contextmanager
def watch(inputs=(), writable=()):
    """Check every load and store of the kernels that run inside: ``with watch(inputs=[x]) as watcher: ...``.

    :class:`MemoryFault` is raised where it happens: at an access outside of the argument that the address was made
    from; when two programs, or two lanes, store different values to one element; when a program reads what another one
    stored; at a load of an element that nothing has written, of a tensor made inside by ``torch.empty`` and the like;
    at a store to one of ``inputs``. ``watcher.check_written`` finds elements that no kernel has written.

    :param inputs: Tensors that kernels may only read.
    :param writable: The inputs, or views of them, that the call may write.
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
    """A storage that was allocated but not filled, with the bytes written since, and their writers."""

    reference: StorageWeakRef
    written: np.ndarray
    kernels: dict = dataclasses.field(default_factory=dict)

    def mark(self, places, size, log):
        """Mark elements of ``size`` bytes at ``places`` as written; ``log`` receives the undo."""
        flags = self._flags(size)

        if log is not None:
            # Undone stores count as never made.
            log.append((flags.__setitem__, places, flags[places].copy()))

        flags[places] = _all_bytes(size)

    def is_written(self, places, size):
        """Tell whether all bytes of the elements at ``places`` are written."""
        return self._flags(size)[places] == _all_bytes(size)

    def _flags(self, size):
        # One integer covers the flags of all bytes of an element.
        return self.written[: self.written.size // size * size].view(f"u{size}")


@functools.cache
def _all_bytes(size):
    return np.ones(size, bool).view(f"u{size}")[0]


class Watch:
    """The knowledge about memory while it is watched."""

    def __init__(self, inputs=(), writable=()):
        self._fresh = {}
        allowed = [_range(tensor) for tensor in writable]
        # An input is left alone if any part of it may be written.
        self._read_only = [
            (*_range(tensor), number)
            for number, tensor in enumerate(inputs)
            if not any(_overlap(_range(tensor), other) for other in allowed)
        ]

    def allocated(self, tensor):
        """Record a tensor whose memory holds nothing yet."""
        storage = tensor.untyped_storage()

        if tensor.device.type == "cpu" and storage.nbytes():
            written = np.zeros(storage.nbytes(), bool)
            self._fresh[storage.data_ptr()] = _Fresh(StorageWeakRef(storage), written)

    def filled(self, tensor):
        """Record a tensor that torch has written."""
        fresh = self.fresh(_storage(tensor))

        if fresh is not None:
            _bytes_of(tensor, fresh.written).fill_(True)

    def fresh(self, storage):
        """Return the record of the storage at an address, if it began empty."""
        fresh = self._fresh.get(storage)

        if fresh is not None and fresh.reference.expired():
            # Another tensor has the memory by now.
            del self._fresh[storage]

            return None

        return fresh

    def read_only_overlap(self, argument):
        """Return the number of the input whose read-only memory ``argument`` shares, else ``None``."""
        start, length = argument.extent

        for low, high, number in self._read_only:
            if low < start + length and start < high:
                return number

        return None

    def check_written(self, outputs):
        """Raise unless each element of ``outputs``, a tensor or nested tuples and lists of tensors, was written."""
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
    """Return the flags of each element of ``tensor`` in the flags of its storage, its bytes last."""
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


_HERE = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)


class _Allocations(TorchDispatchMode):
    """Tell a watch which tensors torch allocates without filling, and which it writes."""

    def __init__(self, watcher):
        super().__init__()
        self._watcher = watcher

    def __enter__(self):
        # To keep its compiler out of a mode, torch imports the compiler, which takes seconds; avoid that unless it is
        # imported already.
        if "torch._dynamo" not in sys.modules:
            self.__torch_dispatch__ = types.MethodType(inspect.unwrap(_Allocations.__torch_dispatch__), self)

        return super().__enter__()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}

        if function.namespace == "ntops":
            # Allocations of its kernel are seen, too.
            with self:
                return function.redispatch(_HERE, *args, **kwargs)

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
