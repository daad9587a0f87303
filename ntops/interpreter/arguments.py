"""Convert a launch's arguments to the values that kernel code sees."""

import contextlib

import numpy as np
import torch

from ntops.interpreter import _triton
from ntops.interpreter._triton import tl
from ntops.interpreter.extents import Argument
from ntops.interpreter.handles import Handle, constant


def converted(kinds, bound):
    """Return arguments by name, as tensors of the language; ``kinds`` are the annotated types."""
    return {
        name: value if kinds[name] == "constexpr" else _converted(name, kinds[name], value)
        for name, value in bound.items()
    }


def _converted(name, kind, value):
    if isinstance(value, (bool, int, float)):
        return _number(value, kind)

    if hasattr(value, "data_ptr"):
        return _pointer(name, kind, value)

    if isinstance(value, tuple):
        members = [_converted(f"{name}[{place}]", "", member) for place, member in enumerate(value)]

        return type(value)(*members) if hasattr(value, "_fields") else tl.tuple(members)

    if isinstance(value, _triton.TensorDescriptor):
        if getattr(value, "round_f32_to_tf32", False):
            raise NotImplementedError("ntops' interpreter does not support descriptors that round to TF32")

        strides = [_number(stride, "i64") for stride in value.strides[:-1]]

        return _triton.descriptor(
            _pointer(name, "", value.base),
            [_number(size, "i32") for size in value.shape],
            [*strides, tl.constexpr(value.strides[-1])],
            [tl.constexpr(size) for size in value.block_shape],
            value.padding,
        )

    return value


def _number(value, kind):
    """Return a scalar argument with its annotated type, else with the type that the compiler would choose."""
    dtype = _triton.type_named(kind) if kind and not kind.startswith("*") else _triton.type_of(value)

    if isinstance(value, float) and dtype.is_int():
        raise TypeError(f"a float was passed for a parameter of type {dtype}")

    return tl.tensor(constant(value, dtype), dtype)


def _pointer(name, kind, value):
    dtype = _triton.type_of(value)

    if kind.startswith("*k"):
        dtype = tl.pointer_type(dtype.element_ty, dtype.address_space, True)

    address = np.array([value.data_ptr()], dtype=np.uint64)
    tensor = value.base if isinstance(value, _triton.TensorWrapper) else value
    # Triton accepts anything with an address; only a tensor tells its extent.
    origin = Argument(name, tensor) if isinstance(tensor, torch.Tensor) else None

    return tl.tensor(Handle(address, dtype, (), origin), dtype)


def pointers(values):
    """Return the arguments that are behind ``values`` as kernel code sees them."""
    found = []

    for value in values:
        if isinstance(value, (tuple, tl.tuple)):
            found += pointers(value)
        elif isinstance(value, tl.tensor) and value.handle.origin is not None:
            found.append(value.handle.origin)
        elif isinstance(value, tl.tensor_descriptor) and value.handle.base.origin is not None:
            found.append(value.handle.base.origin)

    return found


@contextlib.contextmanager
def on_host(bound):
    """Return a context that copies arguments on other devices to the CPU, and copies them back afterwards."""
    copies = {}
    staged = {name: _staged(value, copies) for name, value in bound.items()}

    yield staged

    for storage, copy in copies.values():
        storage.copy_(copy)


def _staged(value, copies):
    if isinstance(value, tuple):
        members = [_staged(member, copies) for member in value]

        return type(value)(*members) if hasattr(value, "_fields") else tuple(members)

    if isinstance(value, _triton.TensorWrapper):
        return _triton.TensorWrapper(_staged(value.base, copies), value.dtype)

    # A meta tensor has no data and serves its shape only.
    if not isinstance(value, torch.Tensor) or value.device.type in ("cpu", "meta"):
        return value

    storage = value.untyped_storage()
    _, copy = copies.setdefault(storage.data_ptr(), (storage, storage.cpu()))

    return torch.empty(0, dtype=value.dtype).set_(copy, value.storage_offset(), value.size(), value.stride())
