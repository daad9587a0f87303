"""What the FP8 operators share: torch compositions of them, their formulas in float64, and the calls to try.

scale = amax / largest, amax over finite elements; quantized = tensor / scale, rounded to nearest, ties to even, and
saturated; the formats are those of the OCP 8-bit floating point specification 1.0.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import torch
from hypothesis import strategies as st
from msgspec.structs import replace

from conformance import features, float_formats
from conformance.cases import Argument, Case
from conformance.features import Features
from conformance.ops import _sizes
from strategies import dtypes as dtype_names
from strategies import shapes, tensors
from strategies.shapes import Shape
from strategies.specs import Special, TensorSpec
from strategies.values import SPECIALS, encode

FORMATS = (torch.float8_e4m3fn, torch.float8_e5m2)
WIDE = (torch.float16, torch.bfloat16, torch.float32)
FP8 = dtype_names.FP8
INPUTS = ("float32", "float16", "bfloat16")
GRANULARITIES = ("tensor", "row", "block")
BLOCK = 128
LEAST = 2.0**-126
"""The smallest scale that is found: float32's smallest normal number."""
SLACK = 2.0**-22
"""How far a quotient may be off, relative: an ulp of the scale, its reciprocal and the product rounded."""


# --- of torch's operators ----------------------------------------------------------------------------------------


def check_tensor(tensor: object, dtypes: tuple[torch.dtype, ...]) -> None:
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"a tensor is wanted, not {type(tensor).__name__}")
    if tensor.dtype not in dtypes:
        raise NotImplementedError(f"dtype {tensor.dtype}")


def check_dtype(dtype: object, dtypes: tuple[torch.dtype, ...]) -> None:
    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"a dtype is wanted, not {type(dtype).__name__}")
    if dtype not in dtypes:
        raise NotImplementedError(f"dtype {dtype}")


