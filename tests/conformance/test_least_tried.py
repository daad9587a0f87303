"""What drawn cases try they try in turn, each case the same whenever it is judged."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
import torch

from conformance.cases import Case
from conformance.checks import call_record, least_tried
from strategies.specs import TensorSpec


@pytest.fixture(autouse=True)
def _anew():
    least_tried.anew()


def numbered(count):
    return [Case(op="abs", args=(TensorSpec((3,), "float32", seed=seed),)) for seed in range(count)]


def test_each_is_tried_as_often_as_the_others():
    tried = Counter(least_tried.choose(case, "checks", "abcde") for case in numbered(100))
    assert set(tried) == {*"abcde"}
    assert max(tried.values()) - min(tried.values()) <= 10


def test_what_few_cases_can_try_is_tried_first():
    names = [("a", "b", "c", "seldom") if number % 10 == 0 else ("a", "b", "c") for number in range(100)]
    tried = Counter(least_tried.choose(case, "checks", of) for case, of in zip(numbered(100), names, strict=True))
    assert tried["seldom"] >= 5


def test_a_try_that_tells_nothing_is_tried_again():
    names = ("a", "b", "c", "d")
    tells = [number % 3 == 0 for number in range(120)]
    chosen = [least_tried.choose(case, "checks", names, of) for case, of in zip(numbered(120), tells, strict=True)]
    tried = Counter(itertools.compress(chosen, tells))
    assert set(tried) == {*names}
    assert max(tried.values()) - min(tried.values()) <= 6
    assert least_tried._tried["abs", "float32", "checks"] == tried


def test_a_case_tries_the_same_again_unless_it_cannot():
    (case,) = numbered(1)
    first = least_tried.choose(case, "checks", "abc")
    for other in numbered(9)[1:]:
        least_tried.choose(other, "checks", "abc")
    assert least_tried.choose(case, "checks", "abc") == first
    assert least_tried.choose(case, "checks", ["another"]) == "another"


def test_ops_and_dtypes_have_turns_of_their_own():
    for case in numbered(7):
        least_tried.choose(case, "checks", "ab")
    other = Case(op="abs", args=(TensorSpec((3,), "float64"),))
    assert Counter(least_tried.choose(other, what, "ab") for what in ("one", "two")).total() == 2
    assert least_tried._tried["abs", "float64", "one"].total() == 1


def test_a_search_begins_anew_and_goes_on():
    first, second, third = numbered(3)
    least_tried.within("one")
    chosen = least_tried.choose(first, "checks", ["a", "b"])
    least_tried.within("one")
    assert least_tried.choose(first, "checks", ["a", "b"]) == chosen
    least_tried.choose(second, "checks", ["a", "b"])
    assert least_tried._tried["abs", "float32", "checks"].total() == 2
    least_tried.within("another")
    assert least_tried._tried == {}
    least_tried.choose(third, "checks", ["a", "b"])
    assert least_tried._tried["abs", "float32", "checks"].total() == 1


def test_one_element_with_a_long_stride_tells_nothing():
    # torch's attention returns such a tensor.
    assert not call_record._differ(torch.empty_strided((1, 1), (257, 257)).fill_(1))
