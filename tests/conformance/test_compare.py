"""The comparison itself: what passes, what fails, and what is said about the worst element."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from conformance import float_formats
from conformance.compare import compare
from conformance.spec import Expected

INF, NAN = math.inf, math.nan
FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2)


def doubles(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def within(value: torch.Tensor, bound: float = 0.0, **more: object) -> Expected:
    return Expected(value, torch.tensor(bound, dtype=torch.float64), **more)


def neighbours(start: float, count: int, dtype: torch.dtype) -> torch.Tensor:
    """Consecutive numbers of a dtype from ``start`` on."""
    bits = {8: torch.uint8, 16: torch.int16, 32: torch.int32, 64: torch.int64}[8 * dtype.itemsize]
    first = torch.tensor([start], dtype=torch.float64).to(dtype).view(bits)
    return (first + torch.arange(count).to(bits)).view(dtype)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("start", [0.0, 1.0, 1.75, "least", "last"])
def test_ulp_is_the_distance_to_the_next_number(dtype, start):
    form = float_formats.FORMATS[dtype]
    start = {"least": 2.0**form.least, "last": form.max}.get(start, start)
    if start == form.max:
        before = form.max - 2.0 ** (math.frexp(form.max)[1] - form.precision)
        assert neighbours(before, 2, dtype)[1].double() == form.max
        assert float_formats.ulp(np.array([form.max]), dtype)[0] == form.max - before
        return
    here, above = neighbours(start, 2, dtype).double().tolist()
    assert float_formats.ulp(np.array([here]), dtype)[0] == above - here


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_the_nearest_number_passes_and_its_neighbour_fails(dtype):
    grid = neighbours(1.0, 4, dtype)
    values = grid.double()
    step = values[2] - values[1]
    # As a double-double, since float64 has nothing between its neighbours.
    between = within(values[1], low=0.4 * step)
    assert compare(grid[1], between).passed
    for wrong in (grid[0], grid[2], grid[3]):
        assert not compare(wrong, between).passed
    middle = within(values[1], low=step / 2)
    assert compare(grid[1], middle).share == compare(grid[2], middle).share == 1.0


def test_the_bound_is_added_to_half_an_ulp():
    output = torch.tensor([1.0, 2.0])
    assert compare(output, within(doubles(1.0, 2.0 + 2**-23 + 2**-20), 2**-20)).passed
    assert not compare(output, within(doubles(1.0, 2.0 + 2**-23 + 2**-19), 2**-20)).passed


def test_subnormals_have_a_fixed_step():
    tiny = torch.finfo(torch.float32).tiny * 2**-23
    output = torch.tensor([0.0, tiny, 2 * tiny])
    assert compare(output, within(doubles(tiny / 2, tiny * 1.5, tiny * 1.5))).passed
    # Flushing to zero is an error like any other.
    assert not compare(torch.tensor([0.0]), within(doubles(tiny))).passed
    assert compare(doubles(5e-324), within(doubles(5e-324))).passed
    assert not compare(doubles(0.0), within(doubles(5e-324))).passed


def test_nan_belongs_where_the_oracle_is_nan_and_nowhere_else():
    assert compare(torch.tensor([NAN, -NAN, 1.0]), within(doubles(NAN, NAN, 1.0))).passed
    for ours, oracle in ((NAN, 1.0), (1.0, NAN), (INF, NAN), (NAN, INF), (0.0, NAN)):
        found = compare(torch.tensor([0.0, ours]), within(doubles(0.0, oracle), 1e9))
        assert not found.passed
        assert found.share == INF
        assert found.index == (1,)


def test_infinities_have_to_be_the_same():
    assert compare(torch.tensor([INF, -INF]), within(doubles(INF, -INF))).passed
    for ours in (-INF, torch.finfo(torch.float32).max, 0.0):
        assert not compare(torch.tensor([ours]), within(doubles(INF), 1e9)).passed
    assert not compare(torch.tensor([INF]), within(doubles(1e38), 1e30)).passed


def test_overflow_may_round_either_way_within_the_bound():
    largest = torch.finfo(torch.float16).max
    edge = largest + 16.0  # half an ulp beyond: from here on rounding to nearest gives infinity
    finite, infinite = torch.tensor([largest]).half(), torch.tensor([INF]).half()
    assert compare(infinite, within(doubles(edge))).passed
    assert compare(finite, within(doubles(edge))).passed
    assert not compare(infinite, within(doubles(edge - 1))).passed
    assert not compare(finite, within(doubles(edge + 1))).passed
    assert compare(infinite, within(doubles(edge - 1), 2.0)).passed
    assert compare(finite, within(doubles(edge + 1), 2.0)).passed
    assert not compare(-infinite, within(doubles(edge + 1), 2.0)).passed
    assert compare(-infinite, within(doubles(-edge - 1))).passed
    assert compare(doubles(INF), within(doubles(INF))).passed


def test_an_overflow_is_nan_in_a_format_without_infinities():
    nan = torch.tensor([NAN]).to(torch.float8_e4m3fn)
    assert compare(nan, within(doubles(500.0))).passed
    assert compare(nan, within(doubles(INF))).passed
    assert not compare(nan, within(doubles(440.0))).passed


def test_double_double_tells_which_neighbour_is_nearer():
    above = 1.0 + 2**-52
    middle = {"value": doubles(1.0), "low": doubles(2**-53 + 2**-60)}
    assert compare(doubles(above), within(middle["value"], low=middle["low"])).passed
    assert not compare(doubles(1.0), within(middle["value"], low=middle["low"])).passed


def test_the_sign_of_a_zero_counts_where_asked():
    assert compare(torch.tensor([-0.0]), within(doubles(0.0))).passed
    assert not compare(torch.tensor([-0.0]), within(doubles(0.0), signed_zero=True)).passed
    assert compare(torch.tensor([-0.0]), within(doubles(-0.0), signed_zero=True)).passed
    assert compare(torch.tensor([-0.0]), within(doubles(1e-60), signed_zero=True)).passed
    assert compare(torch.tensor([-0.0]), Expected(torch.tensor([0.0]))).passed
    assert not compare(torch.tensor([-0.0]), Expected(torch.tensor([0.0]), signed_zero=True)).passed


def test_exact_results_are_equal_or_fail():
    whole = torch.tensor([2**53, 2**53 + 1, -(2**63)])
    assert compare(whole.clone(), Expected(whole)).passed
    found = compare(whole + torch.tensor([0, -1, 0]), Expected(whole))
    assert (found.passed, found.index, found.ours, found.oracle) == (False, (1,), 2**53, 2**53 + 1)
    assert not compare(torch.tensor([True]), Expected(torch.tensor([False]))).passed
    assert compare(torch.tensor([NAN, 1.0]), Expected(torch.tensor([NAN, 1.0]))).passed
    assert not compare(torch.tensor([NAN, 1.0]), Expected(torch.tensor([1.0, 1.0]))).passed


def test_the_worst_element_is_named_in_a_failure_and_in_a_success():
    value = doubles(*range(12)).reshape(3, 4)
    output = value.float()
    output[1, 2] += 2**-21
    passing = compare(output, within(value, 1e-6))
    assert passing.passed
    assert passing.index == (1, 2)
    assert passing.share == pytest.approx(2**-21 / (2**-22 + 1e-6))
    assert (passing.judged, passing.failed) == (12, 0)
    assert passing.ulps == 1.0
    output[2, 1] += 0.5
    failing = compare(output, within(value, 1e-6))
    assert (failing.passed, failing.index, failing.ours, failing.oracle) == (False, (2, 1), 9.5, 9.0)
    assert failing.error == 0.5
    assert failing.ulps == 0.5 / 2**-20
    assert failing.allowed == pytest.approx(2**-21 + 1e-6)
    assert failing.failed == 1


def test_elements_that_are_not_judged_are_not_looked_at():
    judged = torch.tensor([True, False])
    found = compare(torch.tensor([1.0, NAN]), within(doubles(1.0, 7.0), judged=judged))
    assert (found.passed, found.judged, found.index, found.ulps) == (True, 1, (0,), 0.0)
    assert compare(torch.tensor([5.0]), within(doubles(1.0), judged=torch.tensor(False))).index is None


def test_an_undefined_bound_lets_nothing_pass():
    assert not compare(torch.tensor([2.0]), within(doubles(1.0), NAN)).passed


def test_shapes_and_dtypes_have_to_fit():
    assert compare(torch.zeros(2, 1), within(doubles(0.0, 0.0))).reason == "shape (2, 1) instead of (2,)"
    assert "dtype" in compare(torch.zeros(1), Expected(torch.zeros(1, dtype=torch.int32))).reason
    assert "dtype" in compare(torch.zeros(1, dtype=torch.int32), within(doubles(0.0))).reason
    assert not compare(torch.zeros(2, 1), within(doubles(0.0, 0.0))).passed


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1, 1)])
def test_scalars_and_empty_tensors(shape):
    assert compare(torch.zeros(shape), within(torch.zeros(shape, dtype=torch.float64))).passed
    assert compare(torch.zeros(shape).long(), Expected(torch.zeros(shape).long())).passed


def test_any_strides():
    value = torch.arange(6.0, dtype=torch.float64).reshape(2, 3)
    assert compare(value.float().t().contiguous().t(), within(value)).passed
    assert compare(value.float().expand(4, 2, 3), within(value.expand(4, 2, 3))).passed


def test_a_million_elements_are_no_million_calls(calls):
    generator = torch.Generator().manual_seed(0)
    value = torch.randn(1 << 20, generator=generator, dtype=torch.float64)
    expected = Expected(value, 1e-7 * value.abs())
    output = value.float()
    assert calls(lambda: compare(output, expected)) < 1000