def scale_shape(shape: Shape, granularity: str) -> Shape:
    """The shape of the scales of a tensor of ``shape``."""
    if granularity not in GRANULARITIES:
        raise ValueError(f"granularity {granularity!r}")
    if granularity == "tensor":
        return ()
    if not shape:
        raise RuntimeError("a 0-d tensor has no rows")
    return (*shape[:-1], 1 if granularity == "row" else -(-shape[-1] // BLOCK))


def spread(scale: torch.Tensor, shape: Shape) -> torch.Tensor:
    """The scale of each element of a tensor of ``shape``. Raises RuntimeError where there are not as many as needed."""
    if tuple(scale.shape) not in [scale_shape(shape, one) for one in GRANULARITIES[: 3 if shape else 1]]:
        raise RuntimeError(f"scales {tuple(scale.shape)} of a tensor {tuple(shape)}")
    if scale.ndim and scale.shape[-1] > 1:
        scale = scale.repeat_interleave(BLOCK, -1)[..., : shape[-1]]
    return scale.broadcast_to(shape)


def check_scale(scale: object) -> None:
    if not isinstance(scale, torch.Tensor):
        raise TypeError(f"a tensor is wanted, not {type(scale).__name__}")
    if scale.dtype != torch.float32:
        raise RuntimeError(f"scales of {scale.dtype}")


def quantize(
    tensor: torch.Tensor,
    scale: torch.Tensor | None = None,
    *,
    dtype: torch.dtype = torch.float8_e4m3fn,
    granularity: str = "tensor",
) -> tuple[torch.Tensor, torch.Tensor]:
    """``quantize_fp8``, of torch's operators."""
    check_tensor(tensor, WIDE)
    check_dtype(dtype, FORMATS)
    shape, largest, wide = scale_shape(tensor.shape, granularity), torch.finfo(dtype).max, tensor.float()
    if scale is None:
        finite = torch.where(wide.isfinite(), wide.abs(), 0.0)
        if granularity == "block":
            padded = torch.nn.functional.pad(finite, (0, -finite.shape[-1] % BLOCK))
            finite = padded.unflatten(-1, (shape[-1], BLOCK))
        parts = finite.reshape(*shape, -1) if finite.numel() else wide.new_zeros(*shape, 1)
        amax = parts.amax(-1)
        scale = torch.where(amax == 0, 1.0, (amax / largest).clamp_min(LEAST))
    else:
        check_scale(scale)
    each = spread(scale, tensor.shape)
    quotient = torch.where((wide == 0) & (each == 0), wide, wide / each)
    return quotient.clamp(-largest, largest).to(dtype).contiguous(), scale


def dequantize(quantized: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype = torch.float16) -> torch.Tensor:
    """``dequantize_fp8``, of torch's operators."""
    check_tensor(quantized, FORMATS)
    check_dtype(dtype, WIDE)
    check_scale(scale)
    return (quantized.float() * spread(scale, quantized.shape)).to(dtype).contiguous()


def gemm(
    a: torch.Tensor,
    b: torch.Tensor,
    a_scale: torch.Tensor | None = None,
    b_scale: torch.Tensor | None = None,
    out_dtype: torch.dtype = torch.float16,
) -> torch.Tensor:
    """``fp8_gemm``: torch._scaled_mm on a GPU where that takes the call, else of torch's operators in float32."""
    left, right = _operands(a, b, a_scale, b_scale, out_dtype)
    if a.is_cuda and (found := by_scaled_mm(left, right, out_dtype)) is not None:
        return found
    (x, x_scale), (y, y_scale) = ((matrix.float(), spread(scale, matrix.shape)) for matrix, scale in (left, right))
    total = x.new_zeros(len(x), len(y))
    for k in range(0, x.shape[1], BLOCK):
        part = slice(k, k + BLOCK)
        total += (x[:, part] @ y[:, part].mT) * (x_scale[:, k, None] * y_scale[:, k])
    return total.to(out_dtype)


def scaled_mm(
    a: torch.Tensor,
    b: torch.Tensor,
    a_scale: torch.Tensor | None = None,
    b_scale: torch.Tensor | None = None,
    out_dtype: torch.dtype = torch.float16,
) -> torch.Tensor:
    """``fp8_gemm`` by torch._scaled_mm alone. Raises NotImplementedError for calls that it does not take."""
    found = by_scaled_mm(*_operands(a, b, a_scale, b_scale, out_dtype), out_dtype)
    if found is None:
        raise NotImplementedError("torch._scaled_mm does not take this call")
    return found


Scaled = tuple[torch.Tensor, torch.Tensor]


def _operands(a, b, a_scale, b_scale, out_dtype) -> tuple[Scaled, Scaled]:
    """The 8-bit rows of a and of b transposed, and their scales."""
    for matrix in (a, b):
        check_tensor(matrix, FORMATS + WIDE)
    if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[0]:
        raise RuntimeError(f"{tuple(a.shape)} times {tuple(b.shape)}")
    check_dtype(out_dtype, WIDE)
    return _operand(a, a_scale), _operand(b.mT, b_scale, transposed=True)


def _operand(rows: torch.Tensor, scale: torch.Tensor | None, transposed: bool = False) -> Scaled:
    if scale is not None:
        check_scale(scale)
        if transposed and scale.ndim:
            if scale.ndim != 2:
                raise RuntimeError(f"scales {tuple(scale.shape)}")
            scale = scale.mT
        spread(scale, rows.shape)
    if rows.dtype in WIDE:
        return quantize(rows, scale, granularity="row")
    return rows, torch.ones((), dtype=torch.float32, device=rows.device) if scale is None else scale


def by_scaled_mm(left: Scaled, right: Scaled, out_dtype: torch.dtype) -> torch.Tensor | None:
    """None where torch._scaled_mm does not take the call: it wants sizes that are multiples of 16, no two float8_e5m2,
    and one scale for each matrix, or one for each row and column and then (on a GPU) a bfloat16 result; and a GPU with
    FP8."""
    (a, a_scale), (b, b_scale) = left, right
    rows = (a.shape[0], 1), (b.shape[0], 1)
    by_row = (tuple(a_scale.shape), tuple(b_scale.shape)) == rows
    fits = not (a.shape[1] % 16 or b.shape[0] % 16) and a.numel() and b.numel()
    one = (a_scale.ndim, b_scale.ndim) == (0, 0) or (by_row and (out_dtype == torch.bfloat16 or not a.is_cuda))
    if not (fits and one) or (a.dtype, b.dtype) == (torch.float8_e5m2,) * 2:
        return None
    scales = (a_scale.contiguous(), b_scale.mT.contiguous()) if by_row else (a_scale, b_scale)
    operands = a.contiguous(), b.contiguous().mT
    try:
        return torch._scaled_mm(*operands, *scales, out_dtype=out_dtype, use_fast_accum=False)
    except (RuntimeError, ValueError):
        return None


# --- in float64 --------------------------------------------------------------------------------------------------


def spread_exactly(scale: torch.Tensor, shape: Shape) -> np.ndarray:
    """The scale of each element, float64."""
    return spread(scale, shape).double().numpy()


def found_scale(tensor: torch.Tensor, dtype: torch.dtype, granularity: str) -> np.ndarray:
    """amax / largest in float64, at least ``LEAST``; 1 where amax is 0."""
    x = tensor.double().numpy()
    shape = scale_shape(tensor.shape, granularity)
    finite = np.where(np.isfinite(x), np.abs(x), 0.0)
    if granularity == "block":
        finite = np.pad(finite, [(0, 0)] * (x.ndim - 1) + [(0, -x.shape[-1] % BLOCK)])
    parts = finite.reshape(*shape, -1) if finite.size else np.zeros((*shape, 1))
    amax = parts.max(axis=-1)
    return np.where(amax == 0, 1.0, np.maximum(amax / float_formats.FORMATS[dtype].max, LEAST))


def rounded(values: np.ndarray, dtype: torch.dtype) -> np.ndarray:
    """float64 values to the nearest number of the format, ties to even, saturated; NaN stays NaN."""
    largest = float_formats.FORMATS[dtype].max
    bits = encode(np.ascontiguousarray(np.clip(values, -largest, largest)), dtype_names.FORMATS[_name(dtype)])
    return torch.from_numpy(bits.view(np.uint8)).view(dtype).double().numpy().reshape(values.shape)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def neighbours(
    tensor: torch.Tensor, scale: np.ndarray, dtype: torch.dtype, given: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The numbers that an element may be quantized to, as ``middle - apart`` and ``middle + apart``, and where that is
    judged. They are one but where the quotient is a tie within ``SLACK``. Division by a power of two is exact.

    :param scale: That of each element.
    :param given: Whether the caller gave it."""
    x = tensor.double().numpy()
    with np.errstate(all="ignore"):
        quotient = np.where((scale == 0) & (x == 0), 0.0, x / scale)
        exact = (np.abs(np.frexp(scale)[0]) == 0.5) if given else np.zeros(scale.shape, bool)
        slack = np.where(exact, 0.0, SLACK)
        low, high = (rounded(quotient * (1 + sign * slack), dtype) for sign in (-1, 1))
    magnitude = np.abs(scale)
    normal = (magnitude == 0) | ~np.isfinite(scale) | ((magnitude >= LEAST) & (magnitude <= 1 / LEAST))
    return (low + high) / 2, np.abs(high - low) / 2, normal


def tensor_core_sums(
    a: np.ndarray,
    b: np.ndarray,
    terms: int,
    formats: tuple[torch.dtype, torch.dtype],
    apart: tuple[np.ndarray, np.ndarray] | None = None,
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """``a`` (M, K) @ ``b`` (N, K).T of finite 8-bit numbers in float64 as an H100's tensor cores add it up, ``terms``
    of K at a time, and the most that can be cut off in doing so.

    32 products are aligned to the largest of them and of the sum so far, and cut off 13 bits below its leading one, as
    their sum is (DeepSeek-V3, arXiv:2412.19437, section 3.3.2). The exponent of a product is the sum of its factors',
    of which a subnormal one has that of the smallest normal number (seen on an H200).

    :param apart: How far an element may be from that of ``a`` and of ``b``: what is cut off a product of these is
        another amount for each of its numbers, and at most a unit.
    """
    a_apart, b_apart = apart or (np.zeros(a.shape), np.zeros(b.shape))
    sum, sum_apart, lost = np.zeros((3, a.shape[0], b.shape[0]))
    exponents = [
        np.where(x == 0, _NONE, np.maximum(_exponent(np.abs(x) + off), float_formats.FORMATS[dtype].least))
        for x, off, dtype in zip((a, b), (a_apart, b_apart), formats, strict=True)
    ]
    for first in range(0, a.shape[1], 32):
        part = slice(first, first + 32)
        x, y, x_apart, y_apart = a[:, None, part], b[None, :, part], a_apart[:, None, part], b_apart[None, :, part]
        added = np.concatenate([x * y, sum[..., None]], axis=2)
        off = np.concatenate([np.abs(x) * y_apart + x_apart * (np.abs(y) + y_apart), sum_apart[..., None]], axis=2)
        largest = (exponents[0][:, None, part] + exponents[1][None, :, part]).max(axis=2)
        unit = _unit(np.maximum(largest, _exponent(np.abs(sum) + sum_apart)))[..., None]
        kept = _cut(added, unit)
        whole, whole_apart = kept.sum(axis=2), np.where(off > 0, off + unit, 0.0).sum(axis=2)
        # A sum that ties change may be as large as the next power of two.
        unit_of_sum = _unit(_exponent(np.abs(whole) + whole_apart))
        sum = _cut(whole, unit_of_sum)
        sum_apart = np.where(whole_apart > 0, whole_apart + unit_of_sum, 0.0)
        up, down = (np.where(off > 0, unit, np.maximum(side, 0)).sum(axis=2) for side in (added - kept, kept - added))
        # What is cut off positive and off negative terms cancels in part, which depends on the order of terms.
        lost += np.maximum(up, down) + np.where(whole_apart > 0, unit_of_sum, np.abs(whole - sum))
        if (first + 32) % terms == 0 or first + 32 >= a.shape[1]:
            yield sum, lost
            sum, sum_apart, lost = np.zeros((3, *sum.shape))


_NONE = -1000
"""The exponent of zero: far below all others."""


def _exponent(values: np.ndarray) -> np.ndarray:
    """That of the leading bit."""
    return np.where(values == 0, _NONE, np.frexp(values)[1] - 1)


def _cut(values: np.ndarray, unit: np.ndarray) -> np.ndarray:
    return np.trunc(values / unit) * unit


def _unit(exponent: np.ndarray) -> np.ndarray:
    """Return the last bit that is kept beside 2^``exponent``: what is cut off is less."""
    return np.ldexp(1.0, exponent - 13)


# --- calls -------------------------------------------------------------------------------------------------------


@st.composite
def shapes_of_tensors(draw: st.DrawFn, budget: int = _sizes.ELEMENTS, large: int = 0) -> Shape:
    """Any, mostly with columns around multiples of a block; now and then rows longer than a tile. ``large``: of up to
    so many elements, half of them many short rows."""
    if large:
        columns = draw(st.sampled_from((1, 3, 8)))
        rows = draw(shapes.near(large // 8)), columns
        return rows if draw(st.booleans()) else draw(shapes.large(2, large))
    match draw(st.sampled_from(("any", "any", "any", "rows", "edges", "edges", "long"))):
        case "any":
            return draw(shapes.shapes(0, 5, budget=budget))
        case "rows":
            return draw(shapes.reductions(min_size=1, max_rows=_sizes.ROWS, max_columns=_sizes.COLUMNS, budget=budget))
        case "edges":
            return draw(st.integers(1, 40)), draw(st.sampled_from((127, 128, 129, 255, 256, 257, 300, 385)))
    return (*draw(st.sampled_from(((), (1,), (2,)))), draw(st.sampled_from(_sizes.LONG_COLUMNS)))


@st.composite
def scales(draw: st.DrawFn, shape: Shape, *, transposed: bool = False, granularity: str | None = None) -> TensorSpec:
    """Scales of one of the three forms, or of ``granularity``: powers of two, by which ties stay ties, or any positive
    ones; of any layout, most of several with a zero, an infinity or a NaN among them."""
    drawn = st.sampled_from(("tensor", *GRANULARITIES[1:] * 2) if shape else ("tensor",))
    form = scale_shape(shape, granularity or draw(drawn))
    values = draw(st.sampled_from(("powers", "powers", "positive")))
    # A scale of all elements that is none leaves nothing to see.
    specials = SPECIALS if form or not draw(st.integers(0, 3)) else ()
    spec = draw(tensors.tensors(form[::-1] if transposed else form, "float32", values=values, specials=specials))
    if values == "powers" and spec.seed % 8 == _BEYOND_HALF_SEED:
        number = Special(0, BEYOND_HALF[spec.seed // 8 % 2], max(math.prod(spec.shape), 1))
        return replace(spec, specials=(number,))
    return spec


BEYOND_HALF = "2.98023223876953125e-08", "131072"
"""Powers of two that float16 does not hold, though it holds their product with some 8-bit numbers: 2^-25 and 2^17."""
_BEYOND_HALF_SEED = 5
"""The remainder by 8 of the seeds with which all scales are one of these: a draw would change what else is drawn."""


def features_of(case: Case) -> Features:
    """What arguments look like; scales have one of three forms and of that only the layout is their own."""
    found = features.of_arguments(case)
    for name, argument in {**dict(zip(features.ORDINALS, case.args, strict=False)), **case.kwargs}.items():
        if isinstance(argument, TensorSpec) and (name == SCALES.get(case.op) or name.endswith("_scale")):
            for what in ("dtype", "rank", "size", "row"):
                found.pop(f"{name} {what}", None)
            blocks = argument.shape[0 if name == "b_scale" else -1] if argument.shape else 0
            found[name] = ("one scale" if not argument.shape else "blocks" if blocks > 1 else "rows",)
    return found


SCALES = {"quantize_fp8": features.ORDINALS[1], "dequantize_fp8": features.ORDINALS[1]}
"""By op, which operand is a scale without being called one."""


WRONG_SCALES: tuple[Argument, ...] = (0.5, "x", (1,))
"""Scales of a wrong type."""


def wrong_shapes(shape: Shape) -> tuple[Shape, ...]:
    """Shapes that no scales of a matrix of ``shape``, several rows and some blocks of columns, have."""
    rows, columns = shape
    blocks = math.ceil(columns / BLOCK)
    return (1,), (rows,), (1, 1), (1, blocks), (blocks, rows), (rows, blocks + 1), (rows, columns), (rows, 1, 1)
