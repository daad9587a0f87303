"""Correct rounding: of every value and tie as torch casts, and what is rounded otherwise fails though it is as near."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from conformance import rounding
from conformance.cases import Case
from conformance.compare import compare
from conformance.implementations import Implementation
from conformance.runner import judge
from conformance.spec import Expected
from strategies.specs import TensorSpec

NARROW = (torch.float32, torch.float16, torch.bfloat16)


def points(dtype: torch.dtype) -> torch.Tensor:
    """Numbers of a dtype, those just between two of them, and the next float32 (float64) on either side."""
    bits = {2: torch.int16, 4: torch.int32}[dtype.itemsize]
    whole = torch.arange(-(2**15), 2**15, dtype=torch.int64)
    numbers = (whole * (1 if dtype.itemsize == 2 else 65521)).to(bits).view(dtype).double()
    numbers = numbers[numbers.isfinite()].sort().values
    middles = (numbers[1:] + numbers[:-1]) / 2 if dtype.itemsize == 2 else numbers * (1 + 2.0**-24)
    if dtype.itemsize == 2:
        middles = middles.float()
        sides = [torch.nextafter(middles, torch.full_like(middles, end)).double() for end in (-1e38, 1e38)]
        return torch.cat([numbers, middles.double(), *sides])
    return torch.cat([numbers, middles, torch.tensor([0.0, -0.0, torch.inf, -torch.inf, 3.5e38, 2.0**-150, 2.0**-151])])


@pytest.mark.parametrize("dtype", NARROW)
def test_nearest_is_what_torch_casts_to(dtype):
    value = points(dtype)
    found = torch.from_numpy(rounding.nearest(value.numpy(), dtype))
    torchs = value.to(dtype).double()
    assert ((found == torchs) & (found.signbit() == torchs.signbit())).all()
    assert np.isnan(rounding.nearest(np.array([np.nan]), dtype)).all()


def test_the_rest_decides_what_looks_like_a_tie():
    value = np.array([1 + 2.0**-24] * 3 + [-1 - 2.0**-24] * 3)
    low = np.array([-1e-30, 0.0, 1e-30, -1e-30, 0.0, 1e-30])
    above = 1 + 2.0**-23
    assert rounding.nearest(value, torch.float32, low).tolist() == [1, 1, above, -above, -1, -1]


def test_ways():
    half, single, double = torch.float16, torch.float32, torch.float64
    assert rounding.ways((single, single), single) == [(single,)]
    assert rounding.ways((single, half), single) == [(single, half, single), (half, single)]
    assert rounding.ways((double, double), half) == [(double, half), (double, single, half)]


def test_a_number_as_near_as_the_right_one_is_wrong_where_the_result_is_rounded_once():
    exact = torch.tensor([1 + 2.0**-24], dtype=torch.float64)
    plain = Expected(exact, torch.zeros(1, dtype=torch.float64))
    once = Expected(plain.value, plain.bound, rounded=(torch.ones(1, dtype=torch.float64),))
    for number in (1.0, 1 + 2.0**-23):
        assert compare(torch.tensor([number]), plain).passed
        found = compare(torch.tensor([number]), once)
        assert (found.passed, found.rounded) == (number == 1, None if number == 1 else 1.0)


def test_the_message_says_what_it_rounds_to():
    x = Case(
        op="mul", args=(TensorSpec((1,), "float32", values="listed:4097"), TensorSpec((1,), "float32", "listed:6145"))
    )

    def mul(input, other, *, out=None):
        result = torch.mul(input, other, out=out)
        return torch.nextafter(result, torch.full_like(result, 1e9))

    verdict = judge(x, Implementation("tested", SimpleNamespace(mul=mul)), checks=["values"])
    assert "it rounds to 25176064.0, the nearest number, ties to even" in verdict.failure.message
    assert judge(x, "torch", checks=["values"]).status == "passed"
