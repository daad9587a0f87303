"""Map addresses to arguments and to their elements."""

import numpy as np
import torch


class Argument:
    """A tensor that was passed to a kernel, under the name of its parameter."""

    def __init__(self, name, tensor):
        self.name = name
        self.tensor = tensor
        # The first address, and the number of bytes from there to the end of the last element.
        self.extent = _extent(tensor)
        self._memory = {}

    def memory(self, dtype):
        """Return the extent as a NumPy array of ``dtype``, with the gaps between a view's elements."""
        array = self._memory.get(dtype)

        if array is None:
            array = self._memory[dtype] = np.asarray(_Memory(*self.extent, dtype))

        return array

    def members(self):
        """Return which elements between the first and the last belong to the tensor; ``None`` if all do."""
        tensor = self.tensor

        if tensor.is_contiguous() or _is_dense(tensor):
            return None

        length = self.extent[1] // tensor.element_size()
        table = torch.zeros(length, dtype=torch.bool)
        table.as_strided(tensor.shape, tensor.stride(), 0).fill_(True)

        return None if table.all() else table.numpy()

    def describe(self, address):
        """Return the index of the element at ``address``, or its distance from the first element, and its
        description."""
        tensor = self.tensor
        size = max(1, tensor.element_size())
        start, length = self.extent
        distance = (address - start) // size
        count = length // size
        name = f"argument {self.name!r}"

        if distance < 0:
            return distance, f"{name}, {_elements(-distance)} before its first"

        if distance >= count:
            extra = distance - count + 1
            of = f"of shape {tuple(tensor.shape)} and strides {tensor.stride()}"

            return distance, f"{name} {of}, {_elements(extra)} past its last"

        index = _index(tensor, distance)

        if index is None:
            return distance, f"{name}, between its elements (distance {distance}, strides {tensor.stride()})"

        return index, f"{name}[{', '.join(map(str, index))}]" if index else name


def _extent(tensor):
    count = tensor.numel()

    if tensor.device.type == "meta" or count == 0:
        return tensor.data_ptr(), 0

    if not tensor.is_contiguous():
        count = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))

    return tensor.data_ptr(), count * tensor.element_size()


class _Memory:
    """An address range as an object that NumPy accepts as an array."""

    def __init__(self, start, length, dtype):
        shape = (length // dtype.itemsize,)
        self.__array_interface__ = {"data": (start, False), "shape": shape, "typestr": dtype.str, "version": 3}


def _is_dense(tensor):
    """Tell whether the elements, apart from dims of stride 0, fill their extent."""
    expected = 1

    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if stride and size > 1:
            if stride != expected:
                return False

            expected *= size

    return True


def _elements(count):
    return "one element" if count == 1 else f"{count} elements"


def _index(tensor, distance):
    """Return the index of the element at this distance from the first one, or ``None``."""
    index = [0] * tensor.ndim
    rest = distance

    for dim in sorted(range(tensor.ndim), key=lambda dim: -tensor.stride(dim)):
        stride = tensor.stride(dim)

        if stride:
            index[dim] = min(rest // stride, tensor.shape[dim] - 1)
            rest -= index[dim] * stride

    return tuple(index) if rest == 0 else None
