"""One access to memory: its lanes, and their places in an argument."""

import functools

import numpy as np

from ntops.interpreter._triton import native


class Access:
    """The lanes of a load, a store or an atomic of the programs that run together.

    Nearly every lane lies in the argument that its pointer was made from. Then that memory is a NumPy array, which is
    read and written many times faster than through Triton's native functions, and ``places`` are indices into it. Any
    other access uses addresses. The bounds are checked once, also for a watch.
    """

    __slots__ = ("addresses", "argument", "dtype", "enabled", "places", "touched")

    def __init__(self, argument, addresses, enabled, dtype):
        """
        :param argument: The argument that the addresses were computed from, or ``None``.
        :param addresses: An address for each lane of each program, programs first.
        :param enabled: Whether each lane takes part, in the same shape; ``None`` if all do.
        :param dtype: The NumPy dtype of an element.
        """
        self.argument = argument
        self.addresses = addresses
        self.enabled = enabled
        self.dtype = dtype
        # All that follows is about the lanes that take part, one after the other.
        self.touched = self.chosen(addresses)
        self.places = None if argument is None else _places(argument, self.touched, dtype.itemsize)

    def chosen(self, array):
        """Return the elements of ``array``, which may have dims of size 1, that belong to the lanes."""
        if array.shape != self.addresses.shape:
            array = np.broadcast_to(array, self.addresses.shape)

        return array.reshape(-1) if self.enabled is None else array[self.enabled]

    def spread(self, values):
        """Return the values of the lanes as a block again, 0 where no lane takes part."""
        if self.enabled is None:
            return values.reshape(self.addresses.shape)

        block = np.zeros(self.addresses.shape, values.dtype)
        block[self.enabled] = values

        return block

    def lane(self, number):
        """Return the index of a lane, in the shape of ``addresses``."""
        if self.enabled is None:
            return np.unravel_index(number, self.addresses.shape)

        return tuple(np.argwhere(self.enabled)[number])

    def read(self):
        """Return the memory contents for the lanes."""
        if self.places is not None:
            return self.argument.memory(self.dtype)[self.places]

        block = np.zeros(self.addresses.shape, self.dtype)

        return self.chosen(native.load(*self.native_lanes(), block, self.dtype))

    def write(self, values):
        """Write the values of the lanes to memory; if several share an address, the last one stays."""
        if self.places is not None:
            self.argument.memory(self.dtype)[self.places] = values
        else:
            addresses, enabled = self.native_lanes()
            native.store(addresses, dense(self.spread(values)), enabled)

    def native_lanes(self):
        """Return all addresses, and whether each takes part, as Triton's native functions take them."""
        enabled = np.ones(self.addresses.shape, bool) if self.enabled is None else self.enabled

        return dense(self.addresses), dense(enabled)


def _places(argument, addresses, size):
    """Return indices into an argument's memory as elements of ``size`` bytes, or ``None`` if not all lie in it."""
    start, length = argument.extent
    distance = addresses - np.uint64(start)  # A distance below the start wraps to a huge one.

    if not distance.size:
        return distance.view(np.int64)

    if int(distance.max()) > length - size:
        return None

    if size > 1:
        if int(np.bitwise_or.reduce(distance)) % size:
            return None

        distance >>= _shift(size)

    return distance.view(np.int64)


@functools.cache
def _shift(size):
    """Return the number of bits by which to shift an address to count elements of ``size`` bytes, a power of two."""
    return np.uint64(size.bit_length() - 1)


def dense(array):
    """Return ``array`` in memory order and writable: Triton's native loads and stores refuse a read-only view."""
    flags = array.flags

    return array if flags.c_contiguous and flags.writeable else array.copy(order="C")
