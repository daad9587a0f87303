"""``fp8_gemm(a, b, a_scale=None, b_scale=None, out_dtype=torch.float16)``: a product of scaled 8-bit matrices.

torch's is ``torch._scaled_mm``, which takes fewer calls; what it lacks is composed of torch's operators in ``_fp8``.
Values are judged by sum(a a_scale b b_scale) in float64. An element may be off by 2^-10 of the sum of the magnitudes of
its terms, and by what a tie in quantizing changes. Tensor cores that add all terms up with the 14 bits of an H100 leave
that bound where K is long (DeepSeek-V3, arXiv:2412.19437, section 3.3.2: 2 % at K = 4096); 128 terms at a time, added
in float32, do not, unless a few of them are so large that the others of their 128 are cut off: that is evaluated.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st

from conformance import float_formats, product_bounds
from conformance.cases import Argument, Case, DType, Same
from conformance.ops import _elementwise as elementwise
from conformance.ops import _expectations as expectations
from conformance.ops import _fp8 as fp8
from conformance.ops import _products as products
from conformance.ops import _sizes
from conformance.spec import Benchmark, Call, Expected, OpSpec
from strategies import dtypes as dtype_names
from strategies import shapes, tensors
from strategies.specs import Layout, TensorSpec

DTYPES = (*fp8.FP8, *fp8.INPUTS)
LONG = (1024, 2049, 4096, 4200, 4200, 4500, 4500, 8448, 16640)
"""Terms of which a sum in 14 bits shows."""
_ALIKE = st.sampled_from((None, None, None, "tensor", "tensor", "row", "block"))
"""The granularity of the scales of both matrices, as most calls have it; None: each has scales of its own or none."""
PROMPTS = ((129, 640, 17), (130, 1030, 9), (200, 513, 16))
"""Rows of more than a tile, of several tiles of terms, each of which has several scales."""
LARGE = ((519, 130, 5), (1030, 17, 3), (3, 140, 700), (2, 519, 519), (16, 515, 260))
"""M, K and N of many rows, many columns, and a few tokens and a layer's weights; each element is evaluated."""


@st.composite
def cases(draw: st.DrawFn, dtypes: Sequence[str], large: bool = False, scenes: bool = False) -> Case:
    names = [name for name in dtypes if name in DTYPES]
    first, second = draw(st.one_of(dtype_names.pairs(names), dtype_names.dtypes(names).map(lambda name: (name, name))))
    values: Sequence[str] | None = None
    if large or scenes:
        m, k, n = draw(st.sampled_from(LARGE if large else PROMPTS))
    elif draw(st.integers(0, 3)):
        m, k, n = draw(products.sizes(False, modest=True))
    else:
        small = shapes.sizes(1, 20)
        m, k, n = draw(small), draw(st.sampled_from(LONG)), draw(small)
        # Of one sign, so that what is cut off adds up.
        values = draw(st.sampled_from((("positive",), ("positive", "normal", "constant"))))
    scaled = st.booleans() if values is None else st.integers(0, 3).map(lambda n: n == 3)
    alike = draw(_ALIKE) if values is None else None
    plain: dict[str, Any] = {"values": values}
    # As quantizing leaves them: the largest number is used.
    full: dict[str, Any] = {"values": ("near_overflow",), "specials": ()}
    given = {name: full if name in fp8.FP8 and alike and draw(st.booleans()) else plain for name in (first, second)}
    a = draw(tensors.tensors((m, k), first, **given[first]))
    kwargs: dict[str, Argument] = {}
    square = m == k == n and first == second
    b = Same(0) if square and draw(st.booleans()) else draw(tensors.tensors((k, n), second, **given[second]))
    if alike or draw(scaled):
        kwargs["a_scale"] = draw(fp8.scales((m, k), granularity=alike))
    if alike or draw(scaled):
        kwargs["b_scale"] = draw(fp8.scales((n, k), transposed=True, granularity=alike))
    if draw(st.booleans()):
        kwargs["out_dtype"] = DType(draw(st.sampled_from(fp8.INPUTS)))
    return Case(op="fp8_gemm", args=(a, b), kwargs=kwargs)


