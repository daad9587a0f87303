"""The floors of what the judge catches, for every op and floating-point dtype."""

from __future__ import annotations

import json
import math

import pytest

from conformance import metrics
from conformance.bound_power import normal, power
from conformance.metrics import Record
from conformance.ops._products import DTYPES
from conformance.spec import registry
from strategies import dtypes as dtype_names

PAIRS = [(op, dtype) for op in sorted(registry()) for dtype in dtype_names.FLOATING if normal(op, dtype)]
PRODUCTS = ("mm", "bmm", "addmm", "matmul", "fused_gated_mlp")
ROWS = ("softmax", "log_softmax", "layer_norm", "rms_norm", "fused_rmsnorm_rope")
# 2^-10 of sum |terms|, which a normal sum of 4096 terms reaches on 3.2 % of elements.
ZEROS = {("scaled_dot_product_attention", "bfloat16"): 0.02, **{("fp8_gemm", dtype): 0.06 for dtype in DTYPES}}
TOTALS = ("cross_entropy", "cumsum", "linear_cross_entropy", "logsumexp", "mean", "sum")
NOT_ELEMENTWISE = (*PRODUCTS, *TOTALS, "fp8_gemm", *ROWS, "scaled_dot_product_attention")
ULPS = {"sigmoid": 6, "silu": 6, "gelu": 8, "pow": 16}
"""Of ops whose bound is more than 4 ulps of the compute dtype; it shows where that is the output's too."""
HALF = [pair for pair in PAIRS if pair[1] in dtype_names.HALF]


def test_all_that_round_are_here():
    assert {op for op, _ in PAIRS} >= {
        *NOT_ELEMENTWISE,
        *ULPS,
        "add",
        "sub",
        "mul",
        "div",
        "exp",
        "rsqrt",
        "sin",
        "cos",
    }
    assert len(PAIRS) > 80


@pytest.mark.parametrize(("op", "dtype"), PAIRS)
def test_floors(op, dtype):
    found = power(op, dtype)
    assert found is not None
    assert found.zeros <= ZEROS.get((op, dtype), 0.01)
    if op not in NOT_ELEMENTWISE:
        assert found.ulps <= (4 if dtype in dtype_names.HALF else ULPS.get(op, 4))
    elif op in PRODUCTS and dtype in dtype_names.HALF:
        # Where a thousandth is less than a step of the dtype, the next number but one. Errors of two products add up.
        assert found.relative <= (2e-3 if op == "fused_gated_mlp" else 1e-3) or found.ulps <= 2
    assert math.isfinite(found.relative)


def test_what_has_no_such_numbers():
    assert power("eq", "float32") is power("bitwise_and", "int32") is power("dropout", "float32") is None


def test_it_is_in_the_metrics():
    records = [Record("mm", DTYPES[1], cases=3), Record("eq", "float32", cases=1), Record("add", "float32")]
    (one,) = json.loads(metrics.document(records, {}))["power"]
    assert (one["op"], one["dtype"], one["terms"]) == ("mm", DTYPES[1], 4096)
    assert 0 <= one["zeros"] <= 0.01
