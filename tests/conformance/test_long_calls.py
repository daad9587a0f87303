"""Calls without a short dim: which there are, that torch takes them, and what shows in them alone."""

from __future__ import annotations

import math
from functools import cache

import pytest
from test_huge_calls import starts

from conformance import cases, checks, long_calls, runner
from conformance import spec as specs
from conformance.cases import Case
from conformance.selftest import defect_registry, search

BANK = defect_registry.bank()
OPS = ("exp", "mul", "sum", "softmax", "layer_norm", "mm", "bmm", "scaled_dot_product_attention", "cross_entropy")
SHOWN = (
    "mm_rows_of_16_bits_behind_8_columns",
    "addmm_rows_of_16_bits_behind_8_columns",
    "matmul_batch_of_8_bits_behind_a_tile",
    "bmm_batch_of_8_bits_behind_a_tile",
    "scaled_dot_product_attention_batch_of_8_bits_behind_a_tile",
    "rms_norm_rows_of_16_bits_behind_8_columns",
    "mul_rows_of_16_bits_behind_8_columns",
    "cumsum_columns_begin_anew",
    "sum_tokens_of_8_bits_behind_4_sequences",
    "mean_tokens_of_8_bits_behind_4_sequences",
    "layer_norm_gradient_weight_without_late_rows",
    "log_softmax_gradient_late_rows",
)


@cache
def long(op: str, dtype: str = "float32") -> list[Case]:
    return long_calls.calls(specs.registry()[op], starts(op, dtype), [dtype], dtype)


@pytest.mark.parametrize("op", OPS)
def test_they_are_legal_and_not_too_large(op):
    found = long(op)
    assert len(found) > long_calls.COUNT // 2
    for case in found:
        assert specs.registry()[op].defined(case) == case
        assert cases.elements(case) <= long_calls.PLANNED_ELEMENTS


@pytest.mark.parametrize("op", ["mul", "sum", "bmm"])
def test_most_have_several_long_dims(op):
    """None of three dims or more is short, unless it is broadcast."""
    largest = [max((spec.shape for spec in cases.operands(case)), key=math.prod) for case in long(op)]
    counts = [sum(size > 8 for size in shape) for shape in largest]
    assert sum(count > 1 for count in counts) > 0.8 * len(counts)
    assert any(count > 2 for count in counts)
    assert any(max(shape) > 1 << 16 for shape in largest)


def test_one_operand_is_broadcast_along_some_dims_of_the_other():
    pairs = [[spec.shape for spec in cases.operands(case)] for case in long("mul")]
    singles = {
        tuple(size == 1 for size in second) for first, second in filter(lambda one: len(one) == 2, pairs) if first
    }
    assert len(singles) > 5


def test_dtypes_share_them():
    spec, dtypes = specs.registry()["mul"], ["bfloat16", "float16", "float32", "float64"]
    made = {dtype: long_calls.calls(spec, starts("mul", dtype), dtypes, dtype) for dtype in dtypes}
    assert made["float64"] == []
    assert sum(map(len, made.values())) <= 1.2 * len(long("mul"))


@pytest.mark.slow
@pytest.mark.parametrize("name", SHOWN)
def test_a_defect_shows_in_them(name):
    defect = BANK[name]
    verdicts = (runner.judge(case, defect.implementation, "cpu", checks.OF_HUGE) for case in long(defect.op))
    assert any(verdict.status == "failed" for verdict in verdicts)


@pytest.mark.slow
@pytest.mark.parametrize("op", OPS)
def test_what_is_right_passes(op):
    for case in long(op)[::5]:
        verdict = runner.judge(case, search.right(op), "cpu", checks.OF_HUGE)
        assert verdict.status in ("passed", "deviation"), verdict.failure
