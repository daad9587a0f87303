"""Controls: right implementations that compute in another way. None of them may raise an alarm.

Where one has nothing of its own to say (a dtype, a form of the call) it does what ``sound.right`` does.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from functools import cache, partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from conformance import spec as specs
from conformance.implementations import TORCH, Implementation, load
from conformance.ops import _fp8 as fp8
from conformance.ops.rotary_position_embedding import pairs
from conformance.selftest import correct, cumulative
from conformance.selftest import families as of
from conformance.selftest import fp8 as eight_bit
from conformance.selftest.differentiable import differentiable, with_gradients

Value = Callable[..., torch.Tensor | None]
SINGLE = (torch.float32, *of.HALF)

_CONTROLS: dict[str, dict[str, Callable[..., Any]]] = {"float64, rounded once": {}}


def control(name: str, *ops: str) -> Callable[[Callable[[str], Value]], Callable[[str], Value]]:
    """Enter what the decorated function makes of each op as the control ``name``."""

    def enter(make: Callable[[str], Value]) -> Callable[[str], Value]:
        for op in ops:
            _CONTROLS.setdefault(name, {})[op] = partial(of.instead(make(op)), correct.right(op))
        return make

    return enter


def _provider(op: str, function: Callable[..., Any]) -> SimpleNamespace:
    return SimpleNamespace(**{op: correct.here(_refusing(function))})


_UNSIGNED = (torch.uint16, torch.uint32, torch.uint64)


def _refusing(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function, which refuses tensors of other kinds, and complex numbers."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        for one in (*args, *kwargs.values()):
            other = isinstance(one, torch.Tensor) and (
                one.is_complex() or one.dtype in _UNSIGNED or one.layout is not torch.strided
            )
            if other or isinstance(one, complex):
                raise NotImplementedError("complex, sparse and unsigned tensors are left out")
        return function(*args, **kwargs)

    return call


@cache
def controls(op: str) -> tuple[Implementation, ...]:
    """All right implementations of an op, torch itself (its known deviations excused) first."""
    from conformance.selftest import attention, contexts, dispatcher, four_kernels, modes, transforms
    from conformance.selftest.kernels import RIGHT

    if op == attention.OP:
        # What ``sound`` has of it is torch's own, with what is wrong with that.
        _CONTROLS["blocks of 16 keys"] = {op: attention.right()}
    else:
        _CONTROLS["float64, rounded once"].setdefault(op, correct.right(op))
    _CONTROLS.setdefault("Triton kernels", RIGHT)
    _CONTROLS.setdefault("kernels of study notes", four_kernels.RIGHT)
    found = [
        Implementation(name, _provider(op, correct.with_names(op, functions[op])), {op: ("deterministic",)})
        for name, functions in _CONTROLS.items()
        if op in functions
    ]
    if op in with_gradients():
        # It takes calls in other forms by itself, and follows gradients.
        claims = {op: ("deterministic", "gradients")}
        found.append(Implementation("float64 autograd", _provider(op, differentiable(op)), claims))
    found += [
        Implementation(name, _provider(op, correct.with_names(op, make(op, correct.right(op)))), {op: claims})
        for name, ops, make, claims in (*contexts.CONTROLS, *modes.CONTROLS, *dispatcher.CONTROLS, *transforms.CONTROLS)
        if op in ops
    ]
    torchs = load(TORCH)
    return (torchs, *found) if torchs.function(op) else tuple(found)


def _tensors(*args: Any, **kwargs: Any) -> list[torch.Tensor]:
    return [x for x in (*args, *kwargs.values()) if isinstance(x, torch.Tensor)]


def _single(*args: Any, **kwargs: Any) -> bool:
    """Whether all tensors are of one dtype that is computed in float32, and numbers only where none is rounded."""
    found = {x.dtype for x in _tensors(*args, **kwargs)}
    return len(found) == 1 and found <= set(SINGLE)


def _float32(op: str, *args: Any, **kwargs: Any) -> torch.Tensor:
    """torch's float32 answer."""
    wide = [x.float() if isinstance(x, torch.Tensor) else x for x in args]
    named = {name: x.float() if isinstance(x, torch.Tensor) else x for name, x in kwargs.items()}
    return specs.registry()[op].reference(*wide, **named)


# --- elementwise -------------------------------------------------------------------------------------------------

