"""The accesses of one launch, as they are watched."""

import sys

import numpy as np

from ntops.interpreter.extents import outside
from ntops.interpreter.faults import MemoryFault, kernel_line


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
