"""Watching every access to memory of the kernels that run under the interpreter."""

import contextlib
import dataclasses
import sys

import numpy as np
import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from ntops.interpreter.extents import Argument, outside
from ntops.interpreter.faults import MemoryFault, kernel_line

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
        fresh = self.fresh(tensor)

        if fresh is not None:
            _bytes_of(tensor, fresh.written).fill_(True)

    def fresh(self, tensor):
        """What is known of the storage of ``tensor``, if it began empty."""
        key = tensor.untyped_storage().data_ptr()
        fresh = self._fresh.get(key)

        if fresh is not None and fresh.reference.expired():
            # Another tensor has the memory now.
            del self._fresh[key]

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
            fresh = self.fresh(outputs)

            if fresh is not None:
                _check_written(outputs, fresh)


def _check_written(tensor, fresh):
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


def _range(tensor):
    start, length = Argument("", tensor).extent

    return start, start + length


def _overlap(one, other):
    return one[0] < other[1] and other[0] < one[1]


class _Allocations(TorchDispatchMode):
    """Tells a watch what torch allocates without filling it, and what it writes."""

    _EMPTY = {"empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided", "resize_"}

    def __init__(self, watcher):
        super().__init__()
        self._watcher = watcher

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        result = function(*args, **kwargs)

        if function.overloadpacket.__name__ in self._EMPTY:
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