# Not layer_norm nor products, of which torch's CPU has deviations: they are left to the controls that add in other
# orders, in float32 and without torch.
_SINGLE = ("add", "sub", "mul", "div", *of.FLOAT_FUNCTIONS, *of.SIGN_FUNCTIONS, "relu", "silu", "rms_norm")


@control("float32 for half types", *_SINGLE, "softmax")
def _(op: str) -> Value:
    def value(*args: Any, **kwargs: Any) -> torch.Tensor | None:
        half = of.is_half(*_tensors(*args, **kwargs)) and kwargs.get("dtype") is None
        numbers = op in of.ARITHMETIC and len(_tensors(*args)) < 2
        if half and op == "softmax" and args[0].numel() > 1:
            # Not torch's, of whose sums of long rows there is a deviation.
            terms = (args[0].float() - args[0].float().amax(args[1], keepdim=True)).exp()
            return (terms / terms.sum(args[1], keepdim=True)).to(args[0].dtype)
        # Rounded before it goes to an ``out`` that may be a wider one.
        return _float32(op, *args, **kwargs).to(_tensors(*args)[0].dtype) if half and not numbers else None

    return value


@control("blocks of 37 elements", *of.UNARY, *of.BINARY)
def _(op: str) -> Value:
    def value(*args: Any, **kwargs: Any) -> torch.Tensor | None:
        tensors = _tensors(*args)
        shape = torch.broadcast_shapes(*(x.shape for x in tensors))
        # A 0-d tensor takes part in promotion as such; gelu's own deviations are torch's.
        if not shape.numel() or any(x.shape != shape for x in tensors) or not shape or shape.numel() > 4000:
            return None
        flat = [x.reshape(-1) if isinstance(x, torch.Tensor) else x for x in args]
        blocks = [
            correct.right(op)(*(x[i : i + 37] if isinstance(x, torch.Tensor) else x for x in flat), **kwargs)
            for i in range(0, shape.numel(), 37)
        ]
        return torch.cat(blocks).view(shape)

    return value


_NUMPY: dict[str, Callable[..., np.ndarray]] = {
    **{name: getattr(np, name) for name in ("abs", "exp", "sin", "cos", "tanh", "isnan", "isinf")},
    **{name: getattr(np, name) for name in ("bitwise_and", "bitwise_or")},
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "neg": np.negative,
    "bitwise_not": np.invert,
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "relu": lambda x: np.where(x < 0, np.zeros_like(x), x),
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "silu": lambda x: x / (1 + np.exp(-x)),
}
_INEXACT = ("exp", "sin", "cos", "tanh", "rsqrt", "sigmoid", "silu")


@control("NumPy", *_NUMPY)
def _(op: str) -> Value:
    def value(*args: Any, **kwargs: Any) -> torch.Tensor | None:
        tensors = _tensors(*args)
        dtypes = {x.dtype for x in tensors}
        if len(tensors) != len(args) or len(dtypes) != 1 or kwargs or torch.bfloat16 in dtypes:
            return None
        dtype = tensors[0].dtype
        if op == "div" and not dtype.is_floating_point:
            return None
        if op in _INEXACT and dtype not in SINGLE:
            return None
        arrays = [x.detach().numpy() for x in tensors]
        arrays = [x.astype(np.float64) if op in _INEXACT else x for x in arrays]
        with np.errstate(all="ignore"):
            return torch.from_numpy(np.asarray(_NUMPY[op](*arrays))).to(correct.right(op)(*args).dtype)

    return value


# --- sums in other orders ----------------------------------------------------------------------------------------


def _pairwise(terms: torch.Tensor, dim: int) -> torch.Tensor:
    """The sum over a dim as a tree, keeping the dim."""
    while terms.shape[dim] > 1:
        half = terms.shape[dim] // 2
        rest = terms.narrow(dim, 2 * half, terms.shape[dim] - 2 * half)
        terms = torch.cat([terms.narrow(dim, 0, half) + terms.narrow(dim, half, half), rest], dim)
    return terms


