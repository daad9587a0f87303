"""Order dims: compute the strides that torch gives a result, and merge dims that a kernel can walk as one.

Shapes and strides are in elements. Dims are ordered as by torch's TensorIterator (aten/src/ATen/TensorIterator.cpp,
``reorder_dimensions``): by descending stride of the first operand that distinguishes two dims. So the result of
transposed inputs is transposed, too.
"""

import dataclasses
import functools
import math

import torch

from ntops.launch import boundary
from ntops.launch.kernel_sources import Specialization

# Offsets up to this limit fit 32 bits, with room for a tile that passes the end.
_NARROW = 2**31 - 2**21
# From this many tiles on, a kernel that computes whole tiles apart pays.
_MANY = 16


def broadcast_shapes(*shapes):
    """Return the shape to which all shapes broadcast.

    :raises RuntimeError: They do not broadcast.
    """
    if boundary.is_abstract():
        # Sizes may be symbolic.
        return torch.broadcast_shapes(*shapes)

    # torch.broadcast_shapes first imports other modules of torch, for half a second.
    return functools.reduce(torch._C._infer_size, shapes)


def broadcast_strides(tensor, shape):
    """Return the strides of a tensor expanded to ``shape``: 0 along the dims that it lacks."""
    missing = len(shape) - tensor.ndim
    return (0,) * missing + tuple(
        0 if size == 1 and size != whole else stride
        for size, stride, whole in zip(tensor.shape, tensor.stride(), shape[missing:], strict=True)
    )


def ordered_dims(shape, strides):
    """Return the dims from the innermost to the outermost, in TensorIterator's order.

    :param shape: The common shape.
    :param strides: The strides of each operand, the output first if there is one.
    """
    order = list(reversed(range(len(shape))))

    for first in range(1, len(order)):
        later = first

        for earlier in reversed(range(first)):
            comparison = _compare(order[earlier], order[later], shape, strides)

            if comparison > 0:
                order[earlier], order[later] = order[later], order[earlier]
                later = earlier
            elif comparison < 0:
                break

    return order


def _compare(dim, other, shape, strides):
    """Return a positive number if ``dim`` belongs further out than ``other``, a negative one if further in, 0 if no
    operand decides."""
    for operand in strides:
        if operand[dim] == 0 or operand[other] == 0:
            continue

        if operand[dim] != operand[other]:
            return 1 if operand[dim] > operand[other] else -1

        if shape[dim] > shape[other]:
            return 1

    return 0


def result_strides(shape, tensors, has_numbers):
    """Return the strides that torch gives the result of an elementwise function.

    :param shape: The shape of the result.
    :param tensors: The tensor operands.
    :param has_numbers: Whether Python numbers are among the operands, too.
    """
    if not has_numbers and all(tensor.ndim == len(shape) and tensor.shape == shape for tensor in tensors):
        if all(tensor.is_contiguous() for tensor in tensors):
            return contiguous_strides(shape)

        if len(shape) == 4 and all(tensor.is_contiguous(memory_format=torch.channels_last) for tensor in tensors):
            _, channels, height, width = shape
            return (height * width * channels, 1, width * channels, channels)

        strides = tensors[0].stride()

        if is_dense(shape, strides) and all(tensor.stride() == strides for tensor in tensors):
            return strides

    order = ordered_dims(shape, [broadcast_strides(tensor, shape) for tensor in tensors])

    if order == list(reversed(range(len(shape)))):
        return contiguous_strides(shape)

    strides = [0] * len(shape)
    step = 1

    for dim in order:
        strides[dim] = step
        step *= shape[dim]

    return tuple(strides)


def contiguous_strides(shape):
    """Return the strides of a contiguous tensor, as torch defines them (an empty dim counts as one element)."""
    strides = []
    step = 1

    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)

    return tuple(reversed(strides))


def channels_last(tensor):
    """Return the channels-last memory format that a tensor's strides have by torch's rule, or ``None``.

    The rule is ``is_channels_last_strides_2d`` in c10/core/MemoryFormat.h: strides do not fall from the channels
    outwards, and strides that fit both orders count as contiguous.
    """
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    shape, strides = tensor.shape, tensor.stride()

    if tensor.ndim not in formats or strides[1] == 0:
        return None

    least = 0

    for dim in (1, *range(tensor.ndim - 1, 1, -1), 0):
        if shape[dim] == 0 or strides[dim] < least or (dim == 0 and least == strides[1]):
            return None

        least = strides[dim] * max(shape[dim], 1)

    return formats[tensor.ndim]


