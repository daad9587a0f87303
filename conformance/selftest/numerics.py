"""Planted defects of values: NaN and infinities, zeros and subnormals, rounding, precision, integers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from conformance.selftest import families as of
from conformance.selftest.defect_registry import defect, plant

INF = math.inf


def _floats(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[..., Any]:
    """A mistake in the last step, of floating-point results alone."""
    return of.after(lambda result: change(result) if result.is_floating_point() else result)


def _subnormals_flushed(x: torch.Tensor) -> torch.Tensor:
    return torch.where(x.abs() < torch.finfo(x.dtype).smallest_normal, torch.zeros_like(x), x)


_LAST_STEPS: dict[str, tuple[str, Callable[[torch.Tensor], torch.Tensor], tuple[str, ...]]] = {
    "nan": (
        "NaN becomes 0",
        lambda x: x.nan_to_num(nan=0.0, posinf=INF, neginf=-INF),
        (*of.FLOATING, "rotary_position_embedding"),
    ),
    "inf": (
        "an infinity becomes the largest number",
        lambda x: torch.where(x.isinf(), x.nan_to_num(nan=math.nan), x),
        ("add", "sub", "mul", "div", "pow", "exp", "rsqrt", "abs", "neg", "relu", "clamp", "mm", "bmm", "gelu"),
    ),
    "inf_is_nan": (
        "an infinity becomes NaN",
        lambda x: x.masked_fill(x.isinf(), math.nan),
        ("add", "mul", "div", "exp", "silu", "addmm", "matmul", "rms_norm"),
    ),
    "subnormals": (
        "subnormal results become 0",
        _subnormals_flushed,
        ("add", "sub", "mul", "div", "abs", "neg", "relu", "exp", "clamp", "gelu", "rotary_position_embedding"),
    ),
    "negative_zero": (
        "-0. becomes 0.",
        lambda x: x + 0.0,
        ("mul", "neg", "sin", "tanh", "silu", "gelu", "div"),
    ),
}
for _name, (_about, _change, _ops) in _LAST_STEPS.items():
    for _op in _ops:
        plant(_op, _name, _name.replace("_", " "), "values", _floats(_change), _about)


# --- precision ---------------------------------------------------------------------------------------------------


def _through(dtype: torch.dtype, narrow: torch.dtype) -> Callable[..., Any]:
    """Operands of ``dtype`` pass through a narrower type."""
    return of.before(lambda x: x.to(narrow).to(dtype) if x.dtype == dtype else x)


for _op in (*of.FLOATING, *of.COMPARISONS, "isinf", "dropout", "rotary_position_embedding"):
    plant(
        _op,
        "through_single",
        "precision",
        "values",
        _through(torch.float64, torch.float32),
        "float64 by way of float32",
    )
for _op in ("add", "mul", "exp", "sin", "eq", "lt", "isinf", "mm", "softmax", "layer_norm", "clamp"):
    plant(
        _op, "through_half", "precision", "values", _through(torch.float32, torch.float16), "float32 by way of float16"
    )
for _op in ("mm", "bmm", "addmm", "matmul"):
    # TF32 keeps 10 bits after the point.
    _tf32 = of.before(lambda x: (x.view(torch.int32) & -8192).view(x.dtype) if x.dtype == torch.float32 else x)
    plant(_op, "tf32", "precision", "values", _tf32, "TF32 where IEEE float32 was asked for")
for _op in ("add", "sub", "mul", "div", "eq", "lt", "ge", "clamp", "abs", "neg", "relu"):
    _wrong = of.before(lambda x: x.double().long() if x.dtype == torch.int64 else x)
    plant(_op, "int64_through_double", "precision", "values", _wrong, "int64 by way of float64")
for _op in ("add", "mul", "gt", "bitwise_or"):
    _wrong = of.before(lambda x: x.int().long() if x.dtype == torch.int64 else x)
    plant(_op, "int64_through_int32", "precision", "values", _wrong, "int64 by way of int32")
for _op in ("exp", "lt", "gt", "div", "clamp", "relu", "abs"):
    _wrong = of.instead(
        lambda *args, _op=_op, **kwargs: _as_signed(_op, *args, **kwargs),
    )
    plant(_op, "uint8_signed", "integers", "values", _wrong, "uint8 is taken for int8")


def _as_signed(op: str, *args: Any, **kwargs: Any) -> torch.Tensor | None:
    from conformance.selftest import correct

    tensors = [x for x in (*args, *kwargs.values()) if isinstance(x, torch.Tensor)]
    if not tensors or any(x.dtype != torch.uint8 for x in tensors):
        return None

    def signed(x: Any) -> Any:
        return x.view(torch.int8) if isinstance(x, torch.Tensor) else x

    try:
        found = correct.right(op)(*map(signed, args), **{k: signed(x) for k, x in kwargs.items()})
    except RuntimeError:  # a number that int8 does not hold
        return None
    return found.view(torch.uint8) if found.dtype == torch.int8 else found


def _truncated(value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """float32 to a half type, towards zero."""
    rounded = value.to(dtype)
    size = rounded.float().abs()
    step = rounded.view(torch.int16) - 1
    beyond = size.isfinite() & (size > value.abs())
    return torch.where(beyond, step.view(dtype), rounded)


def _wide(op: str, last: Callable[[torch.Tensor, torch.dtype], torch.Tensor]) -> Callable[..., Any]:
    """Half operands go through the op as float32, and its result through ``last``."""
    from conformance.selftest import correct

    def value(*args: Any, **kwargs: Any) -> torch.Tensor | None:
        tensors = [x for x in (*args, *kwargs.values()) if isinstance(x, torch.Tensor)]
        if not of.is_half(*tensors) or (op == "softmax" and kwargs.get("dtype") is not None):
            return None
        wide = [x.float() if isinstance(x, torch.Tensor) else x for x in args]
        found = correct.right(op)(
            *wide, **{k: x.float() if isinstance(x, torch.Tensor) else x for k, x in kwargs.items()}
        )
        return last(found, tensors[0].dtype)

    return of.instead(value)


_ROUNDED = ("add", "sub", "mul", "div", "exp", "sigmoid", "tanh", "silu", "gelu", *of.ROWS, *of.PRODUCTS)
for _op in (*_ROUNDED, "rotary_position_embedding"):
    plant(_op, "truncates", "rounding", "values", _wide(_op, _truncated), "half results are rounded towards zero")
for _op in ("mul", "silu", "rms_norm", "mm"):
    _via = _wide(_op, lambda value, dtype: value.bfloat16() if dtype == torch.float16 else value.to(dtype))
    plant(_op, "float16_through_bfloat16", "rounding", "values", _via, "float16 by way of bfloat16")
for _op in ("cos", "sin", "pow", "rsqrt", "sigmoid"):

    def _away(value: torch.Tensor) -> torch.Tensor:
        if value.dtype != torch.float32:
            return value
        plain = value.isfinite() & (value.abs() > 1e-30) & (value.abs() < 1e30)
        return torch.where(plain, (value.view(torch.int32) + 16).view(value.dtype), value)

    plant(_op, "sixteen_ulps", "precision", "values", of.after(_away), "float32 results are sixteen ulps off")


# --- integers ----------------------------------------------------------------------------------------------------


def _saturated(function: Callable[..., torch.Tensor]) -> Callable[..., Any]:
    def value(*args: Any, **kwargs: Any) -> torch.Tensor | None:
        tensors = [x for x in args if isinstance(x, torch.Tensor)]
        dtype = torch.result_type(*args) if len(args) == 2 else tensors[0].dtype
        if dtype not in (torch.int8, torch.int16, torch.int32, torch.uint8):
            return None
        wide = [x.double() if isinstance(x, torch.Tensor) else float(x) for x in args]
        limits = torch.iinfo(dtype)
        return function(*wide, **kwargs).clamp(limits.min, limits.max).to(dtype)

    return of.instead(value)


for _op in ("add", "sub", "mul", "neg", "abs"):
    plant(
        _op, "saturates", "integers", "values", _saturated(getattr(torch, _op)), "integers saturate where torch's wrap"
    )


@defect("pow", "integers")
def integers_through_float(right, input, exponent, *, out=None):
    """Powers of integers by way of float32."""
    result = right(input, exponent, out=out)
    if out is None and not result.is_floating_point() and isinstance(input, torch.Tensor):
        wide = exponent.double() if isinstance(exponent, torch.Tensor) else float(exponent)
        found = torch.pow(input.double(), wide).float()
        return result.copy_(found.clamp(-(2.0**62), 2.0**62).long().to(result.dtype))
    return result


@defect("mul add sub", "precision", name="number_in_float64")
def _number_in_float64(right: Callable[..., Any], input: Any, other: Any, *args: Any, **kwargs: Any) -> Any:
    """A Python float beside float32 is not rounded to it before the result is computed."""
    if type(other) is float and isinstance(input, torch.Tensor) and input.dtype == torch.float32 and not kwargs:
        return right(input.double(), other, *args).float()
    return right(input, other, *args, **kwargs)


@defect("gt lt eq", "precision", name="compares_in_float64")
def _compares_in_float64(right: Callable[..., Any], input: Any, other: Any, *, out: Any = None) -> Any:
    """A Python number beside float32 is not rounded to it before they are compared."""
    if type(other) in (int, float) and isinstance(input, torch.Tensor) and input.dtype == torch.float32:
        return right(input.double(), other, out=out)
    return right(input, other, out=out)


@defect("pow", "specials", name="root_of_root")
def _root_of_root(right: Callable[..., Any], input: Any, exponent: Any, *, out: Any = None) -> Any:
    """A power of a quarter is the root of the root, which is NaN for -inf."""
    number = type(exponent) is float and exponent == 0.25 and out is None
    if number and isinstance(input, torch.Tensor) and input.is_floating_point():
        return input.sqrt().sqrt()
    return right(input, exponent, out=out)