def _blocked(terms: torch.Tensor, dim: int) -> torch.Tensor:
    """As a kernel sums with an accumulator for each lane: block after block, then the lanes as a tree.

    Blocks of 24, and larger ones where that would be more than 16: with lanes that add 64 equal squares each, rms_norm
    of 16385 columns has 1.2 times the error that is allowed, which like torch's own does not grow with the row."""
    block = max(24, -(-terms.shape[dim] // 16))
    missing = -terms.shape[dim] % block
    shape = list(terms.shape)
    shape[dim] = missing
    terms = torch.cat([terms, terms.new_zeros(shape)], dim)
    total = terms.narrow(dim, 0, block)
    for start in range(block, terms.shape[dim], block):
        total = total + terms.narrow(dim, start, block)
    return _pairwise(total, dim)


def _reversed(terms: torch.Tensor, dim: int) -> torch.Tensor:
    return terms.flip(dim).sum(dim, keepdim=True)


_SUMS: dict[str, Callable[[torch.Tensor, int], torch.Tensor]] = {
    "sums as a tree": _pairwise,
    "sums in blocks": _blocked,
    "sums from the end": _reversed,
}


def _softmax(total: Callable[[torch.Tensor, int], torch.Tensor]) -> Value:
    def value(input: torch.Tensor, dim: int, dtype: torch.dtype | None = None) -> torch.Tensor | None:
        if (dtype or input.dtype) not in SINGLE or not input.ndim or not input.numel():
            return None
        x = (input if dtype is None else input.to(dtype)).float()
        powers = (x - x.amax(dim, keepdim=True)).exp()
        return powers / total(powers, dim)

    return value


def _rows(input: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    columns = math.prod(map(int, shape))
    return input.float().reshape(input.numel() // columns, columns)


def _norm(op: str, total: Callable[[torch.Tensor, int], torch.Tensor]) -> Value:
    def value(input: torch.Tensor, normalized_shape: Any, *args: Any, **kwargs: Any) -> torch.Tensor | None:
        names = ("weight", "bias", "eps") if op == "layer_norm" else ("weight", "eps")
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        if input.dtype not in SINGLE or not input.numel():
            return None
        x, eps = _rows(input, normalized_shape), given.get("eps")
        if op == "layer_norm":
            x = x - total(x, 1) / x.shape[1]
            eps = 1e-5 if eps is None else eps
        eps = torch.finfo(torch.float32).eps if eps is None else eps
        found = x / (total(x.square(), 1) / x.shape[1] + eps).sqrt()
        if (weight := given.get("weight")) is not None:
            found = (found.double() * weight.reshape(-1).double()).float()
        if (bias := given.get("bias")) is not None:
            found = found + bias.reshape(-1).float()
        return found.view(input.shape)

    return value


for _name, _value in cumulative.CONTROLS.items():
    control(_name, "cumsum")(lambda op, value=_value: value)


for _name, _total in _SUMS.items():
    control(_name, "softmax")(lambda op, total=_total: _softmax(total))
    control(_name, *of.NORMS)(lambda op, total=_total: _norm(op, total))


def _terms(total: Callable[[torch.Tensor, int], torch.Tensor]) -> Value:
    def value(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor | None:
        fits = _single(a, b) and a.ndim >= 2 and b.ndim >= 2 and a.shape[-1] and a.shape[:-2] == b.shape[:-2]
        if not fits or a.numel() * b.shape[-1] > 2**19:
            return None
        terms = a.float().unsqueeze(-1) * b.float().unsqueeze(-3)
        return total(terms, -2).squeeze(-2)

    return value


def _one_by_one(terms: torch.Tensor, dim: int) -> torch.Tensor:
    found = terms.select(dim, 0).clone()
    for k in range(1, terms.shape[dim]):
        found += terms.select(dim, k)
    return found.unsqueeze(dim)


for _name, _total in {**_SUMS, "sums one by one": _one_by_one}.items():
    control(_name, "mm", "bmm", "matmul")(lambda op, total=_total: _terms(total))


@control("K in blocks of 48", "mm", "bmm", "matmul", "addmm")
def _(op: str) -> Value:
    def value(*args: Any, beta: Any = 1, alpha: Any = 1) -> torch.Tensor | None:
        a, b = args[-2:]
        if not _single(a, b) or a.ndim < 2 or b.ndim < 2 or not a.shape[-1]:
            return None
        # Of float32 torch's CPU makes bfloat16 where settings allow it.
        a, b = a.double(), b.double()
        found = sum((a[..., i : i + 48] @ b[..., i : i + 48, :]).float() for i in range(0, a.shape[-1], 48))
        if op != "addmm" or isinstance(found, int):
            return found if isinstance(found, torch.Tensor) else None
        found = torch.tensor(float(alpha)) * found
        return found if beta == 0 else found + torch.tensor(float(beta)) * args[0].float()

    return value


# --- others ------------------------------------------------------------------------------------------------------


@control("torch.bernoulli", "dropout")
def _(op: str) -> Value:
    def value(input: torch.Tensor, p: float = 0.5, training: bool = True) -> torch.Tensor | None:
        if not training or p in (0, 1):
            return None
        return correct.dropped(input, torch.empty(input.shape, dtype=torch.float64).bernoulli_(1 - p) > 0, p)

    return value


@control("NumPy's generator", "dropout")
def _(op: str) -> Value:
    def value(input: torch.Tensor, p: float = 0.5, training: bool = True) -> torch.Tensor | None:
        if not training or p in (0, 1):
            return None
        numbers = np.random.Generator(np.random.Philox(int(torch.randint(2**62, ())))).random(input.numel())
        return correct.dropped(input, torch.from_numpy(numbers >= p).view(input.shape), p)

    return value


@control("complex numbers", "rotary_position_embedding")
def _(op: str) -> Value:
    def value(
        input: torch.Tensor, sin_table: torch.Tensor, cos_table: torch.Tensor, interleaved: bool = True
    ) -> torch.Tensor | None:
        if not input.numel() or not all(x.dtype in SINGLE for x in (input, sin_table, cos_table)):
            return None
        parts = [x.float().contiguous() for x in pairs(input, interleaved)]
        turn = torch.complex(*(table[: input.shape[1], None].float() for table in (cos_table, sin_table)))
        turned = torch.complex(*parts) * turn
        # A product of complex numbers has NaN of infinities; what is beside them is computed as ever.
        finite = torch.isfinite(torch.complex(*parts).abs() * turn.abs())
        result = correct.right(op)(input, sin_table, cos_table, interleaved)
        for part, found in zip(pairs(result, interleaved), (turned.real, turned.imag), strict=True):
            part.copy_(torch.where(finite, found, part))
        return result

    return value


# --- 8-bit floating point ----------------------------------------------------------------------------------------


def _by_reciprocal(right: Callable[..., Any], tensor: Any, scale: Any = None, **kwargs: Any) -> Any:
    quantized, found = right(tensor, scale, **kwargs)
    # The reciprocal of other numbers is not a normal one.
    if scale is not None and not ((scale.abs() >= fp8.LEAST) & (scale.abs() <= 1 / fp8.LEAST)).all():
        return quantized, found
    largest = torch.finfo(quantized.dtype).max
    quotient = tensor.float() * (1 / fp8.spread(found, tensor.shape))
    return quotient.clamp(-largest, largest).to(quantized.dtype).contiguous(), found


def _by_scaled_mm(right: Callable[..., Any], a: Any, b: Any, *args: Any, **kwargs: Any) -> Any:
    result = right(a, b, *args, **kwargs)
    try:
        return fp8.scaled_mm(a, b, *args, **kwargs)
    except NotImplementedError:
        return result


def _promoted(
    right: Callable[..., Any], a: Any, b: Any, a_scale: Any = None, b_scale: Any = None, out_dtype: Any = torch.float16
) -> Any:
    result = right(a, b, a_scale, b_scale, out_dtype)
    (x, x_scale), (y, y_scale) = eight_bit.operands(a, b, a_scale, b_scale)
    if eight_bit.costly(x, y) or not eight_bit.uniform_scales(x_scale, y_scale) or not x.shape[1]:
        return result
    scales = x_scale[:, :1] * y_scale[:, :1].T
    return (eight_bit.cut_off(x, y, fp8.BLOCK) * scales).to(out_dtype)


_CONTROLS["by the reciprocal of the scale"] = {"quantize_fp8": partial(_by_reciprocal, correct.right("quantize_fp8"))}
_CONTROLS["torch._scaled_mm"] = {"fp8_gemm": partial(_by_scaled_mm, correct.right("fp8_gemm"))}
_CONTROLS["14 bits for 128 terms"] = {"fp8_gemm": partial(_promoted, correct.right("fp8_gemm"))}
