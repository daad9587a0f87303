"""The accesses of one launch, as they are watched."""

import functools
import sys

import numpy as np

from ntops.interpreter.arguments import pointers
from ntops.interpreter.faults import MemoryFault, kernel_line
from ntops.interpreter.lanes import Access


class LaunchWatch:
    """One launch as it is watched: who stored what so far.

    Lanes are numbered among those that take part in an access; all that is known of one is worked out when it is at
    fault.
    """

    def __init__(self, watcher, kernel, values, builder):
        self._watcher = watcher
        self._kernel = kernel
        self._values = values
        self._builder = builder
        self._known = {}
        self._writers = {}

    # What the builder tells

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
        # Places that rise from lane to lane are all different, which is the usual case.
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
            # A slice is quicker than as many indices.
            is_whole = is_rising and last - first + 1 == len(places)
            fresh.mark(slice(first, last + 1) if is_whole else places, size, self._builder.log)
            fresh.kernels[self._kernel] = kernel_line(frame=sys._getframe())

    def on_atomic(self, access):
        if access.touched.size:
            access = self._inside(access, "changes")
            self._check_writable(access)
            self._check_initialized(access)

    # What is known

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
        """The last program to store where each lane is, -1 if it is the lane's own or none; ``None`` if all are -1."""
        writers = self._writers_of(access)

        if writers is None:
            return None

        found = writers.last(self._in_storage(access))
        others = (found >= 0) & (found != _programs(access, self._builder.flat_indices))

        return np.where(others, found, -1) if others.any() else None

    def _in_storage(self, access):
        """Where the lanes of an access are in their storage, in units of its size."""
        known, size = self._about(access.argument), access.dtype.itemsize

        if access.places is None:
            return ((access.touched - np.uint64(known.storage)) // np.uint64(size)).view(np.int64)

        return access.places + known.offset // size if known.offset else access.places

    # What is checked

    def _owned(self, access):
        """The access, about an argument: if it is not known from where a pointer is, the one with the first address."""
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

        # Where there are places, the lanes are inside of the extent.
        if access.places is None or members is not None:
            start, length = argument.extent
            distance = access.touched - np.uint64(start)  # What is below the start becomes huge.
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
    """What is known of an argument for the whole launch."""

    __slots__ = ("fresh", "members", "offset", "read_only", "storage")

    def __init__(self, argument, watcher):
        # The address of the storage, which views share, and how many bytes from there the argument begins.
        self.storage = argument.tensor.untyped_storage().data_ptr()
        self.offset = argument.extent[0] - self.storage
        self.members = argument.members()
        self.fresh = watcher.fresh(self.storage)
        self.read_only = watcher.read_only_overlap(argument)


class _Writers:
    """Which program last stored to each element of a storage in this launch.

    Most kernels store once to each tensor, so of the first store is only noted what it was.
    """

    def __init__(self, count):
        self._count = count
        self._first = None
        self._table = None

    def last(self, places):
        """The flat index of the last program to store to each of ``places``, -1 where none has."""
        return self._all()[places]

    def store(self, places, programs, log):
        """Take note of a store; ``programs()`` are those of its lanes, ``log`` takes what undoes the note."""
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
    """The flat index of the program of each lane, of those that ``running`` says run together."""
    programs = running[: len(access.addresses)].astype(np.int32)

    return access.chosen(programs.reshape(-1, *(1,) * (access.addresses.ndim - 1)))


def _bits(array):
    """The bits of each element, so that NaN is the same as itself and -0. is not 0."""
    return array.view(f"u{array.dtype.itemsize}")