def is_dense(shape, strides):
    """Tell whether the elements fill their memory without gaps or overlaps, in any order of dims."""
    step = 1

    for stride, size in sorted((stride, size) for size, stride in zip(shape, strides, strict=True) if size > 1):
        if stride != step:
            return False

        step *= size

    return True


def collapse(shape, strides, in_order=False):
    """Merge the dims that every operand can walk as one, and drop dims of one element.

    :param shape: The common shape, without empty dims.
    :param strides: The strides of each operand, the output first.
    :param in_order: Whether dims stay in their order, and are not ordered by strides.
    :return: The collapsed shape and strides, outermost dim first; at least one dim.
    """
    sizes = []
    steps = [[] for _ in strides]

    for dim in reversed(range(len(shape))) if in_order else ordered_dims(shape, strides):
        if shape[dim] == 1:
            continue

        if sizes and all(operand[dim] == sizes[-1] * own[-1] for operand, own in zip(strides, steps, strict=True)):
            sizes[-1] *= shape[dim]
            continue

        sizes.append(shape[dim])

        for operand, own in zip(strides, steps, strict=True):
            own.append(operand[dim])

    if not sizes:
        return (1,), [(1,) for _ in strides]

    return tuple(reversed(sizes)), [tuple(reversed(own)) for own in steps]


def specialize(views, apart=False):
    """Return what is compiled into the kernel for these operands: unit strides, alignment, and the width of offsets.

    :param views: The tensors as the kernel sees them, by the kernel's names.
    :param apart: Whether dims of one number are others in each tensor: the right factor of a product, with K innermost,
        is walked along dim 0, where the left one has its rows, of any number.
    """
    unit_strides = tuple((name, dim) for name, view in views.items() for dim in _unit_stride(view))
    # Along these dims neighbours are loaded together, as many as divide everything that enters an address.
    walked = {dim for _, dim in unit_strides}
    is_aligned = walked and _are_aligned(views)
    numbers = [
        view.shape[dim] for name, view in views.items() for dim in walked if not apart or (name, dim) in unit_strides
    ]
    numbers += [
        stride
        for name, view in views.items()
        for dim, (size, stride) in enumerate(zip(view.shape, view.stride(), strict=True))
        # Rows that overlap by all but one element have a stride of 1, too, which is no multiple of anything.
        if stride != 1 or (size > 1 and (name, dim) not in unit_strides)
    ]
    itemsize = min(view.itemsize for view in views.values())
    unit = common_unit(numbers, itemsize) if is_aligned else 1

    wide = any(_is_wide(view) for view in views.values())
    return Specialization(unit_strides, unit, tuple(views), wide, apart=apart)


def with_whole_tiles(specialization, views, tile):
    """Return the specialization by which whole tiles are computed apart from the last one, if neighbours are loaded
    together by this alone: along one dim, whose size is no multiple of anything. Else return the one that is given.

    :param views: The tensors as the kernel sees them, by the kernel's names.
    :param tile: The elements of a tile, or the sizes of a tile of several dims.
    """
    adjacent = len(specialization.unit_strides) == len(views)

    if (
        specialization.unit > 1
        or not all(view.ndim == 1 and view.numel() >= _MANY * tile for view in views.values())
        or not (adjacent and _are_aligned(views))
    ):
        return specialization

    return dataclasses.replace(specialization, unit=16, whole=tile)


def common_unit(numbers, itemsize):
    """Return the number of elements that are loaded together at multiples of ``numbers``: 16 where these are multiples
    of that, else the elements of 16 bytes, of half types also those of 8, else 1. Each is a kernel of its own."""
    shared = math.gcd(*numbers)
    units = (16, 16 // itemsize, *((4,) if itemsize == 2 else ()))
    return next((unit for unit in units if unit and shared % unit == 0), 1)


def _unit_stride(view):
    """Return the dim along which neighbours are adjacent in memory, or ``None`` (a dim of one element may be taken for
    it)."""
    unit = [dim for dim, stride in enumerate(view.stride()) if stride == 1]
    return [dim for dim in unit if view.shape[dim] > 1][-1:] or unit[-1:]


def _are_aligned(views):
    return all(view.data_ptr() % 16 == 0 for view in views.values())


def _is_wide(view):
    extent = sum((size - 1) * stride for size, stride in zip(view.shape, view.stride(), strict=True))
    return max(extent, view.numel()) >= _NARROW
