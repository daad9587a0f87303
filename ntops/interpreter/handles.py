"""Handles: a Triton value as a NumPy array whose first axis counts programs.

A block of shape ``s`` is an array of shape ``(p, *d)``, where ``p`` is the number of programs that run together, or 1
if the value is the same for all of them, and each ``d`` is the size of ``s`` there, or 1 if the value is the same along
that dim. So ``arange`` and anything computed from constants alone is computed once, not once per program. A scalar has
the shape ``(p,)``.
"""

import numpy as np

from ntops.interpreter import formats


class Handle:
    """A value under the interpreter; its dtype is Triton's, and pointers are uint64 addresses.

    ``origin`` is the kernel argument from which a pointer was made, or ``None`` if it is not known.
    """

    __slots__ = ("data", "dtype", "origin", "shape")

    def __init__(self, data, dtype, shape=(), origin=None):
        self.data = data
        self.dtype = dtype
        self.shape = shape
        self.origin = origin

    @property
    def programs(self):
        return self.data.shape[0]

    def full(self, programs=None):
        """Return the array with every dim at its full size, and programs too if they are given."""
        return np.broadcast_to(self.data, (programs or self.data.shape[0], *self.shape))

    def set_attr(self, name, value):
        """Ignore hints about divisibility and the like."""


def values(handle):
    """Return the array of ``handle`` as numbers to compute with (fp8 decoded)."""
    if is_fp8(handle.dtype):
        return formats.float32_from_fp8(handle.data, handle.dtype.name)

    return handle.data


def encoded(data, dtype):
    """Return ``data``, computed in float32 or wider, as the array of a Handle of ``dtype``, rounded as its format
    needs."""
    name = dtype.name

    if name == "bf16":
        return formats.round_to_bfloat16(data)

    if name.startswith("fp8"):
        return formats.fp8_from_float(data, name)

    return data


def is_fp8(dtype):
    return dtype.name.startswith("fp8")


_NUMPY = {
    "int1": np.dtype(bool),
    "bf16": np.dtype(np.float32),
    "fp16": np.dtype(np.float16),
    "fp32": np.dtype(np.float32),
    "fp64": np.dtype(np.float64),
    **{f"{kind}{bits}": np.dtype(f"{kind}{bits}") for kind in ("int", "uint") for bits in (8, 16, 32, 64)},
}


def numpy_dtype(dtype):
    """Return the NumPy dtype of the arrays that hold Triton's scalar ``dtype``."""
    if dtype.is_ptr():
        return np.dtype(np.uint64)

    return _NUMPY.get(dtype.name) or np.dtype(np.uint8)


def constant(value, dtype):
    """Return a Handle of one Python number, the same for all programs."""
    if is_fp8(dtype) or dtype.name == "bf16":
        return Handle(encoded(np.array([value], dtype=np.float32), dtype), dtype)

    target = numpy_dtype(dtype)

    if target.kind in "iu" and isinstance(value, int):
        # This wraps, where NumPy would refuse numbers out of range.
        return Handle(
            np.array([value & (2 ** (8 * target.itemsize) - 1)], dtype=f"u{target.itemsize}").view(target), dtype
        )

    with np.errstate(over="ignore"):
        return Handle(np.array([value]).astype(target), dtype)
