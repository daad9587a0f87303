"""The op specs: wrong results do not pass."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from op_tools import by_torch, call, normal, stepped

from conformance import float_formats
from conformance.cases import Case
from conformance.compare import compare
from conformance.ops import softmax
from conformance.spec import registry
from strategies import dtypes as dtype_names
from strategies.specs import TensorSpec

OPS = ("add", "div", "mm", "relu", "softmax")
ELEMENTWISE = ("add", "div", "relu")
PAIRS = [(op, dtype) for op in OPS for dtype in registry()[op].dtypes if dtype != "bool"]
# Integers are taken with another dtype for the result alone.
PAIRS = [(op, dtype) for op, dtype in PAIRS if op != "softmax" or dtype not in softmax.CAST]
FLOATING = [(op, dtype) for op, dtype in PAIRS if dtype in dtype_names.FLOATING]


@pytest.mark.parametrize("length", [1, 257, 4096])
@pytest.mark.parametrize(("op", "dtype"), PAIRS)
def test_an_all_zero_output_fails_almost_everywhere(op, dtype, length):
    if op == "mm" and dtype == "float64":
        length = min(length, 257)
    expected = registry()[op].expected(call(normal(op, dtype, length)))
    output = by_torch(normal(op, dtype, length))
    nonzero = int((expected.value != 0).sum())
    assert compare(torch.zeros_like(output), expected).failed >= 0.99 * nonzero


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_an_all_zero_product_fails_almost_everywhere_with_tf32_too(dtype):
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("high")
        expected = registry()["mm"].expected(call(normal("mm", dtype, 4096)))
    finally:
        torch.set_float32_matmul_precision(before)
    assert compare(torch.zeros(24, 24).to(dtype_names.to_torch(dtype)), expected).failed >= 0.99 * 24 * 24


@pytest.mark.parametrize(("op", "dtype"), [pair for pair in FLOATING if pair[0] in ELEMENTWISE])
def test_four_ulps_fail_anywhere(op, dtype):
    case = normal(op, dtype, 4096)
    expected = registry()[op].expected(call(case))
    right = by_torch(case)
    assert compare(right, expected).passed
    for steps in (4, -4):
        wrong = torch.where(right != 0, stepped(right, steps), right)
        assert compare(wrong, expected).failed == int((right != 0).sum())


@pytest.mark.parametrize("alpha", [2, 0.3125, -7.5])
@pytest.mark.parametrize("dtype", dtype_names.FLOATING)
def test_four_ulps_fail_with_an_alpha_but_where_terms_cancel(dtype, alpha):
    operand = TensorSpec((4096,), dtype)
    case = Case(op="add", args=(operand, operand), kwargs={"alpha": alpha})
    expected = registry()["add"].expected(call(case))
    right = expected.value.to(dtype_names.to_torch(dtype))
    assert compare(right, expected).passed
    assert compare(stepped(right, 4), expected).failed >= 0.9 * 4096


@pytest.mark.parametrize("mode", ["trunc", "floor"])
@pytest.mark.parametrize("dtype", dtype_names.FLOATING)
def test_a_whole_quotient_that_is_off_by_one_fails(dtype, mode):
    operand = TensorSpec((4096,), dtype)
    case = Case(op="div", args=(operand, operand), kwargs={"rounding_mode": mode})
    expected = registry()["div"].expected(call(case))
    right = by_torch(case)
    small = right.abs() < 2 ** (float_formats.FORMATS[right.dtype].precision - 3)
    wrong = torch.where(small, right + 1, right)
    allowed = int((expected.bound.broadcast_to(right.shape)[small] > 0).sum())
    assert allowed <= 0.01 * 4096
    assert compare(wrong, expected).failed >= int(small.sum()) - allowed


@pytest.mark.parametrize("length", [16, 256, 4096])
@pytest.mark.parametrize("dtype", dtype_names.HALF)
def test_half_products_fail_when_one_element_is_off_by_a_thousandth(dtype, length):
    case = normal("mm", dtype, length)
    expected = registry()["mm"].expected(call(case))
    right = expected.value.to(dtype_names.to_torch(dtype))
    assert compare(right, expected).passed
    place = divmod(int(expected.value.abs().argmax()), 24)
    for factor in (1 + 1e-3, 1 - 1e-3):
        wrong = right.clone()
        # bfloat16 has no number a thousandth away: at least its next but one.
        step = np.sign(factor - 1) * 2 * float_formats.ulp(expected.value[place].numpy(), right.dtype)
        change = (factor - 1) * expected.value[place]
        wrong[place] = float(expected.value[place]) + float(max(change, step, key=abs))
        found = compare(wrong, expected)
        assert (found.failed, found.index) == (1, place)


@pytest.mark.parametrize("dtype", dtype_names.FLOATING)
def test_a_product_accumulated_in_half_or_missing_a_term_fails(dtype):
    case = normal("mm", dtype, 257)
    expected = registry()["mm"].expected(call(case))
    first, second = call(case).args
    missing = (first[:, :-1].double() @ second[:-1].double()).to(first.dtype)
    assert compare(missing, expected).failed > 0.8 * 24 * 24
    if dtype in dtype_names.HALF:
        total = torch.zeros(24, 24, dtype=first.dtype)
        for k in range(257):
            total += first[:, k : k + 1] * second[k : k + 1]
        assert not compare(total, expected).passed


@pytest.mark.parametrize("dtype", dtype_names.FLOATING)
def test_a_softmax_that_misses_a_term_fails(dtype):
    case = Case(op="softmax", args=(TensorSpec((8, 129), dtype), -1))
    expected = registry()["softmax"].expected(call(case))
    terms = (x := call(case).args[0].double()).sub(x.amax(-1, True)).exp()
    wrong = terms / terms[:, :-1].sum(-1, keepdim=True)
    assert not compare(wrong.to(x.dtype).to(dtype_names.to_torch(dtype)), expected).passed
