"""Create, reshape, join and multiply blocks, for the whole grid at once."""

import numpy as np

from ntops.interpreter._triton import tl
from ntops.interpreter.dot import dot
from ntops.interpreter.handles import Handle, encoded, values


def _common_programs(*handles):
    return max(handle.programs for handle in handles)


class Blocks:
    """The part of the builder that changes the shape of blocks. A dim whose values are all equal stays of size 1."""

    def create_make_range(self, type, start, stop):
        return Handle(np.arange(start, stop, dtype=np.int32)[None], tl.int32, (stop - start,))

    def create_splat(self, type, arg):
        shape = tuple(type.shape)

        return Handle(arg.data.reshape(arg.data.shape[0], *(1,) * len(shape)), arg.dtype, shape, arg.origin)

    def create_unsplat(self, arg):
        return Handle(arg.data.reshape(arg.data.shape[0], -1)[:, 0], arg.dtype, (), arg.origin)

    def create_expand_dims(self, arg, axis):
        axis = axis % (len(arg.shape) + 1)
        shape = (*arg.shape[:axis], 1, *arg.shape[axis:])

        return Handle(np.expand_dims(arg.data, axis + 1), arg.dtype, shape, arg.origin)

    def create_broadcast(self, arg, shape):
        return Handle(arg.data, arg.dtype, tuple(shape), arg.origin)

    def create_reshape(self, arg, shape, allow_reorder=False):
        shape = tuple(shape)
        data = arg.data

        if data.size == data.shape[0]:
            data = data.reshape(data.shape[0], *(1,) * len(shape))
        else:
            data = arg.full().reshape(data.shape[0], *shape)

        return Handle(data, arg.dtype, shape, arg.origin)

    def create_trans(self, arg, order):
        order = [getattr(dim, "value", dim) for dim in order]
        shape = tuple(arg.shape[dim] for dim in order)

        return Handle(np.transpose(arg.data, (0, *(dim + 1 for dim in order))), arg.dtype, shape, arg.origin)

    def create_cat(self, lhs, rhs):
        programs = _common_programs(lhs, rhs)
        data = np.concatenate([lhs.full(programs), rhs.full(programs)], axis=1)

        return Handle(data, lhs.dtype, data.shape[1:])

    def create_join(self, lhs, rhs):
        programs = _common_programs(lhs, rhs)
        data = np.stack([lhs.full(programs), rhs.full(programs)], axis=-1)

        return Handle(data, lhs.dtype, data.shape[1:])

    def create_split(self, value):
        data = value.full()

        return tuple(Handle(data[..., half], value.dtype, value.shape[:-1]) for half in (0, 1))

    def create_gather(self, src, indices, axis):
        programs = _common_programs(src, indices)
        index = indices.full(programs)
        size = src.shape[axis]

        if index.min() < 0 or index.max() >= size:
            raise IndexError(f"tl.gather: an index lies outside of the {size} elements along axis {axis}")

        data = np.take_along_axis(src.full(programs), index.astype(np.int64), axis=axis + 1)

        return Handle(data, src.dtype, indices.shape)

    def create_histogram(self, data, bins, mask):
        programs = data.programs if mask is None else _common_programs(data, mask)
        numbers = data.full(programs).reshape(programs, -1).astype(np.int64)
        counted = (numbers >= 0) & (numbers < bins)

        if mask is not None:
            counted &= mask.full(programs).reshape(programs, -1)

        slots = numbers + bins * np.arange(programs)[:, None]
        counts = np.bincount(slots[counted], minlength=programs * bins)

        return Handle(counts.reshape(programs, bins).astype(np.int32), tl.int32, (bins,))

    def create_dot(self, a, b, accumulator, input_precision, max_num_imprecise_acc):
        total = dot(_matrix(a), _matrix(b), accumulator.full(_common_programs(a, b, accumulator)))

        return Handle(encoded(total, accumulator.dtype), accumulator.dtype, accumulator.shape)

    # Talking to the host

    def create_assert(self, condition, message):
        failed = ~condition.data.astype(bool).reshape(condition.programs, -1).all(axis=1)

        if failed.any():
            self.require_sequential("an assertion failed")

            raise AssertionError(message)

    def create_assume(self, condition):
        self.create_assert(condition, "tl.assume of what does not hold")

    def create_barrier(self):
        """Do nothing: programs run to the end, so there is nothing to wait for."""

    def create_print(self, prefix, hex, values, is_signed):
        self.require_sequential("it prints")
        index = ", ".join(str(int(axis[0])) for axis in self.indices)

        for value in values:
            data = value.full()[0]
            # An integer in hexadecimal shows its bits; numbers without a sign there have as many.
            shown = np.vectorize(lambda x: f"0x{int(x):02x}")(data) if hex else data
            print(f"({index}) {prefix} {shown}")


def _matrix(handle):
    data = values(handle)

    if data.shape[1:] != handle.shape:
        data = np.ascontiguousarray(np.broadcast_to(data, (data.shape[0], *handle.shape)))

    return data