class LaunchWatch:
    """One launch as it is watched: who stored what so far."""

    def __init__(self, watcher, kernel, arguments, builder):
        self._watcher = watcher
        self._kernel = kernel
        self._arguments = arguments
        self._builder = builder
        self._writers = {}
        self._read_only = {}
        self._fresh = {}

    # What the builder tells

    def on_load(self, origin, addresses, enabled, size):
        argument = self._inside(origin, addresses, enabled, size, "loads")

        if argument is None:
            return

        self._check_initialized(argument, addresses, enabled, size)
        writers = self._writers.get((argument.storage, size))

        if writers is not None:
            programs = self._programs(addresses)
            found = writers[self._places(argument, addresses, enabled, size)]
            self._raise_where(
                enabled & (found >= 0) & (found != programs),
                "race",
                "loads",
                argument,
                addresses,
                lambda lane: f", which program {self._index(found[lane])} stores in the same launch",
            )

    def on_store(self, origin, addresses, enabled, data):
        size = data.dtype.itemsize
        argument = self._inside(origin, addresses, enabled, size, "stores to")

        if argument is None:
            return

        self._check_writable(argument, addresses, enabled)
        writers = self._writers.get((argument.storage, size))

        if writers is not None:
            found = writers[self._places(argument, addresses, enabled, size)]
            others = enabled & (found >= 0) & (found != self._programs(addresses))

            if others.any():
                old = self._builder.raw_load(addresses, enabled, data.dtype)
                self._raise_where(
                    others & (_bits(old) != _bits(data)),
                    "race",
                    "stores to",
                    argument,
                    addresses,
                    lambda lane: f" another value than program {self._index(found[lane])} stores there",
                )

    def after_store(self, origin, addresses, enabled, data):
        size = data.dtype.itemsize
        argument = self._owner(origin, addresses, enabled)

        if argument is None:
            return

        everywhere = enabled.all()
        places = _places(argument, addresses.reshape(-1) if everywhere else addresses[enabled], size)

        # Places that rise from lane to lane are all different, which is the usual case.
        if len(places) > 1 and not (places[1:] > places[:-1]).all():
            final = self._builder.raw_load(addresses, enabled, data.dtype)
            self._raise_where(
                enabled & (_bits(final) != _bits(data)),
                "race",
                "stores to",
                argument,
                addresses,
                lambda lane: " another value than another program, or another lane of the same one, does",
            )

        writers = self._writers.get((argument.storage, size))

        if writers is None:
            count = argument.tensor.untyped_storage().nbytes() // size
            writers = self._writers[argument.storage, size] = np.full(count, -1, np.int32)

        programs = np.broadcast_to(self._programs(addresses), addresses.shape)
        self._set(writers, places, programs.reshape(-1) if everywhere else programs[enabled])
        self._mark_written(argument, places, size)

    def _set(self, table, places, values):
        if self._builder.log is not None:
            # What is undone was never stored.
            self._builder.log.append((table.__setitem__, places, table[places]))

        table[places] = values

    def on_atomic(self, origin, addresses, enabled, size):
        argument = self._inside(origin, addresses, enabled, size, "changes")

        if argument is not None:
            self._check_writable(argument, addresses, enabled)
            self._check_initialized(argument, addresses, enabled, size)

    # What is checked

    def _owner(self, origin, addresses, enabled):
        """The argument that an access is about; for a pointer from elsewhere, the one that has its first address."""
        if origin is not None or not enabled.any():
            return origin

        first = int(addresses[enabled][0])

        for argument in self._arguments:
            start, length = argument.extent

            if start <= first < start + length:
                return argument

        lane = np.argwhere(enabled)[0]
        raise self._fault("outside", f"an access to {first:#x}, which is in no argument", None, None, lane)

    def _inside(self, origin, addresses, enabled, size, verb):
        argument = self._owner(origin, addresses, enabled)

        if argument is not None:
            self._raise_where(outside(argument, addresses, size) & enabled, "outside", verb, argument, addresses)

        return argument

    def _check_writable(self, argument, addresses, enabled):
        if argument not in self._read_only:
            self._read_only[argument] = self._watcher.read_only_overlap(argument)

        number = self._read_only[argument]

        if number is not None:
            self._raise_where(
                enabled, "input", "stores to", argument, addresses, lambda lane: f", which is input {number}"
            )

    def _check_initialized(self, argument, addresses, enabled, size):
        fresh = self._fresh_of(argument)

        if fresh is not None:
            written = fresh.written[::size] if fresh.written.size % size == 0 else fresh.written
            places = self._places(argument, addresses, enabled, size)
            self._raise_where(
                enabled & ~written[places],
                "uninitialized",
                "loads",
                argument,
                addresses,
                lambda lane: ", which nothing has written",
            )

    def _fresh_of(self, argument):
        if argument.storage not in self._fresh:
            self._fresh[argument.storage] = self._watcher.fresh(argument.tensor)

        return self._fresh[argument.storage]

    def _mark_written(self, argument, places, size):
        fresh = self._fresh_of(argument)

        if fresh is not None:
            self._set(fresh.written.reshape(-1, size), places, True)
            fresh.kernels[self._kernel] = kernel_line(frame=sys._getframe())

    # Addresses, programs and messages

    def _places(self, argument, addresses, enabled, size):
        """Where accesses are in their storage, in units of ``size`` bytes; 0 for lanes that are off."""
        return np.where(enabled, _places(argument, addresses, size), 0)

    def _programs(self, addresses):
        programs = self._builder.flat_indices[: len(addresses)].astype(np.int32)

        return programs.reshape(-1, *(1,) * (addresses.ndim - 1))

    def _index(self, program):
        return tuple(int(place) for place in np.unravel_index(int(program), self._builder.grid))

    def _raise_where(self, bad, kind, verb, argument, addresses, tail=lambda lane: ""):
        if bad.any():
            lane = tuple(np.argwhere(bad)[0])
            index, text = argument.describe(int(addresses[lane]))
            raise self._fault(kind, f"{verb} {text}{tail(lane)}", argument, index, lane)

    def _fault(self, kind, message, argument, index, lane):
        program = self._builder.flat_indices[min(int(lane[0]), self._builder.programs - 1)]

        return MemoryFault(
            kind,
            message,
            kernel=self._kernel,
            line=kernel_line(frame=sys._getframe()),
            argument=argument.name if argument is not None else None,
            index=index,
            program=self._index(program),
            lane=tuple(int(place) for place in lane[1:]),
        )


def _places(argument, addresses, size):
    """Where addresses are in the storage of an argument, in units of ``size`` bytes, which is a power of two."""
    return ((addresses - np.uint64(argument.storage)) >> np.uint64(size.bit_length() - 1)).view(np.int64)


def _bits(array):
    """The bits of each element, so that NaN is the same as itself and -0. is not 0."""
    return array.view(f"u{array.dtype.itemsize}")
