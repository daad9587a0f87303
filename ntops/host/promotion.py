"""Dtypes: compute the dtype to which torch promotes operands, and the dtype in which kernels compute."""

import torch
import triton.language as tl

from ntops.launch import boundary
from ntops.launch.dispatch_watch import known

_HALF = (torch.float16, torch.bfloat16)

TRITON_DTYPES = {
    torch.float16: tl.float16,
    torch.bfloat16: tl.bfloat16,
    torch.float32: tl.float32,
    torch.float64: tl.float64,
    torch.int8: tl.int8,
    torch.int16: tl.int16,
    torch.int32: tl.int32,
    torch.int64: tl.int64,
    torch.uint8: tl.uint8,
    torch.bool: tl.int1,
}


def result_dtype(*operands):
    """Return the dtype to which torch promotes tensors and Python numbers."""
    dtype = _dtype(operands[0])

    for operand in operands[1:]:
        if not isinstance(operand, torch.Tensor) or operand.dtype is not dtype:
            break
    else:
        return dtype

    return torch.result_type(*operands)


def _dtype(operand):
    return operand.dtype if isinstance(operand, torch.Tensor) else None


def accumulate_dtype(dtype):
    """Return the dtype in which kernels compute for ``dtype``: float32 for half types, int32 for bool, else itself."""
    if dtype in _HALF:
        return torch.float32

    return torch.int32 if dtype is torch.bool else dtype


def scalar_type(dtype):
    """Return the type of a kernel argument that carries a Python number exactly into a computation in ``dtype``."""
    return "fp64" if dtype.is_floating_point else "i64"


def rounded(number, dtype):
    """Return the number rounded to ``dtype``, as a Python number."""
    if boundary.is_abstract():
        return number

    # A conversion to a tensor's own dtype returns the tensor, which torch.library.opcheck lets no operator do.
    if dtype is torch.float64:
        return float(number)

    with known():
        return torch.tensor(number, dtype=torch.float64, device="cpu").to(dtype).item()


def promote(operands, dtype, compute_dtype=None):
    """Prepare operands such that a kernel may cast each directly to its compute dtype.

    torch first casts each operand to the promoted dtype. That loses information if a 0-d tensor has a wider dtype than
    the result, if integers meet a half type or any dtype in which the kernel does not compute, and if a Python integer
    wraps.

    :param operands: Tensors and Python numbers by name.
    :param dtype: The promoted dtype.
    :param compute_dtype: The dtype in which the kernel computes, if that is wider than :func:`accumulate_dtype` says.
    """
    rounds = dtype in _HALF or (dtype.is_floating_point and compute_dtype not in (None, dtype))
    return {name: _promote(value, dtype, rounds) for name, value in operands.items()}


def _promote(value, dtype, rounds):
    if isinstance(value, torch.Tensor):
        loses = value.ndim == 0 or (rounds and not value.dtype.is_floating_point)
        return value.to(dtype) if loses and value.dtype is not dtype else value

    if dtype.is_floating_point or dtype is torch.bool:
        return value

    limits = torch.iinfo(dtype)
    return (int(value) - limits.min) % 2**limits.bits + limits.min
