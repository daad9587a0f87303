"""Scalars are exactly representable where they are used, and cover what breaks."""

from __future__ import annotations

import math

import pytest
import torch

from strategies import dtypes, scalars

FLOATS = dtypes.FLOATING + dtypes.FP8


@pytest.mark.parametrize("name", FLOATS)
def test_floats_are_exact_in_the_compute_dtype(examples, name):
    compute = dtypes.to_torch(dtypes.compute_dtype(name))
    found = examples(scalars.floats(name, magnitude=0.3), 300)
    for value in found:
        assert type(value) is float
        assert math.isnan(value) or torch.tensor(value, dtype=torch.float64).to(compute).item() == value
        assert not math.isfinite(value) or abs(value) <= 0.3
    assert any(math.isnan(value) for value in found)
    assert {math.inf, -math.inf} <= set(found)
    assert any(value == 0 and math.copysign(1, value) < 0 for value in found)
    assert len({value for value in found if math.isfinite(value)}) > 30


def test_specials_can_be_left_out(examples):
    assert all(math.isfinite(value) for value in examples(scalars.scalars("float16", specials=False), 300))


@pytest.mark.parametrize("name", dtypes.INTEGRAL)
def test_integers_are_in_range_and_reach_its_ends(examples, name):
    info = torch.iinfo(dtypes.to_torch(name))
    found = examples(scalars.integers(name), 300)
    assert min(found) == info.min
    assert max(found) == info.max
    assert {0, 1, 2} <= set(found)


@pytest.mark.parametrize("name", ["int32", "int16", "int8", "uint8", "bool"])
def test_overflowing_integers_are_outside_at_times(examples, name):
    low, high = (
        (0, 1) if name == "bool" else (torch.iinfo(dtypes.to_torch(name)).min, torch.iinfo(getattr(torch, name)).max)
    )
    found = examples(scalars.scalars(name, kinds=("int",), overflowing=True), 300)
    assert {low - 1, high + 1} <= set(found)
    assert any(low <= value <= high for value in found)
    assert all(-(2**63) <= value < 2**63 for value in found)


@pytest.mark.parametrize("name", dtypes.NAMES)
def test_kinds(examples, name):
    default = {type(value) for value in examples(scalars.scalars(name), 100)}
    kind = dtypes.format_of(name).kind
    assert default == {"float": {float, int}, "bool": {bool}}.get(kind, {int})
    every = {type(value) for value in examples(scalars.scalars(name, kinds=("bool", "int", "float")), 200)}
    assert every == {bool, int, float}


def test_an_unknown_kind_is_refused():
    with pytest.raises(ValueError, match="unknown kind of scalar 'complex'; known: float, int, bool"):
        scalars.scalars("float32", kinds=("complex",))
