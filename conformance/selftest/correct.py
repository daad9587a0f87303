"""Right implementations of every op: the planted defects are built on them, and they are a control themselves.

torch gives shape, dtype, strides, ``out`` and refusals, as it does on CUDA; results of float32 and the half types are
then computed again in float64 and rounded once, since torch's CPU rounds more often than its CUDA does. float64,
integers and bools are torch's own. Formulas are independent of the oracle's code.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import torch

from conformance import cpu_cuda_differences, float_formats, forms
from conformance import spec as specs
from conformance.ops import linear_cross_entropy
from conformance.ops.rotary_position_embedding import pairs
from conformance.spec import Call, parameters

NARROW = (torch.float32, torch.float16, torch.bfloat16)
Value = torch.Tensor | None
"""In float64, of the shape of the result; None where torch's own result stands."""


@cache
def right(op: str) -> Callable[..., Any]:
    """The op done right, with torch's signature."""
    formula = FORMULAS.get(op)

    def call(*args: Any, **kwargs: Any) -> Any:
        # Before anything is written: an operand may be given as out=.
        given = tuple(x.clone() if isinstance(x, torch.Tensor) else x for x in args)
        result = by_torch(op, *args, **kwargs)
        operands = [x for x in args if isinstance(x, torch.Tensor)]
        inplace = bool(kwargs.get("inplace"))
        # The formulas are those of real numbers.
        if formula is None or any(x.is_complex() for x in operands):
            return result
        if any(result is x for x in operands) and not inplace and "out" not in kwargs:
            return result
        dtype, value = formula(*given, **{name: x for name, x in kwargs.items() if name not in ("out", "inplace")})
        if value is None:
            return result
        return result.copy_(value.to(dtype))

    return here(with_names(op, call))


def by_torch(op: str, *args: Any, **kwargs: Any) -> Any:
    """torch's function, with CUDA's shapes, strides and refusals."""
    spec, call = specs.registry()[op], Call(args, kwargs, None)
    if error := spec.cuda_refuses(call):
        raise error(f"torch on CUDA refuses this call of {op}")
    return cpu_cuda_differences.answer(op, spec.reference, call)(*args, **kwargs)


def wide(value: Any, dtype: torch.dtype) -> torch.Tensor:
    """The number or tensor that enters an operation in ``dtype``, as float64."""
    compute = float_formats.compute_dtype(dtype)
    if isinstance(value, torch.Tensor):
        return value.to(dtype).double()
    return torch.tensor(value, dtype=torch.float64).to(compute).double()


# --- elementwise -------------------------------------------------------------------------------------------------


def _sum(sign: int) -> Callable[..., tuple[torch.dtype, Value]]:
    def formula(input: Any, other: Any, alpha: Any = 1) -> tuple[torch.dtype, Value]:
        dtype = torch.result_type(input, other)
        if dtype not in NARROW:
            return dtype, None
        # torch adds what is multiplied with -alpha, which of the int 0 has no sign; NumPy's numbers may wrap.
        alpha = alpha.item() if isinstance(alpha, np.generic) else alpha
        return dtype, wide(input, dtype) + wide(sign * alpha, dtype) * wide(other, dtype)

    return formula


def _mul(input: Any, other: Any) -> tuple[torch.dtype, Value]:
    dtype = torch.result_type(input, other)
    return dtype, wide(input, dtype) * wide(other, dtype) if dtype in NARROW else None


def _div(input: Any, other: Any, rounding_mode: str | None = None) -> tuple[torch.dtype, Value]:
    dtype = torch.result_type(input, other)
    if not dtype.is_floating_point and rounding_mode is None:
        dtype = torch.get_default_dtype()
    if dtype not in NARROW:
        return dtype, None
    if not isinstance(input, torch.Tensor):
        input = torch.tensor(input, dtype=torch.float64).to(dtype)
    return dtype, torch.div(wide(input, dtype), wide(other, dtype), rounding_mode=rounding_mode)


