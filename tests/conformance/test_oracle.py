"""The oracle's arithmetic against Python's fractions and mpmath, which share nothing with it."""

from __future__ import annotations

import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
import torch

from conformance import oracle

LEAST = Fraction(2) ** -1074


def exactly(value: np.ndarray, low: np.ndarray, index: tuple[int, ...]) -> Fraction:
    return Fraction(float(value[index])) + Fraction(float(low[index]))


def nearest(value: Fraction) -> float:
    """Python rounds a quotient of integers correctly."""
    try:
        return value.numerator / value.denominator
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def numbers(seed: int, count: int, spread: int) -> np.ndarray:
    """Normal numbers with exponents up to ``spread`` either way; now and then a power of two or a short one."""
    generator = np.random.Generator(np.random.Philox(seed))
    exponents = generator.integers(-spread, min(spread, 1015) + 1, count)
    values = np.ldexp(generator.standard_normal(count), exponents)
    values[::7] = np.ldexp(1.0, exponents[::7])
    values[3::7] = np.float32(values[3::7] if spread < 100 else 1.5)
    return values


@pytest.mark.parametrize("spread", [0, 40, 530, 1060])
@pytest.mark.parametrize("operation", ["multiply", "divide"])
def test_products_and_quotients_are_rounded_correctly_and_the_rest_is_right(operation, spread):
    a, b = numbers(1, 4000, spread), numbers(2, 4000, spread)
    value, low = getattr(oracle, operation)(a, b)
    for i, (x, y) in enumerate(zip(a, b, strict=True)):
        if not y:
            continue
        x, y = Fraction(float(x)), Fraction(float(y))
        want = x * y if operation == "multiply" else x / y
        assert value[i] == nearest(want)
        if math.isfinite(value[i]) and abs(want) > Fraction(2) ** -960:
            assert abs(exactly(value, low, (i,)) - want) <= abs(want) * Fraction(2) ** -103


@pytest.mark.parametrize("operation", [oracle.multiply, oracle.divide])
def test_special_values_are_those_of_ieee_754(operation):
    special = np.array([0.0, -0.0, 1.0, -3.0, math.inf, -math.inf, math.nan, 5e-324, 1.7e308])
    a, b = (x.ravel() for x in np.meshgrid(special, special))
    value, low = operation(a, b)
    with np.errstate(all="ignore"):
        plain = a * b if operation is oracle.multiply else a / b
    np.testing.assert_array_equal(value, plain)
    np.testing.assert_array_equal(np.signbit(value[~np.isnan(value)]), np.signbit(plain[~np.isnan(plain)]))
    assert np.isfinite(low).all()


def test_sums_with_a_product_keep_what_cancels():
    a, b, alpha = numbers(3, 3000, 30), numbers(4, 3000, 30), numbers(5, 3000, 30)
    a[::3] = -(alpha * b)[::3]
    (value, low), product = oracle.add_product(a, alpha, b)
    np.testing.assert_array_equal(product, alpha * b)
    for i in range(len(a)):
        want = Fraction(float(a[i])) + Fraction(float(alpha[i])) * Fraction(float(b[i]))
        scale = abs(Fraction(float(product[i]))) + abs(Fraction(float(a[i])))
        assert abs(exactly(value, low, (i,)) - want) <= scale * Fraction(2) ** -102


@pytest.mark.parametrize("shape", [(3, 5, 4), (1, 1, 1), (7, 33, 2), (2, 0, 3), (0, 3, 2), (40, 130, 60)])
@pytest.mark.parametrize("spread", [2, 400])
def test_matrix_products_are_exact_to_a_hundred_bits(shape, spread):
    m, k, n = shape
    a, b = numbers(6, m * k, spread).reshape(m, k), numbers(7, k * n, spread).reshape(k, n)
    if k > 3:
        a[:, 1], b[1, :] = -a[:, 0], b[0, :]  # cancels
    value, low = oracle.matmul(a, b)
    assert value.shape == (m, n)
    for i in range(min(m, 6)):
        for j in range(min(n, 6)):
            terms = [Fraction(float(x)) * Fraction(float(y)) for x, y in zip(a[i], b[:, j], strict=True)]
            want, size = sum(terms, Fraction(0)), sum(map(abs, terms), Fraction(0))
            assert abs(exactly(value, low, (i, j)) - want) <= size * Fraction(2) ** -98 + LEAST


def test_matrix_products_of_extreme_ranges_stay_exact():
    a = np.array([[1e300, 1e-300, 0.0], [5e-324, 1.0, 3.0]])
    b = np.array([[0.0, 1e-300], [1e300, 1.0], [2.0, 1e-310]])
    value, low = oracle.matmul(a, b)
    for i in range(2):
        for j in range(2):
            want = sum(Fraction(float(x)) * Fraction(float(y)) for x, y in zip(a[i], b[:, j], strict=True))
            assert value[i, j] == nearest(want)
            assert abs(exactly(value, low, (i, j)) - want) <= abs(want) * Fraction(2) ** -100


def test_mpmath_is_applied_to_rows():
    rows = np.array([[1.0, 2.0], [3.0, -600.0]])
    value, low = oracle.by_mpmath(lambda row: [mpmath.exp(x) for x in row], rows)
    with mpmath.workprec(200):
        for index in np.ndindex(2, 2):
            want = mpmath.exp(mpmath.mpf(rows[index]))
            got = mpmath.mpf(value[index]) + mpmath.mpf(low[index])
            assert abs(got - want) <= want * mpmath.mpf(2) ** -104


def test_tensors_become_the_common_dtype_and_scalars_the_compute_dtype():
    third = 1 / 3
    assert oracle.operand(torch.tensor(third, dtype=torch.float64), torch.float16) == float(np.float16(third))
    assert oracle.operand(third, torch.float16) == float(np.float32(third))
    assert oracle.operand(third, torch.float64) == third
    assert oracle.operand(torch.tensor([70000]), torch.float16) == math.inf
    assert oracle.operand(torch.tensor([2**24 + 1]), torch.float32) == 2**24
    assert not oracle.exact_scalar(third, torch.bfloat16)
    assert oracle.exact_scalar(third, torch.float32)
    assert oracle.exact_scalar(0.5, torch.bfloat16)
    assert oracle.exact_scalar(math.nan, torch.float16)


def test_range_is_that_of_the_compute_dtype():
    values = np.array([1e5, 3e38, 4e38, math.inf, math.nan])
    assert oracle.in_range(values, torch.float16).tolist() == [True, True, False, True, True]
    assert oracle.in_range(values, torch.float64).all()


def test_what_has_no_real_value_is_nan():
    high, low = oracle.by_mpmath(lambda row: [mpmath.sqrt(x) for x in row], np.array([[4.0, -4.0]]))
    assert (high[0, 0], low[0, 0]) == (2, 0)
    assert np.isnan(high[0, 1])
