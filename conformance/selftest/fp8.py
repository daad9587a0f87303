"""Planted defects of the FP8 operators: rounding and saturation, which scale is whose, and how long sums are
accumulated."""

from __future__ import annotations

import math

import torch

from conformance.ops import _fp8 as fp8
from conformance.selftest.defect_registry import defect, plant

E4M3, E5M2 = fp8.FORMATS
ORIGIN = {E4M3: (-6, 3), E5M2: (-14, 2)}
"""The exponent of the smallest normal number, and the bits after the point."""


# --- quantize ----------------------------------------------------------------------------------------------------


def _quantize(name, kind, change, about):
    """``change(x, scale, dtype, given)``: of float32 elements and the scale of each gives what is saturated and
    rounded, or None where all is right."""

    def quantize_fp8(right, tensor, scale=None, *, dtype=E4M3, granularity="tensor"):
        quantized, found = right(tensor, scale, dtype=dtype, granularity=granularity)
        value = change(tensor.float(), fp8.spread(found, tensor.shape), dtype, scale is not None)
        if value is not None and value.dtype != dtype:
            value = value.clamp(-torch.finfo(dtype).max, torch.finfo(dtype).max).to(dtype)
        return quantized if value is None else value.contiguous(), found

    plant("quantize_fp8", name, kind, "values", quantize_fp8, about)


def _scale(name, kind, amax, about):
    """``amax(x, dtype)`` of float32 parts, (parts, elements), in place of the largest finite magnitude of each."""

    def quantize_fp8(right, tensor, scale=None, *, dtype=E4M3, granularity="tensor"):
        result = right(tensor, scale, dtype=dtype, granularity=granularity)
        if scale is not None or not tensor.numel():
            return result
        x, shape = tensor.float(), result[1].shape
        if granularity == "block":
            x = torch.nn.functional.pad(x, (0, -x.shape[-1] % fp8.BLOCK))
        found = amax(x.reshape(math.prod(shape), -1), dtype).reshape(shape)
        return right(tensor, found, dtype=dtype)

    plant("quantize_fp8", name, kind, "values", quantize_fp8, about)


def _magnitude(x):
    return torch.where(x.isfinite(), x.abs(), 0.0).amax(-1)


def _of(amax, dtype):
    return torch.where(amax == 0, 1.0, (amax / torch.finfo(dtype).max).clamp_min(fp8.LEAST))


def _overflowing(x, scale, dtype, given):
    quotient = x / scale
    beyond = quotient.abs() > torch.finfo(dtype).max * (1 + 2.0 ** -(ORIGIN[dtype][1] + 2))
    wrong = torch.full_like(x, math.nan) if dtype == E4M3 else x.sign() * math.inf
    limit = torch.finfo(dtype).max
    return torch.where(beyond, wrong, quotient.clamp(-limit, limit)).to(dtype)


def _on_grid(round):
    """Rounding to the numbers of the format by ``round``, of float64."""

    def change(x, scale, dtype, given):
        least, bits = ORIGIN[dtype]
        quotient = x.double() / scale.double()
        exponent = torch.frexp(quotient)[1].double() - 1
        step = torch.exp2(exponent.clamp_min(least) - bits)
        return (round(quotient / step) * step).float()

    return change


def _rolled(size, axis):
    def change(x, scale, dtype, given):
        return x / scale.roll(size, axis) if x.ndim > 1 and (axis == -1 or x.shape[axis] > 1) else None

    return change


def _twice(x, scale, dtype, given):
    return (x / scale).to(torch.bfloat16).float()


