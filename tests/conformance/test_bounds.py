"""The bounds: the constants of the table, and their use."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from conformance import bounds, float_formats, mode_calls, product_bounds, repro_data
from conformance.ops import _expectations as expectations
from conformance.spec import Call

U = 2.0**-24


def test_formats_are_torchs():
    for dtype, form in float_formats.FORMATS.items():
        info = torch.finfo(dtype)
        assert form.max == info.max
        assert form.unit == info.eps / 2
        assert 2.0**form.least == info.smallest_normal
        assert form.subnormal == info.smallest_normal * info.eps
        assert form.infinite == bool(torch.tensor([math.inf]).to(dtype).double().isinf().any())


def test_half_types_compute_in_float32():
    for dtype in (torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2, torch.float32):
        assert float_formats.compute_dtype(dtype) == torch.float32
    assert float_formats.compute_dtype(torch.float64) == torch.float64


def test_rounding_never_goes_under_half_a_subnormal():
    values = np.array([0.0, 1e-45, 1.0, -8.0])
    assert float_formats.rounding(values, torch.float32).tolist() == [2.0**-150, 2.0**-150, U, 8 * U]


def test_add_counts_the_product_and_a_second_rounding():
    value, product = np.array([1.0]), np.array([4.0])
    assert bounds.add(value, product, torch.float32, exact=True, wide=False) == 0
    assert bounds.add(value, product, torch.float32, exact=False, wide=False) == 4 * U
    assert bounds.add(value, product, torch.float64, exact=False, wide=False) == 4 * 2.0**-53
    assert bounds.add(value, product, torch.float16, exact=True, wide=False) == 0
    assert bounds.add(value, product, torch.float16, exact=False, wide=False) == 5 * U
    assert bounds.add(value, product, torch.float16, exact=True, wide=True) == U


def test_div_is_rounded_correctly():
    assert bounds.div(np.array([3.0]), torch.float32, wide=False) == 0
    assert bounds.div(np.array([3.0]), torch.float32, wide=True) == 0
    assert bounds.div(np.array([2.0]), torch.bfloat16, wide=True) == 2 * U


def test_truncation_may_round_the_quotient_first():
    quotient = np.array([2.9999, 2.5, -2.9999, 1e30, math.inf, math.nan])
    with np.errstate(all="ignore"):
        found = bounds.trunc(np.trunc(quotient), quotient, torch.float16)
        in_float32 = bounds.trunc(np.trunc(quotient), quotient, torch.float32)
    assert found.tolist() == [1, 0, 1, 0, 0, 0]
    assert not in_float32.any()  # there 2.9999 is not 3


def test_a_floor_is_exact_as_long_as_two_roundings_cannot_reach_the_next_number():
    assert bounds.floor(np.array([2.0**22 - 1, 2.0**22, 2.0**30, math.inf]), torch.float32).tolist() == [0, 1, 128, 0]
    assert bounds.floor(np.array([511.0, 512.0]), torch.float16).tolist() == [0, 1]


def test_softmax():
    found = bounds.softmax(np.array([0.5]), np.full(16, 4.0), torch.float16)[:1]
    assert found == 0.5 * U * (1.5 * 4 + 2 * 4 + 8) + 2.0**-150
    # An element infinitely far below the largest is zero, and its bound no NaN.
    assert bounds.softmax(np.array([0.0]), np.array([math.inf]), torch.float32) == 2.0**-150


@pytest.mark.parametrize("values", [2, 5, 17, 200])
def test_one_accumulator_may_drift_by_exponentials_of_few_values(values):
    """Added one after the other in float32."""
    below = np.random.Generator(np.random.Philox(7)).integers(0, values, 16384) * (8 / values)
    terms = np.exp(-below).astype(np.float32)
    exact = terms.astype(np.float64).sum()
    off = abs(float(np.add.accumulate(terms)[-1]) - exact) / exact / U
    assert off <= bounds.exponentials(below)[0]
    if values == 2:
        assert off > 2 * math.sqrt(16384)


def test_exponentials_of_many_values_walk():
    below = np.linspace(0.0, 9.0, 1 << 14).reshape(2, -1)
    assert bounds.exponentials(below).tolist() == [[2 * math.sqrt(1 << 13)]] * 2
    assert bounds.exponentials(np.where(below > 1, np.inf, 0.0)).tolist() == [[2 * math.sqrt(1 << 13)]] * 2


@pytest.mark.parametrize("precision", ["highest", "high", "medium"])
def test_products_follow_the_precision_that_is_set(precision):
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision(precision)
        ieee = 4 * U * 4 * 10 + 16 / 8 * U * 3 + 16 * 2.0**-150
        tf32 = 2.0**-10 * 3 + 2.0**-9 * 5
        value, magnitude, spread = np.array([-3.0]), np.array([10.0]), np.array([5.0])
        found = product_bounds.product(value, magnitude, spread, 16, torch.float32)
        assert found == pytest.approx(ieee if precision == "highest" else ieee + tf32, rel=1e-12)
        assert product_bounds.product(value, magnitude, spread, 16, torch.bfloat16) == pytest.approx(ieee, rel=1e-12)
    finally:
        torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize("terms", [1000, 17292, 65536])
def test_one_accumulator_may_drift_by_equal_terms(terms):
    drifts = []
    for factor in np.random.default_rng(0).uniform(1, 2, 40).astype(np.float32):
        row, column = np.full((1, terms), factor, np.float64), np.ones((terms, 1))
        value = row @ column
        total = np.cumsum(row[0], dtype=np.float32)[-1]
        equal = product_bounds.equal_terms(row, column, value)
        bound = product_bounds.product(value, value, np.zeros(()), terms, torch.float32, equal)
        assert abs(total - value.item()) <= bound.item()
        drifts.append(abs(total - value.item()) / (terms * U * value.item()))
    assert max(drifts) > 1 / 8
    # Terms of one sign alone are not equal.
    row = np.random.default_rng(0).uniform(0, 1, (1, terms))
    assert not product_bounds.equal_terms(row, column, row @ column).any()


def test_equal_terms_are_rounded_alike_beside_a_large_start():
    """As torch's addmm on the CPU adds them to its input."""
    generator, errors = np.random.default_rng(0), []
    for start, term in zip(*generator.uniform((30000, 1), (40000, 2), (200, 2)).astype(np.float32).T, strict=True):
        total = np.cumsum(np.array([start, *[term] * 37]), dtype=np.float32)[-1]
        scaled, added = 37 * float(term), float(start)
        value = np.array(scaled + added)
        bounded = (
            product_bounds.addmm(
                value, np.array(added), np.array(scaled), 1.0, np.array(scaled), 0.0, 37, torch.float32, equal
            )
            for equal in (False, True)
        )
        errors.append([abs(total - value) / bound for bound in bounded])
    without, alike = np.array(errors).T
    assert without.max() > 1 >= alike.max()


