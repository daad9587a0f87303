"""Calls without a short dim: which there are, that torch takes them, and what shows in them alone."""

from __future__ import annotations

import math
from functools import cache

import msgspec
import pytest
from test_huge_calls import starts

from conformance import cases, checks, long_calls, runner
from conformance import spec as specs
from conformance.cases import Case
from conformance.selftest import defect_registry, search
from strategies.specs import TensorSpec

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
    shapes = [[spec.shape for spec in cases.operands(case)] for case in long("mul")]
    assert len({tuple(size == 1 for size in pair[1]) for pair in shapes if len(pair) == 2}) > 5


def test_dtypes_share_them():
    spec, dtypes = specs.registry()["mul"], ["bfloat16", "float16", "float32", "float64"]
    made = {dtype: long_calls.calls(spec, starts("mul", dtype), dtypes, dtype) for dtype in dtypes}
    assert made["float64"] == []
    assert sum(map(len, made.values())) <= 1.2 * len(long("mul"))


def test_each_of_several_dtypes_has_sizes_past_16_bits():
    dtypes = [f"{form}" for form in specs.registry()["softmax"].dtypes]
    found = long_calls.calls(specs.registry()["softmax"], starts("softmax", "float32"), dtypes, "float32")
    largest = {max(size for spec in cases.operands(case) for size in spec.shape) for case in found}
    assert largest >= {sizes[0] for sizes in long_calls.SIZES}


def test_a_dim_may_be_named():
    passed = [
        msgspec.structs.replace(case, args=case.args[:1], kwargs={**case.kwargs, "dim": case.args[1]})
        for case in starts("softmax", "float32")
        if len(case.args) > 1
    ]
    found = long_calls.calls(specs.registry()["softmax"], passed, ["float32"], "float32")
    planned = {case.kwargs["dim"] for case in found if cases.operands(case)[0].shape in long_calls.PLANNED}
    assert planned == {0, 1, 2, 3}


def test_sizes_of_listed_operands_do_not_run_into_each_other():
    logits, target = TensorSpec((3, 5, 7), "float32"), TensorSpec((3, 7), "int64", "listed:4,0")
    case = long_calls._with(Case(op="cross_entropy", args=(logits, target)), {3: 5, 5: 65609, 7: 17})
    assert [spec.shape for spec in cases.operands(case)] == [(5, 65609, 17), (5, 17)]


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
