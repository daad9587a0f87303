"""Watch the memory accesses of one launch."""

import functools
import sys

import numpy as np

from ntops.interpreter.arguments import pointers
from ntops.interpreter.errors import MemoryFault, kernel_line
from ntops.interpreter.memory_access import Access


class LaunchWatch:
    """The record of a watched launch: which program stored to which elements so far.

    Lanes are numbered among those that take part in an access; the description of a lane is computed only for an error.
    """

    def __init__(self, watcher, kernel, values, builder):
        self._watcher = watcher
        self._kernel = kernel
        self._values = values
        self._builder = builder
        self._known = {}
        self._writers = {}

    # Reports from the builder

    def on_load(self, access):
        if not access.touched.size:
            return

        access = self._inside(access, "loads")
        self._check_initialized(access)
        found = self._stored_by_others(access)

        if found is not None:
            self._raise_where(
                found >= 0,
                "race",
                "loads",
                access,
                lambda lane: f", which program {self._index(found[lane])} stores in the same launch",
            )

    def on_store(self, access, values):
        if not access.touched.size:
            return

        access = self._inside(access, "stores to")
        self._check_writable(access)
        found = self._stored_by_others(access)

        if found is not None:
            self._raise_where(
                (found >= 0) & (_bits(access.read()) != _bits(values)),
                "race",
                "stores to",
                access,
                lambda lane: f" another value than program {self._index(found[lane])} stores there",
            )

    def after_store(self, access, values):
        if not access.touched.size:
            return

        access = self._owned(access)
        size = access.dtype.itemsize
        places = self._in_storage(access)
        # Rising places are all different; this is the usual case.
        is_rising = bool((places[1:] > places[:-1]).all())

        if not is_rising:
            self._raise_where(
                _bits(access.read()) != _bits(values),
                "race",
                "stores to",
                access,
                lambda lane: " another value than another program, or another lane of the same one, does",
            )

        writers = self._writers_of(access)

        if writers is None:
            count = access.argument.tensor.untyped_storage().nbytes() // size
            writers = self._writers[self._about(access.argument).storage, size] = _Writers(count)

        writers.store(places, functools.partial(_programs, access, self._builder.flat_indices), self._builder.log)
        fresh = self._about(access.argument).fresh

        if fresh is not None:
            first, last = int(places[0]), int(places[-1])
            # A slice is quicker than an array of indices.
            is_whole = is_rising and last - first + 1 == len(places)
            fresh.mark(slice(first, last + 1) if is_whole else places, size, self._builder.log)
            fresh.kernels[self._kernel] = kernel_line(frame=sys._getframe())

    def on_atomic(self, access):
        if access.touched.size:
            access = self._inside(access, "changes")
            self._check_writable(access)
            self._check_initialized(access)

    # Known facts

    def _about(self, argument):
        known = self._known.get(argument)

        if known is None:
            known = self._known[argument] = _Known(argument, self._watcher)

        return known

    def _writers_of(self, access):
        if not self._writers:
            return None

        return self._writers.get((self._about(access.argument).storage, access.dtype.itemsize))

    def _stored_by_others(self, access):
        """Return the last other program to store to each lane's element, -1 for none; ``None`` if all are -1."""
        writers = self._writers_of(access)

        if writers is None:
            return None

        found = writers.last(self._in_storage(access))
        others = (found >= 0) & (found != _programs(access, self._builder.flat_indices))

        return np.where(others, found, -1) if others.any() else None

    def _in_storage(self, access):
        """Return the places of an access's lanes in their storage, in units of the element size."""
        known, size = self._about(access.argument), access.dtype.itemsize

        if access.places is None:
            return ((access.touched - np.uint64(known.storage)) // np.uint64(size)).view(np.int64)

        return access.places + known.offset // size if known.offset else access.places

    # Checks

    def _owned(self, access):
        """Return the access with its argument: without a known origin, the argument that contains the first address."""
        if access.argument is not None:
            return access

        first = int(access.touched[0])

        for argument in pointers(self._values):
            start, length = argument.extent

            if start <= first < start + length:
                return Access(argument, access.addresses, access.enabled, access.dtype)

        raise self._fault("outside", f"an access to {first:#x}, which is in no argument", access, None, 0)

    def _inside(self, access, verb):
        access = self._owned(access)
        argument = access.argument
        members = self._about(argument).members

        # If there are places, the lanes are inside of the extent.
        if access.places is None or members is not None:
            start, length = argument.extent
            distance = access.touched - np.uint64(start)  # A distance below the start wraps to a huge one.
            beyond = np.full(distance.shape, True)

            if length >= access.dtype.itemsize:
                beyond = distance > np.uint64(length - access.dtype.itemsize)

                if members is not None:
                    size = np.uint64(argument.tensor.element_size())
                    beyond |= ~members[np.where(beyond, 0, distance // size).astype(np.int64)]

            self._raise_where(beyond, "outside", verb, access)

        return access

    def _check_writable(self, access):
        number = self._about(access.argument).read_only

        if number is not None:
            everywhere = np.full(access.touched.shape, True)
            self._raise_where(everywhere, "input", "stores to", access, lambda lane: f", which is input {number}")

    def _check_initialized(self, access):
        fresh = self._about(access.argument).fresh

        if fresh is not None:
            self._raise_where(
                ~fresh.is_written(self._in_storage(access), access.dtype.itemsize),
                "uninitialized",
                "loads",
                access,
                lambda lane: ", which nothing has written",
            )

    # Messages

    def _index(self, program):
        return tuple(int(place) for place in np.unravel_index(int(program), self._builder.grid))

    def _raise_where(self, bad, kind, verb, access, tail=lambda lane: ""):
        if bad.any():
            lane = int(bad.argmax())
            index, text = access.argument.describe(int(access.touched[lane]))
            raise self._fault(kind, f"{verb} {text}{tail(lane)}", access, index, lane)

    def _fault(self, kind, message, access, index, lane):
        program, *lane = access.lane(lane)
        program = self._builder.flat_indices[min(int(program), self._builder.programs - 1)]

        return MemoryFault(
            kind,
            message,
            kernel=self._kernel,
            line=kernel_line(frame=sys._getframe()),
            argument=access.argument.name if access.argument is not None else None,
            index=index,
            program=self._index(program),
            lane=tuple(int(place) for place in lane),
        )


class _Known:
    """The facts about an argument that hold for the whole launch."""

    __slots__ = ("fresh", "members", "offset", "read_only", "storage")

    def __init__(self, argument, watcher):
        # The address of the storage, which views share, and the offset of the argument in it, in bytes.
        self.storage = argument.tensor.untyped_storage().data_ptr()
        self.offset = argument.extent[0] - self.storage
        self.members = argument.members()
        self.fresh = watcher.fresh(self.storage)
        self.read_only = watcher.read_only_overlap(argument)


class _Writers:
    """The program that last stored to each element of a storage in this launch.

    Most kernels store once to each tensor, so the first store is kept as it is, without a table.
    """

    def __init__(self, count):
        self._count = count
        self._first = None
        self._table = None

    def last(self, places):
        """Return the flat index of the last program to store to each of ``places``, -1 where none has."""
        return self._all()[places]

    def store(self, places, programs, log):
        """Record a store; ``programs()`` returns the programs of its lanes, and ``log`` receives the undo of the
        record."""
        if self._first is None:
            self._first = places, programs
            undo = (self._forget,)
        else:
            table = self._all()
            undo = (table.__setitem__, places, table[places])
            table[places] = programs()

        if log is not None:
            log.append(undo)

    def _all(self):
        if self._table is not None:
            return self._table

        table = np.full(self._count, -1, np.int32)

        if self._first is not None:
            places, programs = self._first
            table[places] = programs()
            self._table = table

        return table

    def _forget(self):
        self._first = self._table = None


def _programs(access, running):
    """Return the flat index of each lane's program; ``running`` lists the programs that run together."""
    programs = running[: len(access.addresses)].astype(np.int32)

    return access.chosen(programs.reshape(-1, *(1,) * (access.addresses.ndim - 1)))


def _bits(array):
    """Return the bits of each element, so that NaN equals itself and -0. differs from 0."""
    return array.view(f"u{array.dtype.itemsize}")
