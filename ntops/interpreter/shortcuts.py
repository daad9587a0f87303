"""Shortcuts for the most common operators, whose result type needs none of Triton's rules.

A small kernel spends nearly all its time in Python deciding types. If both operands have the same dtype, or one is a
Python number that fits the other's dtype, the result has that dtype and the broadcast shape. All other calls go to
Triton's rules.
"""

import math

import numpy as np

from ntops.interpreter._triton import builder, tl
from ntops.interpreter.handles import Handle, constant

_SIGNED = {"int32": 2**31, "int64": 2**63}
_FLOATS = ("fp32", "fp64")


def block_of(dtype, shape):
    """Return Triton's type of a block, cached on its dtype, since making one costs as much as an addition."""
    if not shape:
        return dtype

    blocks = dtype.__dict__.setdefault("_ntops_blocks", {})
    block = blocks.get(shape)

    if block is None:
        block = blocks[shape] = tl.block_type(dtype, list(shape))

    return block


_constants = {}
# Triton's own operators, for calls that the shortcuts do not take.
slow_operators = {}


def _number(value, dtype):
    """Return a Python number as a Handle of ``dtype``, or ``None`` if a shortcut cannot do it."""
    name = dtype.name

    if value.__class__ is int:
        limit = _SIGNED.get(name)

        if (limit is None and name not in _FLOATS) or (limit is not None and not -limit <= value < limit):
            return None

        key = (value, name)
        handle = _constants.get(key)

        if handle is None:
            handle = _constants[key] = constant(value, dtype)

            if len(_constants) > 10000:
                _constants.clear()

        return handle

    # The treatment of -0. depends on the version of Triton.
    if value.__class__ is float and name in _FLOATS and (value or math.copysign(1, value) > 0):
        return constant(value, dtype)

    return None


def _compared_number(value, dtype):
    """Do the same for comparisons, for which Triton makes a float a float32, or a float64 if it is out of range."""
    if value.__class__ is float and not (dtype.name == "fp32" and (value == 0 or 1e-37 < abs(value) < 1e38)):
        return None

    return _number(value, dtype)


def _joined(a, b):
    """Return the arrays of two operands and their common shape, or ``None`` if NumPy's broadcasting is not enough."""
    if a.shape == b.shape:
        return a.data, b.data, a.shape

    if not b.shape:
        data = b.data

        return a.data, data if len(data) == 1 else data.reshape(-1, *(1,) * len(a.shape)), a.shape

    if not a.shape:
        data = a.data

        return data if len(data) == 1 else data.reshape(-1, *(1,) * len(b.shape)), b.data, b.shape

    if len(a.shape) != len(b.shape):
        return None

    shape = tuple(map(max, a.shape, b.shape))

    if any(size != wide and size != 1 for part in (a.shape, b.shape) for size, wide in zip(part, shape, strict=True)):
        return None

    return a.data, b.data, shape


def _method(slow, compute, dtypes, reflected=False, result=None, keeps=None, number=_number):
    """Return an operator method of tensors.

    :param slow: Triton's own method, for all other calls.
    :param compute: Computes the result's array from two Handles (in order).
    :param dtypes: The names of dtypes for which the shortcut is right.
    :param result: The dtype of the result, by default that of the operands.
    :param keeps: A Python constant that leaves the tensor what it is.
    :param number: Makes a Handle of a Python number.
    """
    tensor = tl.tensor

    def method(self, other):
        dtype = self.dtype

        if dtype.name in dtypes:
            handle = self.handle

            if other.__class__ is tensor:
                second = other.handle if other.dtype.name == dtype.name else None
            elif other is keeps and dtype.name == "int1":
                return self
            else:
                second = number(other, dtype)

            joined = _joined(handle, second) if second is not None else None

            if joined is not None:
                a, b, shape = joined
                target = result or dtype

                return tensor(
                    Handle(compute(b, a) if reflected else compute(a, b), target, shape), block_of(target, shape)
                )

        return slow(self, other)

    return method


def _addition(slow, reflected):
    """Return addition, which also adds an offset to pointers."""
    tensor = tl.tensor
    plain = _method(slow, np.add, (*_SIGNED, *_FLOATS), reflected)

    def method(self, other):
        is_offset = self.dtype.is_ptr() and other.__class__ is tensor and other.dtype.name in _SIGNED

        # Triton refuses shapes that do not broadcast.
        if is_offset and _joined(self.handle, other.handle) is not None:
            moved = builder().create_addptr(self.handle, other.handle)

            return tensor(moved, block_of(self.dtype, moved.shape))

        return plain(self, other)

    return method


def _broadcasting(slow):
    """Return the broadcasting of two tensors."""

    def broadcast(lhs, rhs):
        joined = _joined(lhs.handle, rhs.handle)

        if joined is None:
            return slow(lhs, rhs)

        shape = joined[2]

        return _of_shape(lhs, shape), _of_shape(rhs, shape)

    return broadcast


def _of_shape(tensor, shape):
    handle = tensor.handle

    if handle.shape == shape:
        return tensor

    data = handle.data if handle.shape else handle.data.reshape(-1, *(1,) * len(shape))

    return tl.tensor(Handle(data, handle.dtype, shape, handle.origin), block_of(tensor.dtype, shape))


def install(divide, remainder, semantic):
    """Put the shortcuts in front of the operators of ``tl.tensor`` and of broadcasting in Triton's ``semantic``.

    Integer division is passed in.
    """
    semantic.broadcast_impl_value = _broadcasting(semantic.broadcast_impl_value)
    integers = tuple(_SIGNED)
    numbers = (*integers, *_FLOATS)
    bits = (*integers, "int1")
    tensor = tl.tensor
    slow_operators.update({name: value for name, value in vars(tensor).items() if name.startswith("__")})
    operators = {
        "__sub__": (np.subtract, numbers),
        "__mul__": (np.multiply, numbers),
        "__floordiv__": (divide, integers),
        "__mod__": (remainder, integers),
        "__and__": (np.bitwise_and, bits),
        "__or__": (np.bitwise_or, bits),
    }

    for name, (compute, dtypes) in operators.items():
        keeps = {"__and__": True, "__or__": False}.get(name)
        other = name.replace("__", "__r", 1)
        setattr(tensor, name, _method(getattr(tensor, name), compute, dtypes, keeps=keeps))
        setattr(tensor, other, _method(getattr(tensor, other), compute, dtypes, reflected=True, keeps=keeps))

    comparisons = {
        "__lt__": np.less,
        "__le__": np.less_equal,
        "__gt__": np.greater,
        "__ge__": np.greater_equal,
        "__eq__": np.equal,
        "__ne__": np.not_equal,
    }

    for name, compute in comparisons.items():
        method = _method(getattr(tensor, name), compute, numbers, result=tl.int1, number=_compared_number)
        setattr(tensor, name, method)

    tensor.__add__ = _addition(tensor.__add__, reflected=False)
    tensor.__radd__ = _addition(tensor.__radd__, reflected=True)