@pytest.mark.parametrize("terms", [1, 16, 128])
def test_tf32_that_cuts_bits_off_is_within_the_bound_where_terms_are_alike(terms):
    """As it is of operands that are expanded along K: nothing averages."""
    columns = np.random.default_rng(0).uniform(1, 2, (2, 1000)).astype(np.float32)
    a, b = (
        np.repeat(columns[0].astype(np.float64)[:, None], terms, 1),
        np.tile(columns[1].astype(np.float64), (terms, 1)),
    )
    value, cut = a @ b, (columns.view(np.uint32) & 0xFFFFE000).view(np.float32).astype(np.float64)
    error = np.abs(terms * cut[0][:, None] * cut[1] - value)
    assert error.max() > 2.0**-9.3 * value.max() / 2
    with mode_calls.reduced_precision(True):
        bound = product_bounds.product(value, value, product_bounds.tf32_spread(a, b), terms, torch.float32)
    assert (error <= bound).all()
    assert (bound <= 2.0**-8 * value).all()


def test_tf32_loses_what_lies_below_its_subnormals():
    """They are 2^-136 apart; of normal numbers nothing is added."""
    least, one = np.full((1, 64), 2.0**-149), np.ones((64, 1))
    spread = product_bounds.tf32_spread(least, one)
    assert product_bounds.TF32_WALK * spread >= least @ one
    assert product_bounds.TF32_WALK * spread == pytest.approx(64 * 2.0**-136, rel=1e-3)
    normal = np.full((1, 64), 2.0**-126)
    assert product_bounds.tf32_spread(normal, one) == pytest.approx(8 * 2.0**-126, rel=1e-12)


def test_a_result_stored_as_another_dtype_is_rounded_twice():
    value = np.array([1.0, 3.0])
    assert float_formats.stored(value, torch.float32, torch.float32) == 0
    assert float_formats.stored(value, torch.float32, torch.float16).tolist() == [2.0**-24, 2.0**-23]
    assert float_formats.stored(value, torch.float16, torch.float32).tolist() == [2.0**-11, 2.0**-10]
    assert float_formats.stored(np.array([1.0]), torch.float64, torch.float16) == 2.0**-53 + 2.0**-24


def test_a_bound_is_in_the_range_where_it_fits():
    """Its factors times the largest number do not, before the unit makes them small."""
    large = np.array([1e308])
    for bound in (
        product_bounds.product(large, large, np.zeros(()), 64, torch.float64),
        product_bounds.total(large, large, 64, torch.float64),
        product_bounds.cumulative(large, large, torch.float64),
    ):
        assert (bound < 1e-14 * large).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_product_of_subnormals_may_be_off_by_a_step(dtype):
    """A sum of two roundings is, and float64 has no half steps."""
    step = np.array([float_formats.FORMATS[dtype].subnormal])
    assert product_bounds.product(7 * step, 7 * step, np.zeros(()), 1, dtype) >= step / 2
    assert product_bounds.product(7 * step, 7 * step, np.zeros(()), 1, dtype) > 0


def test_a_bound_that_is_unknown_judges_nothing():
    value = np.array([1.0, np.nan, np.inf])
    call = Call((torch.zeros(3),), {}, torch.zeros(3))
    bound = expectations.within(call, value, np.full(3, np.nan), torch.float32).bound
    assert bound.tolist()[0] == math.inf
    assert repro_data.interval(1.0, 0.0, math.inf, 0.0, float_formats.FORMATS[torch.float32]) == (-math.inf, math.inf)
