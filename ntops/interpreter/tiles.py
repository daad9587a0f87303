"""Block pointers and tensor descriptors: tiles of strided tensors."""

import copy

import numpy as np

from ntops.interpreter._triton import tl
from ntops.interpreter.handles import Handle


class Tile:
    """A tile of a tensor: the tensor's first element (``base``), sizes and strides, and the tile's place and shape."""

    def __init__(self, base, shape, strides, block_shape, offsets=(), padding=None):
        self.base = base
        self.shape = shape
        self.strides = strides
        self.block_shape = block_shape
        self.offsets = offsets
        self.padding = padding

    def at(self, offsets):
        """Return the same tile at another place."""
        tile = copy.copy(self)
        tile.offsets = tuple(offsets)

        return tile

    def check_descriptor(self):
        """Refuse a descriptor that the hardware's tensor memory accelerator cannot address."""
        size = self.base.dtype.element_ty.primitive_bitwidth // 8

        if (self.base.data % np.uint64(16) != 0).any():
            raise ValueError("a tensor descriptor's base must be aligned to 16 bytes")

        if any((stride.data * size % 16 != 0).any() for stride in self.strides[:-1]):
            raise ValueError("a tensor descriptor's strides must be multiples of 16 bytes")

        if (self.strides[-1].data != 1).any():
            raise ValueError("the last dim of a tensor descriptor must be contiguous")

    def pointers(self, checked, rows=None):
        """Return pointers to all elements, and whether each lies inside the tensor along the ``checked`` dims.

        With ``rows``, a block of row numbers, the tile consists of those rows instead of consecutive ones.
        """
        shape = self.block_shape if rows is None else (rows.shape[0], self.block_shape[1])
        size = np.int64(self.base.dtype.element_ty.primitive_bitwidth // 8)
        addresses = _spread(self.base, len(shape))
        inside = np.ones((1,) * (len(shape) + 1), bool)

        for dim, length in enumerate(shape):
            if dim == 0 and rows is not None:
                place = rows.data.astype(np.int64).reshape(rows.programs, -1, 1)
            else:
                steps = np.arange(length).reshape(1, *(1,) * dim, length, *(1,) * (len(shape) - dim - 1))
                place = _spread(self.offsets[dim], len(shape)).astype(np.int64) + steps

            step = place * _spread(self.strides[dim], len(shape)).astype(np.int64) * size
            addresses = addresses + step.view(np.uint64)

            if dim in checked:
                inside = inside & (place >= 0) & (place < _spread(self.shape[dim], len(shape)))

        return Handle(addresses, self.base.dtype, shape, self.base.origin), Handle(inside, tl.int1, shape)


def _spread(handle, dims):
    """Reshape a scalar of each program so that it combines with blocks of so many dims."""
    return handle.data.reshape(handle.programs, *(1,) * dims)