@st.composite
def refused(draw: st.DrawFn, dtypes: Sequence[str]) -> Case:
    dtype = draw(dtype_names.dtypes([name for name in dtypes if name in DTYPES]))
    a, b = TensorSpec((5, 200), dtype), TensorSpec((200, 7), dtype)

    def case(*args: Argument, **kwargs: Argument) -> Case:
        return Case(op="fp8_gemm", args=args, kwargs=kwargs)

    kinds = ("inner", "dims", "dtype", "type", "a_scale", "b_scale", "scale dtype", "scale type", "result")
    match draw(st.sampled_from(kinds)):
        case "inner":
            return case(a, TensorSpec((200 + draw(st.integers(1, 3)), 7), dtype))
        case "dims":
            wrong = draw(st.sampled_from(((5,), (2, 3, 5), ())))
            return draw(st.sampled_from((case(TensorSpec(wrong, dtype), b), case(a, TensorSpec(wrong, dtype)))))
        case "dtype":
            whole = draw(st.sampled_from((*dtype_names.INTEGRAL, "bool", "float64")))
            return draw(st.sampled_from((case(TensorSpec(a.shape, whole), b), case(a, TensorSpec(b.shape, whole)))))
        case "type":
            wrong = draw(st.sampled_from((2.0, *elementwise.WRONG_TYPES)))
            return draw(st.sampled_from((case(wrong, b), case(a, wrong))))
        case "a_scale":
            return case(a, b, TensorSpec(draw(st.sampled_from(fp8.wrong_shapes(a.shape))), "float32"))
        case "b_scale":
            # Those of b's own rows among them.
            wrong = draw(st.sampled_from((*(shape[::-1] for shape in fp8.wrong_shapes((7, 200))), (7, 1), (7, 2))))
            return case(a, b, b_scale=TensorSpec(wrong, "float32"))
        case "scale dtype":
            return case(a, b, TensorSpec((), draw(st.sampled_from(("float64", "float16", "int32")))))
        case "scale type":
            return case(a, b, b_scale=draw(st.sampled_from(fp8.WRONG_SCALES)))
    wrong = draw(st.sampled_from((DType("int8"), DType("float64"), DType("float8_e5m2"), "float16", 8)))
    return case(a, b, out_dtype=wrong)


def expected(call: Call) -> Expected:
    a, b, a_scale, b_scale, out_dtype = _arguments(*call.args, **call.kwargs)
    if b_scale is not None and b_scale.ndim:
        b_scale = b_scale.mT
    with np.errstate(all="ignore"):
        left, right = quantized(a, a_scale), quantized(b.mT, b_scale)
        # float32's rules: a product of two 8-bit numbers is exact there.
        found = products.product(left.scaled, right.scaled.T, torch.float32)
        scales = np.abs(left.scale[:, None] * right.scale[None])
        bound = product_bounds.fp8_product(
            found.magnitude, _cut_off(left, right, scales), _ties(left, right), a.shape[1]
        )
        normal = (scales == 0) | (scales >= fp8.LEAST) & (scales <= float_formats.FORMATS[torch.float32].max)
        # NaN shows whatever the scale is. Where the bound reaches infinities of both signs, anything is right.
        sure = np.isnan(found.value) | (bound - np.abs(found.value) < float_formats.overflow(out_dtype))
        judged = (
            found.judged & sure & (normal | np.isnan(scales)).all(axis=-1) & left.judged[:, None] & right.judged[None]
        )
    return expectations.within(call, found.value, bound, out_dtype, judged=judged)


@dataclasses.dataclass(frozen=True)
class Rows:
    """An operand in float64, (rows, K)."""

    dtype: torch.dtype
    """The 8-bit format."""
    value: np.ndarray
    """8-bit numbers, or the middle of two where a tie in quantizing may give either."""
    apart: np.ndarray
    """How far from it they are."""
    each: np.ndarray
    """The scale of each element."""
    scale: np.ndarray
    """Of each block, (rows, blocks)."""
    judged: np.ndarray
    """Whether all of a row is, (rows,)."""

    @property
    def scaled(self) -> np.ndarray:
        return self.value * self.each


