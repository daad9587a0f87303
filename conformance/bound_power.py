"""Measure how sharp oracle and bound are: on normal(0, 1) data, the share of elements on which zeros pass, and the
smallest error of one element that fails."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import msgspec
import numpy as np
import torch

from conformance import cases, float_formats
from conformance import spec as specs
from conformance.cases import Argument, Case
from conformance.compare import compare
from conformance.spec import Call, Expected
from strategies import dtypes as dtype_names
from strategies.specs import TensorSpec
from strategies.values import LISTED

TERMS = 4096
"""Terms of a sum, or elements of a tensor where nothing is summed."""
FLOAT64_TERMS = 512
"""The same for float64, whose oracles are slow."""
ROWS = 12
PROBED = 64
"""The number of elements that are changed, one at a time."""
LARGE = 0.5
"""Elements below this share of the largest one are not tested: sums cancel, and their bound knows only the size of
their terms."""


class Power(msgspec.Struct, frozen=True):
    """The sharpness of one op and dtype, with sums of ``terms`` terms."""

    op: str
    dtype: str
    terms: int
    zeros: float
    """The share of elements, of those whose right value is not 0, on which an output of zeros passes."""
    ulps: float
    """The smallest error of the median element that fails, in ulps of the output dtype."""
    relative: float
    """The same error relative to the element's value."""


@functools.cache
def power(op: str, dtype: str) -> Power | None:
    """Measure one op and floating-point dtype; None where its results are not numbers of that dtype."""
    case = normal(op, dtype)
    return None if case is None else judged(case, dtype, specs.registry()[op].expected)


def judged(case: Case, dtype: str, oracle: Callable[[Call], Expected | tuple[Expected, ...]]) -> Power | None:
    """Measure another oracle, on a case that ``normal`` gives."""
    op = case.op
    args, kwargs, _ = cases.materialize(case)
    with np.errstate(all="ignore"):
        found = oracle(Call(args, kwargs, None))
    expected = found[0] if isinstance(found, tuple) else found
    if not expected.value.dtype.is_floating_point or expected.instead is not None:
        return None
    output = expected.value.to(dtype_names.to_torch(dtype))
    value = expected.value.double()
    some = (value != 0) & value.isfinite()
    zeros = torch.where(some, torch.zeros_like(output), output)
    passed = 1 - compare(zeros, expected).failed / max(int(some.sum()), 1)
    large = (some & (value.abs() >= LARGE * value[some].abs().max())).flatten().nonzero().flatten()
    places = large[torch.linspace(0, len(large) - 1, min(PROBED, len(large))).long()]
    steps = sorted(_steps(output, expected, int(place)) for place in places)
    median = steps[len(steps) // 2]
    return Power(op, dtype, case_terms(case), round(max(passed, 0.0), 6), *median)


def normal(op: str, dtype: str) -> Case | None:
    """Return a call on normal(0, 1) data, positive for functions that are defined only there; None for dtypes that the
    op lacks."""
    if op not in specs.registry() or dtype not in dtype_names.FLOATING or dtype not in specs.registry()[op].dtypes:
        return None
    terms = FLOAT64_TERMS if dtype == "float64" else TERMS

    def tensor(*shape: int, values: str = "normal", seed: int = 0) -> TensorSpec:
        return TensorSpec(shape, dtype, values, seed)

    args: tuple[Argument, ...]
    match op:
        case "mm" | "matmul":
            args = (tensor(ROWS, terms), tensor(terms, ROWS))
        case "bmm":
            args = (tensor(2, ROWS, terms), tensor(2, terms, ROWS))
        case "addmm":
            args = (tensor(ROWS), tensor(ROWS, terms), tensor(terms, ROWS))
        case "softmax" | "log_softmax" | "logsumexp" | "cumsum":
            args = (tensor(2, terms), -1)
        case "cross_entropy":
            targets = TensorSpec((ROWS,), "int64", LISTED + "3,0,1,2")
            return Case(op=op, args=(tensor(ROWS, terms), targets), kwargs={"reduction": "none"})
        case "linear_cross_entropy":
            # Logits of about 1.
            targets = TensorSpec((ROWS,), "int64", LISTED + "3,0,1,2")
            args = (tensor(ROWS, 64), tensor(terms, 64, values="normal_small"), targets)
            return Case(op=op, args=args, kwargs={"reduction": "none"})
        case "layer_norm" | "rms_norm":
            args = (tensor(2, terms), (terms,))
        case "rotary_position_embedding":
            args = (tensor(1, 8, 2, terms // 16), *(tensor(8, terms // 32, values="uniform", seed=n) for n in (1, 2)))
        case "fused_rmsnorm_rope":
            args = (tensor(2, 8, terms), tensor(terms), *(tensor(8, 64, values="uniform", seed=n) for n in (1, 2)))
            return Case(op=op, args=args, kwargs={"head_dim": 128})
        case "fused_gated_mlp":
            # Products of about 1, so that gates let some pass and stop some.
            args = (tensor(ROWS, terms), *(tensor(ROWS, terms, values="normal_small", seed=n) for n in (0, 1)))
        case "scaled_dot_product_attention":
            args = tuple(tensor(1, 2, rows, 64) for rows in (ROWS, terms // 4, terms // 4))
        case "add" | "sub" | "mul" | "div":
            args = (tensor(terms), tensor(terms, seed=1))
        case "pow":
            args = (tensor(terms, values="positive"), tensor(terms))
        case "rsqrt":
            args = (tensor(terms, values="positive"),)
        case "clamp":
            args = (tensor(terms), -1.0, 1.0)
        case "fp8_gemm":
            return Case(
                op=op, args=(tensor(ROWS, terms), tensor(terms, ROWS)), kwargs={"out_dtype": cases.DType(dtype)}
            )
        case "quantize_fp8" | "dropout" | "eq" | "ne" | "lt" | "le" | "gt" | "ge" | "isnan" | "isinf" | "argmax":
            return None
        case _:
            args = (tensor(terms),)
    return Case(op=op, args=args)


def case_terms(case: Case) -> int:
    """Return the number of terms of a sum, or of elements: the largest size in the last two operands."""
    operands = cases.operands(case)
    return max(size for spec in operands[-2:] for size in spec.shape)


def _steps(output: torch.Tensor, expected: Expected, place: int) -> tuple[float, float]:
    """Return the smallest change of one element that fails both up and down: in ulps, and relative."""
    index = tuple(int(i) for i in np.unravel_index(place, output.shape))
    value = float(expected.value[index])
    ulp = float(float_formats.ulp(np.array(value), output.dtype))
    single = _element(expected, index)
    for ulps in _GRID:
        changed = [torch.tensor(value + sign * ulps * ulp, dtype=torch.float64).to(output.dtype) for sign in (1, -1)]
        if not any(compare(one, single).passed for one in changed):
            return ulps, ulps * ulp / abs(value)
    return math.inf, math.inf


_GRID = tuple(float(n) for n in (1, 1.5, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, *(2**k for k in range(6, 53))))


def _element(expected: Expected, index: tuple[int, ...]) -> Expected:
    """Return the oracle's answer for one element."""

    def one(tensor: torch.Tensor | None) -> torch.Tensor | None:
        return None if tensor is None else tensor.broadcast_to(expected.value.shape)[index].clone()

    value = one(expected.value)
    assert value is not None
    return Expected(value, one(expected.bound), one(expected.judged), one(expected.low), expected.signed_zero)
