"""Liger-Kernel 0.8.5, with torch's signatures: ``--implementation conformance.implementations.liger``.

Each function calls the library's with what that takes: the dim that it works on last, and the arguments that torch lets
a caller leave out. On the CPU its Triton kernels are interpreted.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence

import torch

from conformance.implementations import NotProvided

if os.environ.get("TRITON_INTERPRET"):
    # The library takes functions of libdevice, which Triton's own interpreter lacks; installed before Triton is
    # imported.
    from ntops import interpreter

    interpreter.install()

try:
    from liger_kernel.ops.layer_norm import LigerLayerNormFunction
    from liger_kernel.ops.rms_norm import LigerRMSNormFunction
    from liger_kernel.ops.rope import LigerRopeFunction
    from liger_kernel.ops.softmax import LigerSoftmaxFunction
except ImportError as error:
    hint = "install it with pip install 'ntops[liger]'"
    raise ImportError(f"Liger-Kernel cannot be imported ({error}); {hint}") from error

__all__ = ["layer_norm", "rms_norm", "rotary_position_embedding", "softmax"]


conformance_left_out = {"rotary_position_embedding": "the library rotates halves of the head dim, not neighbours"}


def softmax(input: torch.Tensor, dim: int, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Call the library's softmax, which is over the last dim."""
    if dtype is not None:
        input = input.to(dtype)
    return LigerSoftmaxFunction.apply(input.movedim(dim, -1)).movedim(-1, dim).contiguous()


def layer_norm(
    input: torch.Tensor,
    normalized_shape: Sequence[int],
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    eps: float = 1e-5,
) -> torch.Tensor:
    """Call the library's layer norm, which has both parameters."""
    rows = _rows(input, normalized_shape)
    weight = rows.new_ones(rows.shape[-1]) if weight is None else weight.flatten()
    bias = rows.new_zeros(rows.shape[-1]) if bias is None else bias.flatten()
    return LigerLayerNormFunction.apply(rows, weight, bias, eps).view(input.shape)


def rms_norm(
    input: torch.Tensor, normalized_shape: Sequence[int], weight: torch.Tensor | None = None, eps: float | None = None
) -> torch.Tensor:
    """Call the library's RMS norm in the casting mode that is torch's definition: the product with the weight is
    rounded once, from float32 ("gemma"); or nothing is cast, where that is the dtype anyway ("none")."""
    rows = _rows(input, normalized_shape)
    half = input.dtype in (torch.float16, torch.bfloat16)
    if eps is None:
        eps = torch.finfo(torch.float64 if input.dtype == torch.float64 else torch.float32).eps
    weight = None if weight is None else weight.flatten()
    return LigerRMSNormFunction.apply(rows, weight, eps, 0.0, "gemma" if half else "none", False).view(input.shape)


def rotary_position_embedding(
    input: torch.Tensor,
    sin_table: torch.Tensor,
    cos_table: torch.Tensor,
    interleaved: bool = True,
    inplace: bool = False,
) -> torch.Tensor:
    """Rotate by the library's function, which has pairs of halves, takes queries and keys, and writes them where they
    are, if contiguous."""
    if interleaved:
        raise NotProvided("Liger-Kernel rotates halves of the head dim, not neighbours")
    batch, length, _, dim = input.shape
    result = input if inplace else input.clone()
    key = input.new_zeros(batch, 1, length, dim)
    found, _ = LigerRopeFunction.apply(result.transpose(1, 2), key, cos_table, sin_table, None, 1, dim)
    return result.copy_(found.transpose(1, 2))


def _rows(input: torch.Tensor, normalized_shape: Sequence[int]) -> torch.Tensor:
    """Return the input with the normalized dims as one. Raises RuntimeError unless they are the last."""
    shape = tuple(normalized_shape)
    if not shape or tuple(input.shape[-len(shape) :]) != shape:
        raise RuntimeError(f"normalized_shape {shape} are not the last dims of {tuple(input.shape)}")
    return input.reshape(*input.shape[: -len(shape)], math.prod(map(int, shape)))
