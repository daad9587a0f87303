"""JAX on the CPU, with torch's signatures: ``--implementation conformance.implementations.jax_cpu``.

Functions of ``jax.numpy`` and ``jax.nn``. Operands are cast first to the dtype to which torch promotes them, since
JAX has other rules; results are contiguous.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from conformance.implementations import NotProvided
from conformance.implementations._arrays import Elementwise, as_it_is, floating, none_of, plain, promoted

try:
    import jax
    import ml_dtypes
    from jax import numpy as jnp
except ImportError as error:
    raise ImportError(f"JAX cannot be imported ({error}); install it with pip install 'ntops[jax]'") from error

jax.config.update("jax_platforms", "cpu")
# Without it float64 becomes float32.
jax.config.update("jax_enable_x64", True)

conformance_left_out = {
    "*": "no form with out= or in place, and none with alpha",
    "scaled_dot_product_attention": "no causal variant and no KV cache",
}


def _made(function: Callable[..., Any], *tensors: torch.Tensor, **options: Any) -> torch.Tensor:
    return _tensor(function(*map(_array, tensors), **options))


def _array(tensor: torch.Tensor) -> jax.Array:
    tensor = tensor.detach().resolve_neg().contiguous()
    if tensor.dtype == torch.bfloat16:
        return jnp.asarray(tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16))
    # A copy: JAX may keep the memory that it is given, which is torch's.
    return jnp.array(tensor.numpy(), copy=True)


def _tensor(array: jax.Array) -> torch.Tensor:
    found = np.array(array)
    if found.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(found.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(found)


_of = Elementwise("JAX", _made)
exp, sin, cos, tanh = (_of.unary(one, floating) for one in (jnp.exp, jnp.sin, jnp.cos, jnp.tanh))
sigmoid, rsqrt = (_of.unary(one, floating) for one in (jax.nn.sigmoid, jax.lax.rsqrt))
abs, neg, bitwise_not = (_of.unary(one, as_it_is) for one in (jnp.abs, jnp.negative, jnp.invert))
isinf, isnan = (_of.unary(one, as_it_is) for one in (jnp.isinf, jnp.isnan))
mul, pow = _of.binary(jnp.multiply), _of.binary(jnp.power)
eq, ne, lt = _of.binary(jnp.equal), _of.binary(jnp.not_equal), _of.binary(jnp.less)
le, gt, ge = _of.binary(jnp.less_equal), _of.binary(jnp.greater), _of.binary(jnp.greater_equal)
bitwise_and, bitwise_or = _of.binary(jnp.bitwise_and), _of.binary(jnp.bitwise_or)
add, sub = _of.scaled(jnp.add), _of.scaled(jnp.subtract)
mm = bmm = matmul = _of.binary(jnp.matmul)
relu, silu = _of.activation(jax.nn.relu), _of.activation(jax.nn.silu)


def div(input: Any, other: Any, *, rounding_mode: str | None = None, out: torch.Tensor | None = None) -> torch.Tensor:
    plain(out)
    if rounding_mode == "trunc":
        raise NotProvided("JAX has no truncated quotient")
    if rounding_mode == "floor":
        return _made(jnp.floor_divide, *promoted(input, other))
    return _made(jnp.divide, *map(floating, promoted(input, other)))


def clamp(input: torch.Tensor, min: Any = None, max: Any = None, *, out: torch.Tensor | None = None) -> torch.Tensor:
    plain(out)
    bounds = {name: bound for name, bound in (("min", min), ("max", max)) if bound is not None}
    input, *limits = promoted(input, *bounds.values())
    return _made(lambda x, *given: jnp.clip(x, **dict(zip(bounds, given, strict=True))), input, *limits)


def gelu(input: torch.Tensor, approximate: str = "none") -> torch.Tensor:
    return _made(jax.nn.gelu, input, approximate={"none": False, "tanh": True}[approximate])


def softmax(input: torch.Tensor, dim: int, dtype: torch.dtype | None = None) -> torch.Tensor:
    if not input.ndim:
        raise NotProvided("JAX has no softmax of a number")
    return _made(jax.nn.softmax, input if dtype is None else input.to(dtype), axis=dim)


def layer_norm(
    input: torch.Tensor,
    normalized_shape: Sequence[int],
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    eps: float = 1e-5,
) -> torch.Tensor:
    """``jax.nn.standardize``, and the parameters applied to what it returns."""
    axes = tuple(range(-len(normalized_shape), 0))
    found = jax.nn.standardize(_array(input), axis=axes, epsilon=eps)
    found = found if weight is None else found * _array(weight)
    return _tensor(found if bias is None else found + _array(bias))


def scaled_dot_product_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    **more: Any,
) -> torch.Tensor:
    """JAX's has heads last but one, and masks of four dims."""
    none_of({**more, "dropout_p": dropout_p or None})
    if query.ndim != 4 or query.shape[0] != key.shape[0] or query.shape[-1] != value.shape[-1]:
        raise NotProvided("JAX's attention is of batches of one size, and values are as long as keys")
    mask = None if attn_mask is None else _array(attn_mask[(None,) * (4 - attn_mask.ndim)])
    given: dict[str, Any] = {} if mask is None else {"mask" if mask.dtype == bool else "bias": mask}
    operands = (_array(one.transpose(1, 2)) for one in (query, key, value))
    found = jax.nn.dot_product_attention(*operands, scale=scale, is_causal=is_causal, **given)
    return _tensor(found).transpose(1, 2).contiguous()