def quantized(rows: torch.Tensor, scale: torch.Tensor | None) -> Rows:
    """What is multiplied: 8-bit rows as they are, others quantized as ``quantize_fp8`` does it."""
    is_quantized = rows.dtype in fp8.FORMATS
    if scale is not None:
        found = scale.double().numpy()
    else:
        found = np.ones(()) if is_quantized else fp8.found_scale(rows, torch.float8_e4m3fn, "row")
    each = fp8.spread_exactly(torch.from_numpy(np.array(found)), tuple(rows.shape))
    if is_quantized:
        value, apart, judged = rows.double().numpy(), np.zeros(rows.shape), np.ones(rows.shape, bool)
    else:
        value, apart, judged = fp8.neighbours(rows, each, torch.float8_e4m3fn, scale is not None)
    blocks = fp8.scale_shape(tuple(rows.shape), "block")
    dtype = rows.dtype if is_quantized else torch.float8_e4m3fn
    return Rows(dtype, value, apart, each, np.broadcast_to(found, blocks), np.array(judged.all(axis=1)))


def _finite(array: np.ndarray) -> np.ndarray:
    return np.where(np.isfinite(array), array, 0.0)


def _ties(left: Rows, right: Rows) -> np.ndarray:
    """What ties in quantizing change in a sum."""
    if not (left.apart.any() or right.apart.any()):
        return np.zeros((len(left.value), len(right.value)))
    sizes = [_finite(np.abs(one.scaled)) for one in (left, right)]
    loose = [_finite(one.apart * np.abs(one.each)) for one in (left, right)]
    return loose[0] @ sizes[1].T + sizes[0] @ loose[1].T + loose[0] @ loose[1].T


def _cut_off(left: Rows, right: Rows, scales: np.ndarray) -> np.ndarray:
    """What tensor cores may cut off in sums of 128 terms, of scales (M, N, blocks)."""
    a, b = _finite(left.value), _finite(right.value)
    apart, formats = (_finite(left.apart), _finite(right.apart)), (left.dtype, right.dtype)
    lost = np.zeros((len(a), len(b)))
    for block, (_, cut) in enumerate(fp8.tensor_core_sums(a, b, fp8.BLOCK, formats, apart)):
        lost += cut * scales[:, :, block]
    return _finite(lost)


def _arguments(
    a: torch.Tensor,
    b: torch.Tensor,
    a_scale: torch.Tensor | None = None,
    b_scale: torch.Tensor | None = None,
    out_dtype: torch.dtype = torch.float16,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None, torch.Tensor | None, torch.dtype]:
    return a, b, a_scale, b_scale, out_dtype


def benchmark(m: int, k: int, n: int, form: str) -> Benchmark:
    """``b`` column-major, as weights are; a bfloat16 result."""
    a, b = TensorSpec((m, k), "float8_e4m3fn"), TensorSpec((k, n), "float8_e4m3fn", layout=Layout(order=(1, 0)))
    scales = {
        "a_scale": TensorSpec(fp8.scale_shape((m, k), form), "float32", "positive"),
        "b_scale": TensorSpec(fp8.scale_shape((n, k), form)[::-1], "float32", "positive"),
    }
    case = Case(op="fp8_gemm", args=(a, b), kwargs={**scales, "out_dtype": DType("bfloat16")})
    return Benchmark(case, bytes=m * k + k * n + 2 * m * n, flops=2 * m * k * n)


SPEC = OpSpec(
    name="fp8_gemm",
    reference=fp8.gemm,
    cases=cases,
    large=lambda elements: lambda dtypes: cases(dtypes, True),
    scenes=lambda dtypes: cases(dtypes, scenes=True),
    refused=refused,
    features=fp8.features_of,
    dtypes=DTYPES,
    expected=expected,
    benchmarks=(
        *(benchmark(size, size, size, form) for size in (4096, 8192) for form in ("tensor", "row")),
        benchmark(4096, 4096, 4096, "block"),
        *(benchmark(tokens, *_sizes.BENCHMARK_WEIGHTS[0], "row") for tokens in (16, 128)),
        benchmark(64, 64, 64, "tensor"),
    ),
)
