"""``dequantize_fp8(quantized, scale, dtype=torch.float16)``: quantized * scale in float32, rounded to the dtype.

torch has no such function; what it would be is composed of torch's operators in ``_fp8``.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from hypothesis import strategies as st

from conformance import float_formats
from conformance.cases import Argument, Case, DType, operands, seed
from conformance.ops import _elementwise as elementwise
from conformance.ops import _expectations as expectations
from conformance.ops import _fp8 as fp8
from conformance.ops import _sizes
from conformance.spec import Batch, Benchmark, Call, Expected, OpSpec
from strategies import dtypes as dtype_names
from strategies import tensors
from strategies.specs import TensorSpec


@st.composite
def cases(draw: st.DrawFn, dtypes: Sequence[str], elements: int = 0) -> Case:
    quantized = draw(
        tensors.tensors(fp8.shapes_of_tensors(large=elements), [name for name in dtypes if name in fp8.FP8])
    )
    kwargs: dict[str, Argument] = {}
    if draw(st.booleans()):
        kwargs["dtype"] = DType(draw(st.sampled_from(fp8.INPUTS)))
    return Case(op="dequantize_fp8", args=(quantized, draw(fp8.scales(quantized.shape))), kwargs=kwargs)


@st.composite
def refused(draw: st.DrawFn, dtypes: Sequence[str]) -> Case:
    dtype = draw(dtype_names.dtypes([name for name in dtypes if name in fp8.FP8]))
    quantized, scale = TensorSpec((3, 200), dtype), TensorSpec((), "float32")

    def case(*args: Argument, **kwargs: Argument) -> Case:
        return Case(op="dequantize_fp8", args=args, kwargs=kwargs)

    match draw(st.sampled_from(("dtype", "shape", "scale dtype", "scale type", "result", "type"))):
        case "dtype":
            wrong = draw(st.sampled_from((*dtype_names.INTEGRAL, "bool", *dtype_names.FLOATING)))
            return case(TensorSpec((3, 5), wrong), scale)
        case "shape":
            return case(quantized, TensorSpec(draw(st.sampled_from(fp8.wrong_shapes(quantized.shape))), "float32"))
        case "scale dtype":
            return case(quantized, TensorSpec((), draw(st.sampled_from(("float64", "float16", "int32")))))
        case "scale type":
            return case(quantized, draw(st.sampled_from((*fp8.WRONG_SCALES, None))))
        case "result":
            wrong = draw(st.sampled_from((DType("int8"), DType("float64"), DType("float8_e5m2"), "float16", 8)))
            return case(quantized, scale, dtype=wrong)
    return case(draw(st.sampled_from((2.0, *elementwise.WRONG_TYPES))), scale)


def batch(case: Case) -> Batch | None:
    """Rows, with their scales."""
    shape, scale = (spec.shape for spec in operands(case))
    dim = elementwise.chosen(seed(case), [dim for dim, size in enumerate(shape[:-1]) if size > 1])
    return None if dim is None else Batch(shape[dim], (dim, dim if scale else None), dim)


def expected(call: Call) -> Expected:
    quantized, scale, dtype = _arguments(*call.args, **call.kwargs)
    with np.errstate(all="ignore"):
        value = quantized.double().numpy() * fp8.spread_exactly(scale, quantized.shape)
        bound = 0.0 if dtype == torch.float32 else float_formats.rounding(value, torch.float32)
    return expectations.within(call, value, bound, dtype)


def _arguments(
    quantized: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype = torch.float16
) -> tuple[torch.Tensor, torch.Tensor, torch.dtype]:
    return quantized, scale, dtype


def benchmark(rows: int, columns: int, granularity: str) -> Benchmark:
    scale = TensorSpec(fp8.scale_shape((rows, columns), granularity), "float32", "positive")
    case = Case(op="dequantize_fp8", args=(TensorSpec((rows, columns), "float8_e4m3fn"), scale))
    return Benchmark(case, bytes=3 * rows * columns, flops=rows * columns)


SPEC = OpSpec(
    name="dequantize_fp8",
    reference=fp8.dequantize,
    cases=cases,
    large=lambda elements: lambda dtypes: cases(dtypes, min(elements, _sizes.WHOLE)),
    refused=refused,
    features=fp8.features_of,
    dtypes=fp8.FP8,
    batch=batch,
    mixes=False,
    expected=expected,
    benchmarks=(benchmark(8192, 8192, "row"), benchmark(8192, 8192, "block"), benchmark(1, 4096, "row")),
)
