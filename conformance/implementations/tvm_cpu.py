"""TVM on the CPU, with torch's signatures: ``--implementation conformance.implementations.tvm_cpu``.

Each call is a module of one operator of Relax, as TVM legalizes it, built by LLVM for the shapes of the call. Operands
are cast first to the dtype to which torch promotes them, since TVM has operands of one type; results are contiguous.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from conformance.implementations import NotProvided
from conformance.implementations._arrays import Elementwise, as_it_is, floating, none_of, plain, promoted

try:
    import tvm
    from tvm import relax
    from tvm.relax import op as ops
except ImportError as error:
    raise ImportError(f"TVM cannot be imported ({error}); install it with pip install 'ntops[tvm]'") from error

conformance_left_out = {
    "*": "no form with out= or in place, and none with alpha",
    "scaled_dot_product_attention": "no causal variant, no KV cache, no masks of bools, no groups of heads",
}


Operand = tuple[tuple[int, ...], str]
"""The shape and the dtype of an operand."""


@functools.lru_cache(maxsize=512)
def _built(
    operator: Callable[..., Any], operands: tuple[Operand, ...], options: tuple[tuple[str, Any], ...]
) -> relax.VirtualMachine:
    """A virtual machine with a module of one operator. Raises NotProvided."""
    given = [relax.Var(f"x{place}", relax.TensorType(*operand)) for place, operand in enumerate(operands)]
    builder = relax.BlockBuilder()
    try:
        with builder.function("main", given):
            with builder.dataflow():
                found = builder.emit_output(operator(*given, **dict(options)))
            builder.emit_func_output(found)
        module = relax.transform.LegalizeOps()(builder.get())
        return relax.VirtualMachine(tvm.compile(module, target="llvm"), tvm.cpu())
    # TVM has exceptions of its own for what an operator does not take, and plain ones.
    except Exception as error:  # noqa: BLE001
        told = (str(error).strip() or type(error).__name__).splitlines()[-1]
        raise NotProvided(f"TVM does not build it: {told}") from None


def _made(operator: Callable[..., Any], *tensors: torch.Tensor, **options: Any) -> torch.Tensor:
    given = [_dense(one) for one in tensors]
    operands = tuple((tuple(one.shape), str(one.dtype).removeprefix("torch.")) for one in given)
    machine = _built(operator, operands, tuple(options.items()))
    found = torch.from_dlpack(machine["main"](*map(tvm.runtime.from_dlpack, given)))
    return found.clone(memory_format=torch.contiguous_format)


def _dense(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy: operands stay whose they are. Without elements it has TVM's strides, which are checked."""
    copy = tensor.detach().resolve_neg().clone(memory_format=torch.contiguous_format)
    strides = [math.prod(copy.shape[dim + 1 :]) for dim in range(copy.ndim)]
    return copy if copy.numel() else copy.as_strided(copy.shape, strides)


_of = Elementwise("TVM", _made)
exp, sin, cos, tanh = (_of.unary(one, floating) for one in (ops.exp, ops.sin, ops.cos, ops.tanh))
sigmoid, rsqrt = (_of.unary(one, floating) for one in (ops.sigmoid, ops.rsqrt))
abs, neg, bitwise_not = (_of.unary(one, as_it_is) for one in (ops.abs, ops.negative, ops.bitwise_not))
isinf, isnan = (_of.unary(one, as_it_is) for one in (ops.isinf, ops.isnan))
mul, pow = _of.binary(ops.multiply), _of.binary(ops.power)
eq, ne, lt = _of.binary(ops.equal), _of.binary(ops.not_equal), _of.binary(ops.less)
le, gt, ge = _of.binary(ops.less_equal), _of.binary(ops.greater), _of.binary(ops.greater_equal)
bitwise_and, bitwise_or = _of.binary(ops.bitwise_and), _of.binary(ops.bitwise_or)
add, sub = _of.scaled(ops.add), _of.scaled(ops.subtract)
mm = bmm = matmul = _of.binary(ops.matmul)
relu, silu = _of.activation(ops.nn.relu), _of.activation(ops.nn.silu)


