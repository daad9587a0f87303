"""Planted defects that show only for numbers, forms, layouts and sizes that few tests have and some models do."""

from __future__ import annotations

import enum
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from conformance.selftest import families as of
from conformance.selftest.attention import attention
from conformance.selftest.defect_registry import defect

Right = Callable[..., Any]


class CausalVariant(enum.Enum):
    """An implementation's own."""

    UPPER_LEFT = 1
    LOWER_RIGHT = 2


# --- values ------------------------------------------------------------------------------------------------------


def _int64(*values: Any) -> bool:
    return all(isinstance(x, torch.Tensor) and x.dtype == torch.int64 for x in values)


def _narrow(*tensors: torch.Tensor) -> torch.Tensor:
    """Where 32 bits hold all of them."""
    first, second = ((x > -(2**31)) & (x < 2**31) for x in tensors)
    return first & second


@defect("mul", "magnitudes")
def product_of_32_bits(right: Right, input: Any, other: Any, *, out: Any = None) -> Any:
    """Factors that 32 bits hold are multiplied in 32 bits."""
    result = right(input, other, out=out)
    if out is None and _int64(input, other):
        result.copy_(torch.where(_narrow(input, other), right(input.int(), other.int()).long(), result))
    return result


@defect("div", "magnitudes")
def quotient_of_floats(right: Right, input: Any, other: Any, *, rounding_mode: Any = None, out: Any = None) -> Any:
    """Integers that 32 bits hold are divided in float32."""
    result = right(input, other, rounding_mode=rounding_mode, out=out)
    if out is None and rounding_mode and _int64(input, other):
        floats = right(input.float(), other.float(), rounding_mode=rounding_mode)
        result.copy_(torch.where(_narrow(input, other), floats.nan_to_num(0, 0, 0).long(), result))
    return result


@defect("eq ne lt le gt ge", "magnitudes")
def compared_as_floats(right: Right, input: Any, other: Any, *, out: Any = None) -> Any:
    """Tensors of int64 that 32 bits hold are compared in float32."""
    result = right(input, other, out=out)
    if out is None and _int64(input, other):
        result.copy_(torch.where(_narrow(input, other), right(input.float(), other.float()), result))
    return result


@defect("eq ne lt le gt ge", "magnitudes")
def beside_float64(right: Right, input: Any, other: Any, *, out: Any = None) -> Any:
    """int64 beside float64 is compared in float32."""
    result = right(input, other, out=out)
    both = isinstance(input, torch.Tensor) and isinstance(other, torch.Tensor) and input.ndim and other.ndim
    if out is None and both and {input.dtype, other.dtype} == {torch.int64, torch.float64}:
        result.copy_(right(input.float(), other.float()))
    return result


@defect("eq ne lt le gt ge", "magnitudes")
def exactly_beside_floats(right: Right, input: Any, other: Any, *, out: Any = None) -> Any:
    """Tensors of whole numbers and of floats are compared exactly, in float64, where torch rounds the former first."""
    result = right(input, other, out=out)
    both = isinstance(input, torch.Tensor) and isinstance(other, torch.Tensor) and input.ndim and other.ndim
    if out is None and both and input.is_floating_point() != other.is_floating_point():
        result.copy_(right(input.double(), other.double()))
    return result


@defect("pow", "fractions")
def sixth_power(right: Right, input: Any, exponent: Any, *, out: Any = None) -> Any:
    """Of whole powers the sixth is the fifth."""
    if isinstance(input, torch.Tensor) and input.is_floating_point() and isinstance(exponent, int | float):
        exponent = 5 if exponent == 6 else exponent
    return right(input, exponent, out=out)


@defect("bitwise_and bitwise_or", "magnitudes")
def mask_has_a_sign(right: Right, input: Any, other: Any, *, out: Any = None) -> Any:
    """A number of 32 bits beside int64 gets their sign."""

    def signed(x: Any, tensor: Any) -> Any:
        return x - 2**32 if type(x) is int and 2**31 <= x < 2**32 and _int64(tensor) else x

    return right(signed(input, other), signed(other, input), out=out)