def _pow(input: Any, exponent: Any) -> tuple[torch.dtype, Value]:
    dtype = torch.result_type(input, exponent)
    if dtype not in NARROW:
        return dtype, None
    # Python numbers are rounded to a half type here.
    base, power = (
        wide(x if isinstance(x, torch.Tensor) else torch.tensor(x, dtype=torch.float64).to(dtype), dtype)
        for x in (input, exponent)
    )
    return dtype, torch.pow(base, power)


def _clamp(input: torch.Tensor, min: Any = None, max: Any = None) -> tuple[torch.dtype, Value]:
    """NaN where a bound is NaN; torch 2.11's CPU ignores it."""
    undefined = any(isinstance(bound, float) and math.isnan(bound) for bound in (min, max))
    return torch.float64, torch.full(input.shape, math.nan, dtype=torch.float64) if undefined else None


def _unary(function: Callable[[torch.Tensor], torch.Tensor]) -> Callable[..., tuple[torch.dtype, Value]]:
    def formula(input: torch.Tensor) -> tuple[torch.dtype, Value]:
        dtype = input.dtype if input.is_floating_point() else torch.get_default_dtype()
        return dtype, function(wide(input, dtype)) if dtype in NARROW else None

    return formula


def _silu(x: torch.Tensor) -> torch.Tensor:
    return x / (1 + torch.exp(-x))


def _gelu(input: torch.Tensor, approximate: str = "none") -> tuple[torch.dtype, Value]:
    return input.dtype, _gelu_of(input.double(), approximate) if input.dtype in NARROW else None


