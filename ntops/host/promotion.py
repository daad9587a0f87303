"""Dtypes: what torch promotes operands to, and what kernels compute in."""

import torch
import triton.language as tl

from ntops.host.watch import known

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
    """The dtype to which torch promotes tensors and Python numbers."""
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
    """The dtype in which values of ``dtype`` are computed: float32 for half types, int32 for bool, else itself."""
    if dtype in _HALF:
        return torch.float32

    return torch.int32 if dtype is torch.bool else dtype


def scalar_type(dtype):
    """The type of a kernel argument that carries a Python number exactly into a computation in ``dtype``."""
    return "fp64" if dtype.is_floating_point else "i64"


def rounded(number, dtype):
    """The Python number that a tensor of ``dtype`` holds of one."""
    with known():
        return torch.tensor(number, dtype=torch.float64, device="cpu").to(dtype).item()


def promote(operands, dtype, compute_dtype=None):
    """The operands such that a kernel may take each straight to the dtype in which it computes.

    torch first casts each to the promoted dtype, which loses something where a 0-d tensor of a wider dtype gave way,
    where integers meet a half type, or any in which the kernel does not compute, and where a Python integer wraps.

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