def div(input: Any, other: Any, *, rounding_mode: str | None = None, out: torch.Tensor | None = None) -> torch.Tensor:
    plain(out)
    if rounding_mode == "trunc":
        raise NotProvided("TVM has no truncated quotient")
    if rounding_mode == "floor":
        return _made(ops.floor_divide, *promoted(input, other))
    return _made(ops.divide, *map(floating, promoted(input, other)))


def clamp(input: torch.Tensor, min: Any = None, max: Any = None, *, out: torch.Tensor | None = None) -> torch.Tensor:
    plain(out)
    if not isinstance(min, int | float) or not isinstance(max, int | float):
        raise NotProvided("TVM clips between two numbers")
    # Numbers that the dtype does not hold are refused here.
    input, *_ = promoted(input, min, max)
    return _made(ops.clip, input, min=min, max=max)


def gelu(input: torch.Tensor, approximate: str = "none") -> torch.Tensor:
    return _made({"none": ops.nn.gelu, "tanh": ops.nn.gelu_tanh}[approximate], input)


def softmax(input: torch.Tensor, dim: int, dtype: torch.dtype | None = None) -> torch.Tensor:
    return _by_rows(ops.nn.softmax, input, dim, dtype)


def log_softmax(input: torch.Tensor, dim: int, dtype: torch.dtype | None = None) -> torch.Tensor:
    return _by_rows(ops.nn.log_softmax, input, dim, dtype)


def _by_rows(operator: Callable[..., Any], input: torch.Tensor, dim: int, dtype: torch.dtype | None) -> torch.Tensor:
    if not input.ndim:
        raise NotProvided("TVM has no softmax of a number")
    return _made(operator, input if dtype is None else input.to(dtype), axis=dim)


def layer_norm(
    input: torch.Tensor,
    normalized_shape: Sequence[int],
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    eps: float = 1e-5,
) -> torch.Tensor:
    """TVM's has a weight and a bias."""
    shape = tuple(normalized_shape)
    weight, bias = input.new_ones(shape) if weight is None else weight, input.new_zeros(shape) if bias is None else bias
    return _made(ops.nn.layer_norm, input, weight, bias, axes=tuple(range(-len(shape), 0)), epsilon=eps)


def rms_norm(
    input: torch.Tensor, normalized_shape: Sequence[int], weight: torch.Tensor | None = None, eps: float | None = None
) -> torch.Tensor:
    """TVM's has a weight and an epsilon."""
    shape = tuple(normalized_shape)
    if weight is not None and weight.dtype != input.dtype:
        raise NotProvided("TVM's operands are of one type")
    if eps is None:
        eps = torch.finfo(torch.float64 if input.dtype == torch.float64 else torch.float32).eps
    weight = input.new_ones(shape) if weight is None else weight
    return _made(ops.nn.rms_norm, input, weight, axes=tuple(range(-len(shape), 0)), epsilon=eps)


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
    """TVM's has heads last but one."""
    none_of({**more, "dropout_p": dropout_p or None})
    if query.ndim != 4 or query.shape[:2] != key.shape[:2] or enable_gqa:
        raise NotProvided("TVM's attention is of batches of one size, and as many heads of keys as of queries")
    operands = [one.transpose(1, 2) for one in (query, key, value)]
    if attn_mask is not None:
        if attn_mask.dtype != query.dtype:
            raise NotProvided("TVM's masks are of the type of the queries")
        operands.append(attn_mask.expand(*query.shape[:3], key.shape[2]))
    options = {"scale": scale, "causal_mask": "TopLeft" if is_causal else None}
    return _made(_attention, *operands, **options).transpose(1, 2).contiguous()


def _attention(query: Any, key: Any, value: Any, bias: Any = None, **options: Any) -> Any:
    return ops.nn.attention(query, key, value, bias, **options)