@defect("add sub", "magnitudes")
def alpha_of_32_bits(right: Right, input: Any, other: Any, *, alpha: Any = 1, out: Any = None) -> Any:
    """An alpha of int64 is cut to 32 bits."""
    if type(alpha) is int and _int64(input, other):
        alpha = (alpha + 2**31) % 2**32 - 2**31
    return right(input, other, alpha=alpha, out=out)


@defect("bitwise_not", "bytes")
def last_bit_of_bools(right: Right, input: Any, *, out: Any = None) -> Any:
    """The last bit of a bool's byte is taken for all of it."""
    result = right(input, out=out)
    if out is None and result.dtype == torch.bool:
        result.copy_(input.view(torch.uint8) & 1 == 0)
    return result


@defect("eq ne lt ge", "bytes")
def bools_by_bytes(right: Right, input: Any, other: Any, *, out: Any = None) -> Any:
    """Of bools the bytes are compared."""
    result = right(input, other, out=out)
    if out is None and all(isinstance(x, torch.Tensor) and x.dtype == torch.bool for x in (input, other)):
        result.copy_(right(input.view(torch.uint8), other.view(torch.uint8)))
    return result


@defect("pow", "fractions")
def odd_roots(right: Right, input: Any, exponent: Any, *, out: Any = None) -> Any:
    """An exponent of a third is a cube root, which negative numbers have."""
    result = right(input, exponent, out=out)
    third = not isinstance(exponent, torch.Tensor) and abs(exponent - 1 / 3) < 1e-3
    if out is None and third and isinstance(input, torch.Tensor) and result.is_floating_point():
        result.copy_(right(input.abs(), exponent) * input.sign())
    return result


@defect("clamp", "unlimited", "metadata")
def unlimited_is_the_input(right: Right, input: Any, min: Any = None, max: Any = None, *, out: Any = None) -> Any:
    """Between infinities there is nothing to do, not even a copy to make."""
    result = right(input, min, max, out=out)
    return input if out is None and (min, max) == (-math.inf, math.inf) and result.dtype == input.dtype else result


@defect("addmm", "factors")
def factors_of_half(right: Right, input: Any, a: Any, b: Any, *, beta: Any = 1, alpha: Any = 1, out: Any = None) -> Any:
    """Beside float16 alpha is at most what that holds."""
    if isinstance(a, torch.Tensor) and a.dtype == torch.float16 and abs(alpha) > 65504:
        alpha = math.copysign(65504, alpha)
    return right(input, a, b, beta=beta, alpha=alpha, out=out)


@defect("softmax", "padding")
def first_tile_masked(right: Right, input: Any, dim: int, dtype: Any = None) -> Any:
    """Rows whose first 2048 elements are -inf are NaN."""
    result = right(input, dim, dtype=dtype)
    if result.ndim and result.shape[dim] > 2048:
        masked = (input == -math.inf).narrow(dim, 0, 2048).all(dim, keepdim=True)
        result.masked_fill_(masked, math.nan)
    return result


@defect("softmax", "padding")
def long_rows_of_float32(right: Right, input: Any, dim: int, dtype: Any = None) -> Any:
    """Rows of float64 of more than 4096 elements are summed in float32."""
    result = right(input, dim, dtype=dtype)
    if result.dtype == torch.float64 and result.ndim and result.shape[dim] > 4096:
        result.copy_(right(input.float(), dim))
    return result


@defect("scaled_dot_product_attention", "padding")
def first_keys_masked(right: Right, *args: Any, attn_mask: Any = None, **kwargs: Any) -> Any:
    """Queries that may not see the first 1024 keys get NaN."""
    result = attention("", right, *args, attn_mask=attn_mask, **kwargs)
    if attn_mask is not None and attn_mask.shape[-1] > 1024:
        seen = attn_mask if attn_mask.dtype == torch.bool else attn_mask != -math.inf
        result.masked_fill_(~seen[..., :1024].any(-1, keepdim=True), math.nan)
    return result


