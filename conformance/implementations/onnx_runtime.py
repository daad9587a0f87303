"""ONNX Runtime on the CPU, with torch's signatures: ``--implementation conformance.implementations.onnx_runtime``.

Each call is a model of one operator of opset 24. Operands are cast first to the dtype to which torch promotes them,
since ONNX has operands of one type; results are contiguous.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Generator, Sequence
from typing import Any

import numpy as np
import torch

from conformance.implementations import NotProvided
from conformance.implementations._arrays import none_of, plain, promoted

try:
    import onnxruntime
    from onnx import ModelProto, TensorProto, checker, helper, numpy_helper
    from onnxruntime.capi.onnxruntime_pybind11_state import InvalidGraph, NotImplemented
except ImportError as error:
    hint = "install it with pip install 'ntops[onnxruntime]'"
    raise ImportError(f"ONNX Runtime cannot be imported ({error}); {hint}") from error

conformance_left_out = {
    "*": "no form with out= or in place, none with alpha, and of most functions none of integers or of bfloat16",
    "scaled_dot_product_attention": "no causal variant and no KV cache",
}

OPSET, IR = 24, 11
TYPES = {
    torch.bool: TensorProto.BOOL,
    torch.uint8: TensorProto.UINT8,
    torch.int8: TensorProto.INT8,
    torch.int16: TensorProto.INT16,
    torch.int32: TensorProto.INT32,
    torch.int64: TensorProto.INT64,
    torch.float16: TensorProto.FLOAT16,
    torch.float32: TensorProto.FLOAT,
    torch.float64: TensorProto.DOUBLE,
}


@dataclasses.dataclass(frozen=True)
class Node:
    """A call as ONNX has it: an operator, its operands, and its attributes."""

    operator: str
    operands: tuple[torch.Tensor, ...]
    attributes: tuple[tuple[str, Any], ...]
    truth: bool
    """The result is of bools."""
    turned: tuple[int, ...]
    """The two dims that torch's result has in the other order; none where it has all as they are."""


_recorded: list[Node] | None = None


@contextlib.contextmanager
def recorded() -> Generator[list[Node]]:
    """Within, calls compute nothing: the nodes that they are made of are listed, and what they return is no result."""
    global _recorded
    _recorded = []
    try:
        yield _recorded
    finally:
        _recorded = None


def model(
    operator: str,
    operands: Sequence[tuple[int, Sequence[int | None]]],
    result: tuple[int, Sequence[int | None] | None],
    attributes: Sequence[tuple[str, Any]],
) -> ModelProto:
    """Return the model of one operator. ``operands`` and ``result``: the type and the sizes, None for any."""
    names = [f"x{place}" for place in range(len(operands))]
    given = [helper.make_tensor_value_info(name, *operand) for name, operand in zip(names, operands, strict=True)]
    node = helper.make_node(operator, names, ["y"], **dict(attributes))
    graph = helper.make_graph([node], operator, given, [helper.make_tensor_value_info("y", *result)])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR)


def check(made: ModelProto) -> None:
    """Check a model by ONNX's own rules. Raises NotProvided."""
    try:
        checker.check_model(made, full_check=True)
    # The checker raises its own exception, and shape inference another.
    except Exception as error:  # noqa: BLE001
        raise NotProvided(str(error)) from None


def encoded(tensor: torch.Tensor, name: str) -> bytes:
    """Return a tensor as ONNX's files hold it."""
    return numpy_helper.from_array(array(tensor), name).SerializeToString()


@functools.lru_cache(maxsize=256)
def _session(
    operator: str, operands: tuple[tuple[int, int], ...], truth: bool, attributes: tuple[tuple[str, Any], ...]
) -> onnxruntime.InferenceSession:
    """A model of one operator, for operands of any sizes. ``operands``: the type and rank of each."""
    given = [(kind, [None] * rank) for kind, rank in operands]
    made = model(operator, given, (TensorProto.BOOL if truth else operands[0][0], None), attributes)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(made.SerializeToString(), options, providers=["CPUExecutionProvider"])


def _made(
    operator: str, *tensors: torch.Tensor, truth: bool = False, turned: tuple[int, ...] = (), **attributes: Any
) -> torch.Tensor:
    if missing := [one.dtype for one in tensors if one.dtype not in TYPES]:
        raise NotProvided(f"the CPU provider has next to nothing of {missing[0]}")
    if _recorded is not None:
        _recorded.append(Node(operator, tensors, tuple(attributes.items()), truth, turned))
        return tensors[0]
    operands = tuple((TYPES[one.dtype], one.ndim) for one in tensors)
    try:
        session = _session(operator, operands, truth, tuple(attributes.items()))
    except (InvalidGraph, NotImplemented) as error:
        raise NotProvided(f"no {operator} of {tensors[0].dtype}: {error}") from None
    arrays = {f"x{place}": array(one) for place, one in enumerate(tensors)}
    return torch.from_numpy(session.run(None, arrays)[0])


def array(tensor: torch.Tensor) -> np.ndarray:
    """Return a copy: operands stay whose they are."""
    return tensor.detach().resolve_neg().clone().contiguous().numpy()


