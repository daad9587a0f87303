"""How many cases a profile draws."""

from __future__ import annotations

import pytest

from conformance import profiles


@pytest.mark.parametrize(
    ("profile", "pairs", "examples"),
    [("smoke", 1, 15), ("smoke", 8, 15), ("smoke", 250, 8), ("smoke", 394, 5), ("smoke", 4000, 5), ("ci", 394, 100)],
)
def test_smoke_draws_fewer_cases_of_each_of_many_operators(profile, pairs, examples):
    assert profiles.of_run(profile, pairs).max_examples == examples
    assert profiles.of_run(profile, pairs).derandomize == profiles.PROFILES[profile].derandomize
