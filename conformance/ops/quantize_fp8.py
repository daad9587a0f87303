"""``quantize_fp8(tensor, scale=None, *, dtype=torch.float8_e4m3fn, granularity="tensor")`` -> (quantized, scale).

torch has no such function. What it would be is composed of torch's operators in ``_fp8``; values are judged by the
formula there in float64: a quantized number is the nearest to ``tensor / scale``, ties to even, unless rounding the
quotient to float32 decides a tie; a scale that is found lies within an ulp.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from hypothesis import strategies as st

from conformance import float_formats
from conformance.cases import Argument, Case, DType, operands, seed
from conformance.ops import _elementwise as elementwise
from conformance.ops import _fp8 as fp8
from conformance.ops import _sizes, _words
from conformance.spec import Batch, Benchmark, Call, Expected, OpSpec
from strategies import dtypes as dtype_names
from strategies import tensors
from strategies.specs import TensorSpec

_MANY_DIMS = st.tuples(*(st.integers(1, 3) for _ in range(5)), st.sampled_from((5, 129, 200, 257)))
"""Shapes of more dims than kernels take strides."""


@st.composite
def cases(draw: st.DrawFn, dtypes: Sequence[str], elements: int = 0, scenes: bool = False) -> Case:
    shape = _MANY_DIMS if scenes else fp8.shapes_of_tensors(large=elements)
    tensor = draw(tensors.tensors(shape, [name for name in dtypes if name in fp8.INPUTS]))
    kwargs: dict[str, Argument] = {}
    if draw(st.booleans()):
        kwargs["dtype"] = DType(draw(st.sampled_from(("float8_e5m2", "float8_e5m2", "float8_e4m3fn"))))
    args: tuple[Argument, ...] = (tensor,)
    given = ("given",) * (1 if elements else 4)
    match draw(st.sampled_from((*given, "tensor", "row", "block"))):
        case "given":
            args = (tensor, draw(fp8.scales(tensor.shape)))
            if tensor.shape and draw(st.booleans()):
                # Of no account beside a scale.
                kwargs["granularity"] = draw(st.sampled_from(("row", "block")))
        case "row" | "block" as granularity if tensor.shape:
            kwargs["granularity"] = granularity
    return Case(op="quantize_fp8", args=args, kwargs=kwargs)


@st.composite
def refused(draw: st.DrawFn, dtypes: Sequence[str]) -> Case:
    dtype = draw(dtype_names.dtypes([name for name in dtypes if name in fp8.INPUTS]))
    tensor = TensorSpec((3, 200), dtype)

    def case(*args: Argument, **kwargs: Argument) -> Case:
        return Case(op="quantize_fp8", args=args, kwargs=kwargs)

    match draw(
        st.sampled_from(("dtype", "shape", "scale dtype", "scale type", "format", "granularity", "rows", "type"))
    ):
        case "dtype":
            wrong = draw(st.sampled_from((*dtype_names.INTEGRAL, "bool", "float64", *fp8.FP8)))
            return case(TensorSpec((3, 5), wrong))
        case "shape":
            return case(tensor, TensorSpec(draw(st.sampled_from(fp8.wrong_shapes(tensor.shape))), "float32"))
        case "scale dtype":
            return case(tensor, TensorSpec((), draw(st.sampled_from(("float64", "float16", "int32")))))
        case "scale type":
            return case(tensor, draw(st.sampled_from(fp8.WRONG_SCALES)))
        case "format":
            formats = (DType("int8"), DType("float16"), DType("float8_e4m3fnuz"), "float8_e5m2", 8)
            return case(tensor, dtype=draw(st.sampled_from(formats)))
        case "granularity":
            return case(tensor, granularity=draw(_words.wrong(fp8.GRANULARITIES, ("column",))))
        case "rows":
            return case(TensorSpec((), dtype), granularity=draw(st.sampled_from(("row", "block"))))
    return case(draw(st.sampled_from((2.0, *elementwise.WRONG_TYPES))))


def batch(case: Case) -> Batch | None:
    """Rows, where each has scales of its own."""
    specs = operands(case)
    own = specs[1].shape if len(specs) > 1 else case.kwargs.get("granularity") in ("row", "block")
    dims = [dim for dim, size in enumerate(specs[0].shape[:-1]) if size > 1] if own else []
    dim = elementwise.chosen(seed(case), dims)
    return None if dim is None else Batch(specs[0].shape[dim], (dim,) * len(specs), dim)


def expected(call: Call) -> tuple[Expected, Expected]:
    tensor, scale, dtype, granularity = _arguments(*call.args, **call.kwargs)
    if scale is None:
        found = fp8.found_scale(tensor, dtype, granularity)
        # An ulp, half of which is there by itself; what is no quotient has no error.
        ulp = float_formats.ulp(found, torch.float32)
        bound = np.where((found == 1) | (found == fp8.LEAST), -ulp / 2, ulp / 2)
        scales = Expected(torch.from_numpy(np.array(found)), torch.from_numpy(np.array(bound)))
        each = fp8.spread_exactly(torch.from_numpy(np.array(found)), tensor.shape)
    else:
        scales, each = Expected(scale), fp8.spread_exactly(scale, tensor.shape)
    middle, apart, judged = fp8.neighbours(tensor, each, dtype, scale is not None)
    # Less than half an ulp: one of the two, and nothing else.
    bound = apart - float_formats.ulp(middle, dtype) / 2
    value, bound, judged = (torch.from_numpy(np.array(array)) for array in (middle, bound, judged))
    return Expected(value, bound, judged), scales


def _arguments(
    tensor: torch.Tensor,
    scale: torch.Tensor | None = None,
    *,
    dtype: torch.dtype = torch.float8_e4m3fn,
    granularity: str = "tensor",
) -> tuple[torch.Tensor, torch.Tensor | None, torch.dtype, str]:
    return tensor, scale, dtype, granularity


def benchmark(rows: int, columns: int, granularity: str) -> Benchmark:
    case = Case(op="quantize_fp8", args=(TensorSpec((rows, columns), "bfloat16"),), kwargs={"granularity": granularity})
    return Benchmark(case, bytes=3 * rows * columns, flops=2 * rows * columns)


SPEC = OpSpec(
    name="quantize_fp8",
    reference=fp8.quantize,
    cases=cases,
    large=lambda elements: lambda dtypes: cases(dtypes, min(elements, _sizes.WHOLE)),
    scenes=lambda dtypes: cases(dtypes, scenes=True),
    refused=refused,
    features=fp8.features_of,
    dtypes=fp8.INPUTS,
    batch=batch,
    expected=expected,
    benchmarks=(*(benchmark(8192, 8192, one) for one in fp8.GRANULARITIES), benchmark(1, 4096, "row")),
)
