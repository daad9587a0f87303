"""Derived bounds at roundings: casts, ties, and which rounding of a reference an implementation may leave out."""

from __future__ import annotations

import pytest
import torch
from error_analysis_tools import analysed, operands, share

from conformance.compare import compare
from conformance.float_formats import FORMATS
from conformance.spec import Expected


def test_a_number_is_rounded_before_it_is_compared():
    x = torch.tensor([0.1, 0.3, 2.0], dtype=torch.bfloat16)
    for function in (lambda x: x > 0.1, lambda x: x == 0.3, lambda x: x <= 0.3):
        found = analysed(function, x)
        assert found.judged.all()
        assert torch.equal(found.value, function(x))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize(
    "function", [lambda x: x + 0.5, lambda x: -0.5 - x, lambda x: x.sub(x.new_tensor(0.5)), lambda x: 1.5 * x]
)
def test_one_rounding_is_to_the_nearest_and_ties_to_even(function, dtype):
    # Halves of odd numbers with as many bits as the dtype lie between two numbers.
    first = 2 ** (FORMATS[dtype].precision - 1)
    x = torch.arange(first, first + 64, dtype=torch.float64).to(dtype)
    assert share(function, x) <= 1
    exact = function(x.double()) if dtype != torch.float64 else None
    for end in (torch.inf, 0.0):
        # Each tie to the other of its neighbours, and nothing else.
        def turned(result, end=end):
            other = torch.nextafter(result, result.sign() * end)
            if exact is None:
                return other
            tied = (other.double() - exact).abs() == (result.double() - exact).abs()
            return torch.where(tied, other, result)

        assert share(function, x, changed=turned) > 1


def test_what_is_written_to_a_part_of_a_product_is_not_one_rounding():
    def reference(x):
        y = x * 1.5
        y[:3] = torch.exp(x[:3])
        return y

    x = torch.randn(9, generator=torch.Generator().manual_seed(0))
    assert share(reference, x) <= 1
    assert not analysed(reference, x).rounded
    assert analysed(lambda x: x * 1.5, torch.tensor([1.0, float("inf"), float("nan")])).rounded


def test_a_cast_is_one_rounding():
    x = torch.tensor([1 + 2.0**-8, 1 + 3 * 2.0**-8, 3.0], dtype=torch.float32)

    def cast(x):
        return x.to(torch.bfloat16)

    assert share(cast, x) <= 1
    assert share(cast, x, changed=lambda r: torch.tensor([1 + 2.0**-7, 1 + 2.0**-6, 3.0]).to(r.dtype)) > 1


def test_a_tensor_without_dims_may_be_rounded_to_the_dtype_beside_it():
    x, factor = operands(torch.bfloat16)[0], torch.tensor(1.2345)
    assert share(lambda x, y: y * x, x, factor) <= 1
    # As on CUDA.
    assert share(lambda x, y: y * x, x, factor, changed=lambda _: (x.float() * factor).to(x.dtype)) <= 1
    assert share(lambda x, y: y * x, x, factor, changed=lambda _: (x.float() * factor * 1.02).to(x.dtype)) > 1


def test_an_explicit_cast_may_round_or_not():
    x, y = operands(torch.bfloat16)
    reference = lambda x, y: (x.float() * 1.1).to(x.dtype).float() * y.float()  # noqa: E731
    found = analysed(reference, x, y)
    for result in (reference(x, y), x.float() * 1.1 * y.float()):
        assert compare(result, Expected(found.value, found.bound, found.judged)).passed
    strict = analysed(lambda x, y: (x.float() * 1.1) * y.float(), x, y)
    assert not compare(reference(x, y), Expected(strict.value, strict.bound, strict.judged)).passed


def test_a_result_may_be_rounded_in_the_next_binade():
    """Of two float8 numbers, 1.0625 is rounded to 1 or to 1.125: near 2048 one product of them is below a power of two,
    and the other above it, where half an ulp is twice as much."""
    tenfold = torch.tensor([10.625])
    found = analysed(lambda x: ((x * 0.1).to(torch.float8_e4m3fn).float() * 1970.0).half(), tenfold)
    for eighth in (1.0, 1.125):
        result = torch.tensor([eighth * 1970.0]).half()
        assert compare(result, Expected(found.value, found.bound, found.judged)).passed
    assert float(found.bound) > 0.125 * 1970 + 0.4


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_equal_factors_are_rounded_alike_by_a_cast(dtype):
    """Of five hundred equal factors all roundings have one sign, so their sum grows with their number; what is left of
    two such sums may be less than that."""
    x = torch.full((2, 1000), 1.3, dtype=dtype)
    scale = torch.tensor([1.1] * 500 + [1.1002 if dtype == torch.float16 else 1.101] * 500)
    y = torch.tensor([1.0] * 500 + [-1.0] * 500)[:, None].to(dtype)

    def reference(x, y):
        return (x.float() * scale).to(x.dtype) @ y

    found = analysed(reference, x, y)
    expected = Expected(found.value, found.bound, found.judged)
    for result in (reference(x, y), ((x.float() * scale) @ y.float()).to(dtype)):
        assert compare(result, expected).passed
    assert not compare(found.value.to(dtype) * 3, expected).passed


def test_an_explicit_cast_counts_in_inference_mode():
    x, y = operands(torch.bfloat16)
    reference = lambda x, y: (x.float() * 1.1).to(x.dtype).float() * y.float()  # noqa: E731
    with torch.inference_mode():
        found = analysed(reference, x, y)
    assert torch.equal(found.bound, analysed(reference, x, y).bound)