def _gelu_of(x: torch.Tensor, approximate: str) -> torch.Tensor:
    if approximate == "tanh":
        # 1 + tanh(y) is 2 / (1 + exp(-2 y)).
        return x / (1 + torch.exp(-2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    return x / 2 * torch.special.erfc(-x * math.sqrt(0.5))


# --- rows --------------------------------------------------------------------------------------------------------


def _softmax(input: torch.Tensor, dim: int, dtype: torch.dtype | None = None) -> tuple[torch.dtype, Value]:
    dtype = dtype or input.dtype
    x = wide(input, dtype)
    if not x.ndim or not x.numel() or dtype not in NARROW:
        return dtype, None
    powers = (x - x.amax(dim, keepdim=True)).exp()
    return dtype, powers / powers.sum(dim, keepdim=True)


def _log_softmax(input: torch.Tensor, dim: int, dtype: torch.dtype | None = None) -> tuple[torch.dtype, Value]:
    dtype = dtype or input.dtype
    x = wide(input, dtype)
    return dtype, x.log_softmax(dim) if x.numel() and dtype in NARROW else None


def _cross_entropy(input: torch.Tensor, target: torch.Tensor, *args: Any, **kwargs: Any) -> tuple[torch.dtype, Value]:
    tensors = [one for one in (input, target, *args, *kwargs.values()) if isinstance(one, torch.Tensor)]
    dtype = input.dtype
    for one in tensors:
        # Class indices are wider than no floating dtype.
        dtype = torch.promote_types(dtype, one.dtype)
    if dtype not in NARROW:
        return dtype, None

    def doubled(value: Any) -> Any:
        return value.double() if isinstance(value, torch.Tensor) and value.is_floating_point() else value

    named = {name: doubled(value) for name, value in kwargs.items()}
    return dtype, torch.nn.functional.cross_entropy(doubled(input), doubled(target), *map(doubled, args), **named)


def _linear_cross_entropy(
    input: torch.Tensor, linear_weight: torch.Tensor, target: torch.Tensor, **kwargs: Any
) -> tuple[torch.dtype, Value]:
    dtype = torch.promote_types(input.dtype, target.dtype)
    if dtype not in NARROW:
        return dtype, None
    operands = {"input": input, "linear_weight": linear_weight, "target": target} | kwargs
    wide: dict[str, Any] = {
        name: one.double() if isinstance(one, torch.Tensor) and one.is_floating_point() else one
        for name, one in operands.items()
    }
    return dtype, linear_cross_entropy.composed(**wide)


def _total(
    input: torch.Tensor, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> tuple[torch.dtype, Value]:
    dtype = dtype or (input.dtype if input.is_floating_point() else torch.int64)
    return dtype, wide(input, dtype).sum(dim, keepdim) if dtype in NARROW else None


def _cumulative(
    input: torch.Tensor, dim: int, *, dtype: torch.dtype | None = None, out: torch.Tensor | None = None
) -> tuple[torch.dtype, Value]:
    dtype = dtype or (input.dtype if input.is_floating_point() else torch.int64)
    return dtype, wide(input, dtype).cumsum(dim) if dtype in NARROW else None


def _mean(
    input: torch.Tensor, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> tuple[torch.dtype, Value]:
    dtype = dtype or input.dtype
    return dtype, wide(input, dtype).mean(dim, keepdim) if dtype in NARROW else None


def _logsumexp(
    input: torch.Tensor, dim: Any, keepdim: bool = False, *, out: torch.Tensor | None = None
) -> tuple[torch.dtype, Value]:
    dtype = input.dtype if input.is_floating_point() else torch.get_default_dtype()
    return dtype, wide(input, dtype).logsumexp(dim, keepdim) if dtype in NARROW else None


def _dims(shape: Any) -> tuple[int, ...]:
    return tuple(range(-len(shape), 0))


def _layer_norm(
    input: torch.Tensor, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> tuple[torch.dtype, Value]:
    x, dims = input.double(), _dims(normalized_shape)
    if not x.numel() or input.dtype not in NARROW:
        return input.dtype, None
    centered = x - x.mean(dims, keepdim=True)
    found = centered / (centered.square().mean(dims, keepdim=True) + eps).sqrt()
    found = found if weight is None else found * weight.double()
    return input.dtype, found if bias is None else found + bias.double()


def _rms_norm(
    input: torch.Tensor, normalized_shape: Any, weight: Any = None, eps: float | None = None
) -> tuple[torch.dtype, Value]:
    x = input.double()
    if not x.numel() or input.dtype not in NARROW:
        return input.dtype, None
    eps = torch.finfo(float_formats.compute_dtype(input.dtype)).eps if eps is None else eps
    found = x / (x.square().mean(_dims(normalized_shape), keepdim=True) + eps).sqrt()
    return input.dtype, found if weight is None else found * weight.double()


# --- products ----------------------------------------------------------------------------------------------------


def _matmul(input: torch.Tensor, mat2: torch.Tensor) -> tuple[torch.dtype, Value]:
    return input.dtype, torch.matmul(input.double(), mat2.double()) if input.dtype in NARROW else None


def _addmm(
    input: torch.Tensor, mat1: torch.Tensor, mat2: torch.Tensor, beta: Any = 1, alpha: Any = 1
) -> tuple[torch.dtype, Value]:
    dtype = mat1.dtype
    # float64 too: the CPU's matrix library multiplies an operand with alpha, which may overflow or become 0.
    found = wide(alpha, dtype) * (mat1.double() @ mat2.double())
    return dtype, found if beta == 0 else found + wide(beta, dtype) * input.double()


# --- others ------------------------------------------------------------------------------------------------------


def dropped(input: torch.Tensor, kept: torch.Tensor, p: float) -> torch.Tensor:
    """``input`` in float64, scaled where kept and times 0 elsewhere."""
    return torch.where(kept, input.double() / (1 - p), input.double() * 0)


def _dropout(input: torch.Tensor, p: float = 0.5, training: bool = True) -> tuple[torch.dtype, Value]:
    if not training or p in (0, 1):
        return input.dtype, None
    return input.dtype, dropped(input, torch.rand(input.shape, dtype=torch.float64) >= p, p)


def _rotary(
    input: torch.Tensor, sin_table: torch.Tensor, cos_table: torch.Tensor, interleaved: bool = True
) -> tuple[torch.dtype, Value]:
    return input.dtype, rotated(input, sin_table, cos_table, interleaved) if input.dtype in NARROW else None


def rotated(
    input: torch.Tensor, sin_table: torch.Tensor, cos_table: torch.Tensor, interleaved: bool = True
) -> torch.Tensor:
    """The rotation in float64."""
    x0, x1 = (part.double() for part in pairs(input, interleaved))
    sin, cos = (table[: input.shape[1], None].double() for table in (sin_table, cos_table))
    result = torch.empty(input.shape, dtype=torch.float64)
    for part, value in zip(pairs(result, interleaved), (x0 * cos - x1 * sin, x0 * sin + x1 * cos), strict=True):
        part.copy_(value)
    return result


def _norm_and_rotation(
    x: torch.Tensor,
    weight: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    eps: float = 1e-6,
    *,
    interleaved: bool = False,
    head_dim: int | None = None,
) -> tuple[torch.dtype, Value]:
    if not x.numel() or x.dtype not in NARROW:
        return x.dtype, None
    # Heads as a dim of their own, and each number of a table once.
    # A NumPy scalar of 8 bits does not hold what is computed from it.
    size = cos.shape[1] if head_dim is None else int(head_dim)
    step = 2 if interleaved and cos.shape[1] == size else 1
    normalized = x.double() / (x.double().square().mean(-1, keepdim=True) + eps).sqrt() * weight.double()
    sin, cos = (table[:, : step * size // 2 : step] for table in (sin, cos))
    return x.dtype, rotated(normalized.unflatten(2, (-1, size)), sin, cos, interleaved).flatten(2)


def _gated_mlp(
    x: torch.Tensor, gate_weight: torch.Tensor, up_weight: torch.Tensor, activation: str = "silu"
) -> tuple[torch.dtype, Value]:
    if x.dtype not in NARROW:
        return x.dtype, None
    gate, up = (x.double() @ weight.double().mT for weight in (gate_weight, up_weight))
    activated = _silu(gate) if activation == "silu" else _gelu_of(gate, activation.removeprefix("gelu_"))
    return x.dtype, activated * up


FORMULAS: dict[str, Callable[..., tuple[torch.dtype, Value]]] = {
    "add": _sum(1),
    "sub": _sum(-1),
    "mul": _mul,
    "div": _div,
    "pow": _pow,
    "clamp": _clamp,
    **{name: _unary(getattr(torch, name)) for name in ("exp", "sin", "cos", "rsqrt", "tanh", "sigmoid")},
    "silu": _unary(_silu),
    "gelu": _gelu,
    "softmax": _softmax,
    "log_softmax": _log_softmax,
    "cross_entropy": _cross_entropy,
    "linear_cross_entropy": _linear_cross_entropy,
    "sum": _total,
    "cumsum": _cumulative,
    "mean": _mean,
    "logsumexp": _logsumexp,
    "layer_norm": _layer_norm,
    "rms_norm": _rms_norm,
    **dict.fromkeys(("mm", "bmm", "matmul"), _matmul),
    "addmm": _addmm,
    "dropout": _dropout,
    "rotary_position_embedding": _rotary,
    "fused_rmsnorm_rope": _norm_and_rotation,
    "fused_gated_mlp": _gated_mlp,
}
"""(the dtype that is computed in, the value) by op; an op that is exact has none."""


def here(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, which makes its tensors on the CPU, whatever the default device is."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if torch.get_default_device().type == "cpu":
            return function(*args, **kwargs)
        with torch.device("cpu"):
            return function(*args, **kwargs)

    return call


def with_names(op: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function for calls in other forms, too: operands have torch's names, ``inplace`` comes by position and as
    0 or 1, factors are 0-d tensors, operands require a gradient (of which the result knows nothing)."""
    required, every = parameters(op, required=True), parameters(op)
    inplace = every.index("inplace") if "inplace" in every else None
    factors = forms.FACTORS if forms.is_torchs(op) else ()

    @torch.no_grad()
    def call(*args: Any, **kwargs: Any) -> Any:
        for name in {*kwargs}.intersection(factors):
            kwargs[name] = kwargs[name].item() if isinstance(kwargs[name], torch.Tensor) else kwargs[name]
        if inplace is not None and len(args) == inplace + 1:
            args, kwargs["inplace"] = args[:-1], args[-1]
        if type(kwargs.get("inplace")) is int:
            kwargs["inplace"] = bool(kwargs["inplace"])
        if all(name in kwargs for name in required[len(args) :]):
            args = (*args, *(kwargs.pop(name) for name in required[len(args) :]))
        return function(*args, **kwargs)

    return call