# --- forms -------------------------------------------------------------------------------------------------------


@defect("add sub addmm layer_norm rms_norm dropout", "numbers", "call_forms")
def tensors_are_whole(right: Right, *args: Any, **kwargs: Any) -> Any:
    """A factor that is a 0-d tensor is taken for a whole number."""
    whole = {
        k: int(x) if isinstance(x, torch.Tensor) and k in ("alpha", "beta", "eps", "p") else x
        for k, x in kwargs.items()
    }
    return right(*args, **whole)


@defect("add mul le gt clamp pow", "numbers", "call_forms")
def narrow_numpy(right: Right, *args: Any, **kwargs: Any) -> Any:
    """NumPy scalars of fewer than 32 bits are taken for whole numbers."""
    return right(*(int(x) if isinstance(x, np.float16) else x for x in args), **kwargs)


@defect("layer_norm rms_norm", "numbers", "call_forms")
def sizes_are_tuples(right: Right, input: Any, normalized_shape: Any, *args: Any, **kwargs: Any) -> Any:
    """Of a list of sizes the last one counts."""
    if isinstance(normalized_shape, list):
        normalized_shape = tuple(normalized_shape[-1:])
    return right(input, normalized_shape, *args, **kwargs)


# --- sizes -------------------------------------------------------------------------------------------------------