def _tail_lost(x, scale, dtype, given):
    if x.ndim and x.shape[-1] % fp8.BLOCK:
        x = x.clone()
        x[..., x.shape[-1] // fp8.BLOCK * fp8.BLOCK :] = 0
    return x / scale


_quantize("not_saturated", "saturation", _overflowing, "what is too large becomes infinite or NaN")
_quantize("toward_zero", "rounding", _on_grid(torch.trunc), "rounds toward zero")
_quantize(
    "ties_away",
    "rounding",
    _on_grid(lambda x: torch.sign(x) * torch.floor(x.abs() + 0.5)),
    "ties are rounded away from zero",
)
_quantize("rounded_twice", "rounding", _twice, "the quotient is rounded to bfloat16 first")
_quantize("times_scale", "scale", lambda x, s, d, given: x * s if given else None, "a scale that is given multiplies")
_quantize("other_row", "scale", _rolled(1, 0), "a row has the scale of the one before")
_quantize("other_block", "scale", _rolled(fp8.BLOCK, -1), "a block has the scale of the one before")
_quantize("tail", "tail", _tail_lost, "fewer than 128 columns at the end are 0")
_quantize(
    "flushed",
    "subnormals",
    lambda x, s, d, g: torch.where((x / s).abs() < 2.0 ** ORIGIN[d][0], 0, x / s),
    "no subnormals",
)
_quantize("nan_lost", "special", lambda x, s, d, g: (x / s).nan_to_num(0.0), "NaN becomes 0")
_quantize(
    "infinity_is_nan",
    "special",
    lambda x, s, d, g: torch.where(x.isinf(), math.nan, x / s),
    "infinities become NaN",
)

_scale("abs_forgotten", "amax", lambda x, d: _of(torch.where(x.isfinite(), x, 0).amax(-1).abs(), d), "amax without abs")
_scale("of_zeros", "amax", lambda x, d: _magnitude(x) / torch.finfo(d).max, "the scale of zeros is 0")
_scale("infinity_counts", "amax", lambda x, d: _of(x.abs().nan_to_num(0.0, math.inf).amax(-1), d), "amax of infinities")
_scale("nan_counts", "amax", lambda x, d: _of(torch.where(x.isinf(), 0, x.abs()).amax(-1), d), "amax of NaN")
_scale("largest_of_e4m3", "amax", lambda x, d: _of(_magnitude(x), E4M3), "the largest number is always 448")
_scale("in_half", "precision", lambda x, d: _of(_magnitude(x), d).bfloat16().float(), "scales are bfloat16")
_scale(
    "powers",
    "precision",
    lambda x, d: torch.exp2(_of(_magnitude(x), d).log2().ceil()),
    "scales are rounded up to powers of two",
)
_scale(
    "last_left_out", "amax", lambda x, d: _of(_magnitude(x[:, : max(x.shape[1] - 1, 1)]), d), "amax less one element"
)


@defect("quantize_fp8", "scale")
def inverted(right, tensor, scale=None, *, dtype=E4M3, granularity="tensor"):
    """The scale that is returned is the reciprocal."""
    quantized, found = right(tensor, scale, dtype=dtype, granularity=granularity)
    return quantized, found if scale is not None else 1 / found


@defect("quantize_fp8", "scale", "metadata")
def scales_without_last_dim(right, tensor, scale=None, *, dtype=E4M3, granularity="tensor"):
    """Scales of rows are (rows,)."""
    quantized, found = right(tensor, scale, dtype=dtype, granularity=granularity)
    return quantized, found.squeeze(-1) if granularity == "row" and scale is None else found


@defect("quantize_fp8", "strides", "metadata")
def keeps_strides(right, tensor, scale=None, *, dtype=E4M3, granularity="tensor"):
    """Transposed in, transposed out."""
    quantized, found = right(tensor, scale, dtype=dtype, granularity=granularity)
    return quantized.mT.contiguous().mT if tensor.ndim == 2 and tensor.stride(0) == 1 else quantized, found


@defect("quantize_fp8", "refusals", "errors")
def any_granularity(right, tensor, scale=None, *, dtype=E4M3, granularity="tensor"):
    """An unknown granularity is that of the tensor."""
    known = granularity if granularity in fp8.GRANULARITIES else "tensor"
    return right(tensor, scale, dtype=dtype, granularity=known)


# --- dequantize --------------------------------------------------------------------------------------------------


def _dequantize(name, kind, change, about):
    """``change`` of float32 numbers, the scale of each and the dtype gives the value."""

    def dequantize_fp8(right, quantized, scale, dtype=torch.float16):
        result = right(quantized, scale, dtype)
        found = change(quantized, fp8.spread(scale, quantized.shape), dtype)
        return result.copy_(found.to(dtype))

    plant("dequantize_fp8", name, kind, "values", dequantize_fp8, about)


def _other_format(q, s, d):
    other = q.contiguous().view(torch.uint8).view(E4M3 if q.dtype == E5M2 else E5M2)
    return other.float() * s


def _first_block(q, s, d):
    return q.float() * (s[..., :1] if q.ndim and q.shape[-1] else s)


def _rolled_scale(q, s, d):
    return q.float() * (s.roll(1, 0) if q.ndim > 1 else s)


def _no_subnormals(q, s, d):
    return torch.where(q.float().abs() < 2.0 ** ORIGIN[q.dtype][0], 0.0, q.float()) * s


_dequantize("scale_ignored", "scale", lambda q, s, d: q.float(), "the scale is not looked at")
_dequantize("divides", "scale", lambda q, s, d: q.float() / s, "divides by the scale")
_dequantize("other_row", "scale", _rolled_scale, "a row has the scale of the one before")
_dequantize("first_block", "scale", _first_block, "every block has the scale of the first")
_dequantize(
    "scale_in_half", "precision", lambda q, s, d: q.float() * s.to(d).float(), "the scale is rounded to the dtype"
)
_dequantize("through_bfloat16", "precision", lambda q, s, d: (q.float() * s).bfloat16(), "by way of bfloat16")
_dequantize("other_format", "format", _other_format, "the formats change places")
_dequantize(
    "nan_lost", "special", lambda q, s, d: (q.float() * s).nan_to_num(0.0, math.inf, -math.inf), "NaN becomes 0"
)
_dequantize("flushed", "subnormals", _no_subnormals, "subnormals are 0")
_dequantize(
    "saturates",
    "special",
    lambda q, s, d: (q.float() * s).clamp(-torch.finfo(d).max, torch.finfo(d).max),
    "what is too large becomes the largest number",
)


@defect("dequantize_fp8", "refusals", "errors")
def scales_broadcast(right, quantized, scale, dtype=torch.float16):
    """Scales of any shape that broadcasts are taken."""
    if isinstance(quantized, torch.Tensor) and isinstance(scale, torch.Tensor) and tuple(scale.shape) in ((1,), (1, 1)):
        scale = scale.reshape(())
    return right(quantized, scale, dtype)


# --- products ----------------------------------------------------------------------------------------------------


def operands(a, b, a_scale, b_scale):
    """The 8-bit rows of both, float32, and the scale of each of their elements."""
    for matrix, scale in fp8._operands(a, b, a_scale, b_scale, torch.float32):
        yield matrix.float(), fp8.spread(scale, matrix.shape)


def _gemm(name, kind, change, about):
    """``change(x, x_scale, y, y_scale, out_dtype)``, of the rows of a and of b transposed and the scale of each
    element, gives the product; None where it is right."""

    def fp8_gemm(right, a, b, a_scale=None, b_scale=None, out_dtype=torch.float16):
        result = right(a, b, a_scale, b_scale, out_dtype)
        (x, x_scale), (y, y_scale) = operands(a, b, a_scale, b_scale)
        found = change(x, x_scale, y, y_scale, out_dtype) if result.numel() and x.shape[1] else None
        return result if found is None else result.copy_(found.to(out_dtype))

    plant("fp8_gemm", name, kind, "values", fp8_gemm, about)


def cut_off(x, y, every):
    """The product as an H100's tensor cores add it up, ``every`` so many terms added to the others in float32."""
    formats = (torch.float8_e5m2, torch.float8_e5m2)
    sums = fp8.tensor_core_sums(x.double().numpy(), y.double().numpy(), every, formats)
    return sum((torch.from_numpy(one).float() for one, _ in sums), torch.zeros(x.shape[0], y.shape[0]))


def uniform_scales(x_scale, y_scale):
    """Whether scales do not change along K."""
    return bool((x_scale == x_scale[:, :1]).all() and (y_scale == y_scale[:, :1]).all())


def costly(x, y):
    """More terms than are worth emulating, or ones that are no numbers."""
    return x.shape[0] * x.shape[1] * y.shape[0] > 1 << 19 or not (x.isfinite().all() and y.isfinite().all())


def _fast(x, x_scale, y, y_scale, out_dtype):
    if costly(x, y) or not uniform_scales(x_scale, y_scale):
        return None
    return cut_off(x, y, 1 << 30) * (x_scale[:, :1] * y_scale[:, :1].T)


def _in_half(x, x_scale, y, y_scale, out_dtype):
    if costly(x, y):
        return None
    total = torch.zeros(x.shape[0], y.shape[0], dtype=torch.bfloat16)
    for k in range(x.shape[1]):
        total += ((x * x_scale)[:, k : k + 1] * (y * y_scale)[:, k : k + 1].T).bfloat16()
    return total


def _product(x, y):
    return x @ y.T


def _last_block_lost(x, x_scale, y, y_scale, out_dtype):
    kept = x.shape[1] // fp8.BLOCK * fp8.BLOCK or x.shape[1]
    return _product((x * x_scale)[:, :kept], (y * y_scale)[:, :kept])


_gemm("fast_accumulation", "accumulation", _fast, "all terms are added up in 14 bits")
_gemm("bfloat16_accumulation", "accumulation", _in_half, "terms are added up in bfloat16")
_gemm("b_scale_ignored", "scale", lambda x, s, y, t, d: _product(x * s, y), "b_scale is not looked at")
_gemm("a_scale_ignored", "scale", lambda x, s, y, t, d: _product(x, y * t), "a_scale is not looked at")
_gemm("first_block", "scale", lambda x, s, y, t, d: _product(x * s[:, :1], y * t[:, :1]), "scales of the first block")
_gemm("other_block", "scale", lambda x, s, y, t, d: _product(x * s.roll(128, 1), y * t), "a block has another's scale")
_gemm("other_row", "scale", lambda x, s, y, t, d: _product(x * s.roll(1, 0), y * t), "a row has another's scale")
_gemm("scales_swapped", "scale", lambda x, s, y, t, d: _product(x * t[:1], y * s[:1]), "scales change places")
_gemm("last_block_lost", "tail", _last_block_lost, "terms past the last whole block are left out")
_gemm(
    "rounded_before_scaled",
    "rounding",
    lambda x, s, y, t, d: _product(x, y).to(d).float() * (s[:, :1] * t[:, :1].T) if uniform_scales(s, t) else None,
    "the product is rounded to the dtype of the result before it is scaled",
)
_gemm(
    "through_half",
    "rounding",
    lambda x, s, y, t, d: _product(x * s, y * t).half() if d == torch.float32 else None,
    "a float32 result is rounded to float16",
)


@defect("fp8_gemm", "quantization")
def not_quantized(right, a, b, a_scale=None, b_scale=None, out_dtype=torch.float16):
    """Half matrices are multiplied as they are."""
    result = right(a, b, a_scale, b_scale, out_dtype)
    if a.dtype not in fp8.WIDE or b.dtype not in fp8.WIDE:
        return result
    return result.copy_((a.float() @ b.float()).to(out_dtype))


@defect("fp8_gemm", "quantization")
def one_scale(right, a, b, a_scale=None, b_scale=None, out_dtype=torch.float16):
    """A matrix that is quantized has one scale."""
    result = right(a, b, a_scale, b_scale, out_dtype)
    if a.dtype not in fp8.WIDE or a_scale is not None or not a.numel():
        return result
    return right(*(fp8.quantize(a)[0], b), fp8.quantize(a)[1], b_scale, out_dtype)


@defect("fp8_gemm", "result", "metadata")
def always_float16(right, a, b, a_scale=None, b_scale=None, out_dtype=torch.float16):
    """out_dtype is not looked at."""
    return right(a, b, a_scale, b_scale, out_dtype).to(torch.float16)


@defect("fp8_gemm", "refusals", "errors")
def row_major_only(right, a, b, a_scale=None, b_scale=None, out_dtype=torch.float16):
    """Matrices of other layouts than torch._scaled_mm's are refused."""
    result = right(a, b, a_scale, b_scale, out_dtype)
    if a.numel() and a.stride(1) != 1:
        raise RuntimeError("a must be row-major")
    return result