def _unary(operator: str, truth: bool = False) -> Callable[..., Any]:
    def call(input: torch.Tensor, *, out: torch.Tensor | None = None) -> torch.Tensor:
        plain(out)
        return _made(operator, input, truth=truth)

    return call


def _binary(operator: str, truth: bool = False) -> Callable[..., Any]:
    def call(input: Any, other: Any, *, out: torch.Tensor | None = None) -> torch.Tensor:
        plain(out)
        return _made(operator, *promoted(input, other), truth=truth)

    return call


def _scaled(operator: str) -> Callable[..., Any]:
    def call(input: Any, other: Any, *, alpha: Any = 1, out: torch.Tensor | None = None) -> torch.Tensor:
        plain(out)
        if alpha != 1:
            raise NotProvided("ONNX has no alpha")
        return _made(operator, *promoted(input, other))

    return call


def _activation(operator: str) -> Callable[..., Any]:
    def call(input: torch.Tensor, inplace: bool = False) -> torch.Tensor:
        plain(inplace=inplace)
        return _made(operator, input)

    return call


abs, neg, exp, sin = _unary("Abs"), _unary("Neg"), _unary("Exp"), _unary("Sin")
cos, tanh, sigmoid, bitwise_not = _unary("Cos"), _unary("Tanh"), _unary("Sigmoid"), _unary("BitwiseNot")
isinf, isnan = _unary("IsInf", truth=True), _unary("IsNaN", truth=True)
mul, pow, bitwise_and, bitwise_or = _binary("Mul"), _binary("Pow"), _binary("BitwiseAnd"), _binary("BitwiseOr")
eq, lt, le = _binary("Equal", truth=True), _binary("Less", truth=True), _binary("LessOrEqual", truth=True)
gt, ge = _binary("Greater", truth=True), _binary("GreaterOrEqual", truth=True)
add, sub = _scaled("Add"), _scaled("Sub")
mm = bmm = matmul = _binary("MatMul")
relu, silu = _activation("Relu"), _activation("Swish")


def div(input: Any, other: Any, *, rounding_mode: str | None = None, out: torch.Tensor | None = None) -> torch.Tensor:
    plain(out)
    operands = promoted(input, other)
    if rounding_mode is not None or not operands[0].is_floating_point():
        raise NotProvided("ONNX divides integers as C does, and rounds no quotients")
    return _made("Div", *operands)


def gelu(input: torch.Tensor, approximate: str = "none") -> torch.Tensor:
    return _made("Gelu", input, approximate=approximate)


def softmax(input: torch.Tensor, dim: int, dtype: torch.dtype | None = None) -> torch.Tensor:
    if not input.ndim:
        raise NotProvided("ONNX has no softmax of a number")
    return _made("Softmax", input if dtype is None else input.to(dtype), axis=dim)


def layer_norm(
    input: torch.Tensor,
    normalized_shape: Sequence[int],
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    eps: float = 1e-5,
) -> torch.Tensor:
    """ONNX's has a weight."""
    given = [one for one in (_weight(input, normalized_shape, weight), bias) if one is not None]
    return _made("LayerNormalization", input, *given, axis=-len(normalized_shape), epsilon=eps)


def rms_norm(
    input: torch.Tensor, normalized_shape: Sequence[int], weight: torch.Tensor | None = None, eps: float | None = None
) -> torch.Tensor:
    """ONNX's has a weight and an epsilon."""
    if eps is None:
        eps = torch.finfo(torch.float64 if input.dtype == torch.float64 else torch.float32).eps
    scale = _weight(input, normalized_shape, weight)
    return _made("RMSNormalization", input, scale, axis=-len(normalized_shape), epsilon=eps)


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
    none_of({**more, "dropout_p": dropout_p or None})
    if query.ndim != 4 or query.shape[0] != key.shape[0]:
        raise NotProvided("ONNX's attention is of batches of one size")
    given = (query, key, value) if attn_mask is None else (query, key, value, attn_mask)
    attributes: dict[str, Any] = {} if scale is None else {"scale": float(scale)}
    return _made("Attention", *given, is_causal=int(is_causal), **attributes)


def rotary_position_embedding(
    input: torch.Tensor,
    sin_table: torch.Tensor,
    cos_table: torch.Tensor,
    interleaved: bool = True,
    inplace: bool = False,
) -> torch.Tensor:
    """ONNX's has heads before positions, and a table for each sequence."""
    plain(inplace=inplace)
    if {sin_table.dtype, cos_table.dtype} != {input.dtype}:
        raise NotProvided("ONNX's tables are of the type of what is rotated")
    cos, sin = (one[: input.shape[1]].expand(input.shape[0], -1, -1) for one in (cos_table, sin_table))
    turned = input.transpose(1, 2)
    found = _made("RotaryEmbedding", turned, cos, sin, turned=(1, 2), interleaved=int(interleaved))
    return found.transpose(1, 2).contiguous()


def _weight(input: torch.Tensor, shape: Sequence[int], weight: torch.Tensor | None) -> torch.Tensor:
    if weight is not None and weight.dtype != input.dtype:
        raise NotProvided("ONNX's result is of the weight's type, not of the promoted one")
    return input.new_ones(tuple(shape)) if weight is None else weight