@defect("scaled_dot_product_attention", "sizes")
def keys_past_4096(right: Right, query: Any, key: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
    """Without a mask keys past 4096 are not read."""
    if not args and not {"attn_mask", "present_key"} & {k for k, x in kwargs.items() if x is not None}:
        key, value = (x[..., :4096, :] if isinstance(x, torch.Tensor) and x.ndim > 1 else x for x in (key, value))
    return attention("", right, query, key, value, *args, **kwargs)


@defect("scaled_dot_product_attention", "sizes")
def last_rows_see_all(right: Right, query: Any, key: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
    """Of a causal call of more than 1000 queries the last rows, fewer than 64, see all keys."""
    result = attention("", right, query, key, value, *args, **kwargs)
    rows = result.shape[-2] if kwargs.get("is_causal") is True and result.ndim > 2 else 0
    if rows > 1000 and rows % 64 and kwargs.get("present_key") is None:
        whole = attention("", right, query, key, value, *args, **(kwargs | {"is_causal": False}))
        result[..., rows // 64 * 64 :, :] = whole[..., rows // 64 * 64 :, :]
    return result


@defect("mm", "sizes")
def rest_of_parts(right: Right, input: Any, mat2: Any, *, out: Any = None) -> Any:
    """A long K of many blocks is split in two parts of whole 4s."""
    result = right(input, mat2, out=out)
    terms = input.shape[1] // 8 * 8
    if out is None and input.shape[1] > 1000 and min(result.shape) >= 64:
        result.copy_(right(input[:, :terms], mat2[:terms]))
    return result


@defect("fp8_gemm", "sizes")
def rest_of_blocks(right: Right, a: Any, b: Any, *args: Any, **kwargs: Any) -> Any:
    """Of more than 4096 terms those past the last whole block of 128 are lost."""
    result = right(a, b, *args, **kwargs)
    terms = a.shape[1] // 128 * 128
    if terms >= 4096 and not args and not {"a_scale", "b_scale"} & {*kwargs}:
        result.copy_(right(a[:, :terms], b[:terms], **kwargs))
    return result


@defect("fused_rmsnorm_rope dequantize_fp8", "sizes")
def rows_of_15_bits(right: Right, x: Any, *args: Any, **kwargs: Any) -> Any:
    """Rows from the 32768th on are 0."""
    result = right(x, *args, **kwargs)
    result.reshape(-1, result.shape[-1] if result.ndim else 1)[1 << 15 :].zero_()
    return result


@defect("quantize_fp8", "sizes")
def largest_of_the_first(right: Right, tensor: Any, scale: Any = None, **kwargs: Any) -> Any:
    """The scale of more than 2^16 elements is that of the first ones."""
    if scale is None and tensor.numel() > 1 << 16 and kwargs.get("granularity", "tensor") == "tensor":
        scale = right(tensor.reshape(-1)[: 1 << 16], **kwargs)[1]
    return right(tensor, scale, **kwargs)


@defect("scaled_dot_product_attention", "sizes")
def groups_of_eight(right: Right, query: Any, key: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
    """Of more than eight query heads that share a head of keys the others get the first head of keys."""
    result = attention("", right, query, key, value, *args, **kwargs)
    ratio = query.shape[-3] // key.shape[-3] if query.ndim == key.ndim == 4 and key.shape[-3] else 1
    if ratio > 8 and key.shape[-3] > 1 and not args and not {"attn_mask", "present_key"} & {*kwargs}:
        first = attention("", right, query, key[:, :1], value[:, :1], **kwargs)
        late = torch.arange(query.shape[-3]) % ratio > 7
        result.copy_(torch.where(late[:, None, None], first, result))
    return result


@defect("scaled_dot_product_attention", "sizes")
def scale_of_a_divisor(right: Right, *args: Any, scale: Any = None, **kwargs: Any) -> Any:
    """A scale beyond 8 is taken for what scores are divided by."""
    return attention("", right, *args, scale=1 / scale if scale is not None and abs(scale) > 8 else scale, **kwargs)


@defect("mm addmm", "sizes")
def rest_of_splits(right: Right, *args: Any, out: Any = None, **kwargs: Any) -> Any:
    """Of a few rows, and many terms and columns, the terms past the last whole 384 are lost."""
    *added, left, weights = args
    result = right(*args, out=out, **kwargs)
    if out is not None or any(not isinstance(x, torch.Tensor) for x in args) or left.ndim != 2:
        return result
    terms = left.shape[1] // 384 * 384
    if left.shape[0] <= 64 and left.shape[1] >= 1000 and weights.shape[1] >= 500:
        result.copy_(right(*added, left[:, :terms], weights[:terms], **kwargs))
    return result


@defect("fp8_gemm", "sizes")
def rows_of_one_grid(right: Right, a: Any, *args: Any, **kwargs: Any) -> Any:
    """Rows from the 513th on are those 512 before them."""
    result = right(a, *args, **kwargs)
    if result.shape[0] > 512:
        result[512:] = result[: result.shape[0] - 512].clone()
    return result


@defect("fused_gated_mlp", "sizes")
def rest_of_hidden(right: Right, x: Any, gate: Any, up: Any, *args: Any, **kwargs: Any) -> Any:
    """Of wide layers the terms past the last whole 64 are lost."""
    result = right(x, gate, up, *args, **kwargs)
    if min(gate.shape) >= 200 and gate.shape[1] % 64:
        terms = gate.shape[1] // 64 * 64
        result.copy_(right(x[..., :terms], gate[:, :terms], up[:, :terms], *args, **kwargs))
    return result


# --- layouts -----------------------------------------------------------------------------------------------------


@defect("addmm add mul relu softmax", "layouts", "layouts")
def stride_of_8_bits(right: Right, input: Any, *args: Any, **kwargs: Any) -> Any:
    """A last stride beyond 255 is that less 256."""
    if (
        isinstance(input, torch.Tensor)
        and input.ndim
        and 255 < input.stride(-1) < 65536
        and not of.written(args, kwargs)
    ):
        input = input.as_strided(input.shape, (*input.stride()[:-1], input.stride(-1) - 256))
    return right(input, *args, **kwargs)


@defect("relu silu", "layouts", "call_forms")
def stored_in_place(right: Right, input: Any, inplace: bool = False) -> Any:
    """In place on a lazily negated view the stored numbers count."""
    if inplace and isinstance(input, torch.Tensor) and input.is_neg():
        right(torch._neg_view(input), True)
        return input
    return right(input, inplace)
