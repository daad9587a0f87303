"""What ``--sample`` runs of the tests."""

from __future__ import annotations

from collections import Counter

import pytest
from sampled import commit, sampled

pytest_plugins = ["pytester"]

TESTS = """
import pytest

@pytest.mark.parametrize("number", range(40))
def test_many(number): pass

@pytest.mark.parametrize("number", range(2))
def test_few(number): pass

def test_one(): pass

@pytest.mark.slow
@pytest.mark.parametrize("number", range(6))
def test_slow(number): pass

@pytest.mark.slow
def test_slower(): pass
"""


@pytest.fixture
def items(pytester):
    return pytester.getitems(TESTS)


def names(items):
    return Counter(item.name.partition("[")[0] for item in items)


def test_every_test_runs_with_a_part_of_its_parameters(items):
    for seed in map(str, range(20)):
        kept = sampled(items, 4, seed)
        counts = names(kept)
        assert (counts["test_many"], counts["test_few"], counts["test_one"]) == (10, 1, 1)
        assert counts["test_slow"] + counts["test_slower"] in (1, 2), "seven slow ones, one in four"
        assert kept == sorted(kept, key=items.index)


def test_seeds_see_other_parameters_and_a_seed_the_same(items):
    seen = [sampled(items, 4, str(seed)) for seed in range(40)]
    assert {item for kept in seen for item in kept} == set(items)
    assert sampled(items, 4, "7") == seen[7]


def test_one_in_one_is_all(items):
    assert sampled(items, 1, "") == items


def test_a_folder_that_is_no_checkout_has_no_commit(tmp_path):
    assert commit(tmp_path) == ""
