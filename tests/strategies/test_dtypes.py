"""Names, formats and draws of dtypes."""

from __future__ import annotations

import pytest
import torch

from strategies import dtypes

FLOATS = dtypes.FLOATING + dtypes.FP8


@pytest.mark.parametrize("name", dtypes.NAMES)
def test_names_are_those_of_torch(name):
    dtype = dtypes.to_torch(name)
    assert dtypes.from_torch(dtype) == name
    assert dtypes.format_of(name).bits == 8 * dtype.itemsize
    assert dtypes.is_floating(name) == dtype.is_floating_point


@pytest.mark.parametrize("name", FLOATS)
def test_formats_are_those_of_torch(name):
    form, info = dtypes.format_of(name), torch.finfo(dtypes.to_torch(name))
    assert form.largest == info.max
    assert 2.0**-form.mantissa == info.eps
    assert 2.0 ** (1 - form.bias) == info.tiny

    def decoded(bits: int) -> float:
        signed = {8: torch.int8, 16: torch.int16, 32: torch.int32, 64: torch.int64}[form.bits]
        return torch.tensor([bits], dtype=signed).view(dtypes.to_torch(name)).double().item()

    assert decoded(form.inf_bits - 1) == info.max
    assert decoded(form.nan_bits) != decoded(form.nan_bits)
    assert not form.infinity or decoded(form.inf_bits) == float("inf")


def test_families_are_disjoint_and_whole():
    families = dtypes.FLOATING + dtypes.FP8 + dtypes.INTEGRAL + dtypes.BOOL
    assert sorted(families) == sorted(dtypes.NAMES)
    assert set(dtypes.ALL) == set(dtypes.NAMES) - set(dtypes.FP8)


def test_unknown_names_are_refused_naming_the_valid_ones():
    with pytest.raises(ValueError, match=r"unknown dtype 'half'; known: float32, float16"):
        dtypes.to_torch("half")
    with pytest.raises(ValueError, match="unknown dtype 'complex64'"):
        dtypes.from_torch(torch.complex64)
    with pytest.raises(ValueError, match="unknown dtype 'half'"):
        dtypes.dtypes(["float32", "half"])


def test_scalars_compute_in_float32_for_narrow_types():
    assert {dtypes.compute_dtype(name) for name in dtypes.HALF + dtypes.FP8} == {"float32"}
    assert dtypes.compute_dtype("float64") == "float64"
    assert dtypes.compute_dtype("int8") == "int8"


def test_each_dtype_is_drawn(examples):
    assert set(examples(dtypes.dtypes(dtypes.NAMES), 200)) == set(dtypes.NAMES)


def test_pairs_are_equal_and_mixed(examples):
    found = examples(dtypes.pairs(), 300)
    assert {first for first, _ in found} == set(dtypes.ALL)
    equal = sum(first == second for first, second in found)
    # Each of the 100 pairs is drawn once, then Hypothesis has none left.
    assert 0.05 < equal / len(found) < 0.9
    assert any(dtypes.is_floating(first) != dtypes.is_floating(second) for first, second in found)
