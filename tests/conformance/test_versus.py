"""``conformance versus``: who disagrees with whom, and with the oracle."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec
import pytest
import torch

from conformance import __main__ as command_line
from conformance import sequences, versus
from conformance.cases import Case
from conformance.runner import CRASH, judge
from conformance.spec import Expected
from conformance.versus import ORACLE, Report, compare_all
from strategies.specs import Special, TensorSpec

RIGHT = """
import torch

def abs(input, *, out=None):
    return torch.abs(input, out=out)

def relu(input, inplace=False):
    return torch.nn.functional.relu(input, inplace)
"""
WITHOUT_NAN = """
import torch

def relu(input, inplace=False):
    return torch.nan_to_num(torch.nn.functional.relu(input, inplace), posinf=torch.inf)
"""
DEADLY = """
import os, torch
from conformance.implementations import NotProvided

def relu(input, inplace=False):
    if inplace:
        raise NotProvided("not in place")
    if input.isnan().any():
        os.abort()
    return torch.nn.functional.relu(input)
"""


@pytest.fixture
def module(tmp_path):
    """Makes an implementation of a source, and returns its name."""

    def made(name, source):
        path = tmp_path / f"{name}.py"
        path.write_text(source)
        return str(path)

    return made


def relu(tmp_path, *names):
    return compare_all(names, ["relu"], ["float32"], device="cpu", examples=20, folder=tmp_path / "kept")


def test_who_disagrees_is_told_by_kind_of_input_with_the_simplest_case(tmp_path, module):
    wrong = module("without_nan", WITHOUT_NAN)
    json = tmp_path / "sides" / "report.json"
    common = ["--op", "relu", "--dtype", "float32", "--examples", "20", "--device", "cpu"]
    right = module("with_nan", RIGHT)
    status = command_line.main(
        ["versus", right, wrong, *common, "--folder", str(tmp_path / "kept"), "--json", str(json)]
    )
    assert status == command_line.FAILED
    report = msgspec.json.decode(json.read_bytes(), type=Report)
    assert report.implementations == {"with_nan": right, "without_nan": wrong}
    (group,) = report.groups
    assert (group.kind, group.sides, group.outvoted) == (
        "specials=nan",
        ((ORACLE, "with_nan"), ("without_nan",)),
        False,
    )
    assert 1 < group.disputed <= group.cases < report.cases
    assert "elements are wrong" in group.messages["without_nan"]
    saved = sequences.read(Path(group.path))
    assert judge(saved, wrong, checks=["values"]).failure
    assert judge(saved, right, checks=["values"]).status == "passed"


def test_an_oracle_with_which_nobody_agrees_is_outvoted(tmp_path, module):
    report = relu(tmp_path, module("one", WITHOUT_NAN), module("two", WITHOUT_NAN))
    assert {group.sides for group in report.groups} == {((ORACLE,), ("one", "two"))}
    assert all(group.outvoted for group in report.groups)
    assert versus.OUTVOTED in "\n".join(report.lines())


def test_what_dies_disagrees_and_the_others_go_on(tmp_path, module):
    report = relu(tmp_path, module("deadly", DEADLY), module("lossy", WITHOUT_NAN), module("sound", RIGHT))
    assert ((ORACLE, "sound"), ("deadly",), ("lossy",)) in {group.sides for group in report.groups}
    deadly, lossy, sound = report.counts
    assert report.groups[0].messages["deadly"].startswith(f"{CRASH}: the process ended with status -6")
    assert deadly.not_provided > 0
    assert deadly.agreed > 0
    assert 0 < deadly.disagreed <= lossy.disagreed
    assert sound.agreed == report.cases


def test_where_all_agree_the_status_is_0_and_nothing_is_saved(tmp_path, module, capsys):
    common = [
        "--op",
        "abs",
        "--dtype",
        "int8",
        "--examples",
        "4",
        "--device",
        "cpu",
        "--folder",
        str(tmp_path / "kept"),
    ]
    assert command_line.main(["versus", module("one", RIGHT), "torch", *common]) == command_line.PASSED
    assert not (tmp_path / "kept").exists()
    assert "| torch | 4 | 0 | 0 | 0 |" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["torch", "--op", "relu"], "at least two implementations"),
        (["torch", "torch", "--op", "relu"], "at least two implementations"),
        (["torch", "ntops.torch", "--op", "rleu"], "did you mean relu"),
        (["torch", "ntops.torch", "--op", "relu", "--dtype", "float23"], "did you mean float32"),
        (["torch", "ntops.torch", "--op", "relu", "--dtype", "float8_e5m2"], "relu takes"),
        (["torch", "ntops.torch", "--op", "dropout"], "results of dropout are random"),
        (["torch", "no.such_library", "--op", "relu"], "No module named"),
    ],
)
def test_what_cannot_be_compared_is_bad_input(arguments, message, capsys):
    assert command_line.main(["versus", *arguments, "--device", "cpu"]) == command_line.BAD_INPUT
    assert message in capsys.readouterr().err


def test_names_are_as_short_as_they_can_be():
    names = ["torch", "ntops.torch", "a.b:c", "x/y.py", "conformance.oracle"]
    assert [*versus._short(names)] == ["torch", "ntops.torch", "c", "y", "conformance.oracle"]


INF, NAN = math.inf, math.nan


@pytest.mark.parametrize(
    ("one", "other", "alike"),
    [
        ([1.5, 2.0], [1.5, 2.0], True),
        # As far apart as two may be that are right.
        ([1.5, 2.0], [1.5 + 0.19, 2.0], True),
        ([1.5, 2.0], [1.5 + 0.25, 2.0], False),
        ([NAN, 2.0], [NAN, 2.0], True),
        ([NAN, 2.0], [1.5, 2.0], False),
        ([INF, 2.0], [-INF, 2.0], False),
        ([INF, 2.0], [INF, 2.0], True),
    ],
)
@pytest.mark.parametrize("value", [1.0, NAN, INF])
def test_those_on_one_side_are_as_near_as_two_that_are_right(one, other, alike, value):
    expected = Expected(torch.tensor([value, 2.0], dtype=torch.float64), torch.tensor(0.1, dtype=torch.float64))
    # Where the oracle is not finite there is no bound, and only equal results are alike.
    alike = alike and (math.isfinite(value) or one == other or (one[0] != one[0]))
    both = [versus._Made("failed", results=(torch.tensor(values),)) for values in (one, other)]
    dispute = versus._dispute(
        Case(op="relu", args=(TensorSpec((2,), "float32"),)), dict(zip("ab", both, strict=True)), (expected,)
    )
    assert dispute.sides == (((ORACLE,), ("a", "b")) if alike else ((ORACLE,), ("a",), ("b",)))
    assert dispute.outvoted == alike


def test_results_of_other_shapes_or_dtypes_are_not_alike():
    expected = (Expected(torch.zeros(2, dtype=torch.float64), torch.zeros(())),)
    made = [
        versus._Made("failed", results=(tensor,))
        for tensor in (torch.ones(2), torch.ones(2, dtype=torch.float64), torch.ones(1, 2), torch.ones(1, 2))
    ]
    assert [versus._alike(made[0], other, expected) for other in made] == [True, False, False, False]
    assert versus._alike(made[2], made[3], expected)


def test_those_that_raise_the_same_are_on_one_side():
    made = {
        "a": versus._Made("failed", instead="raises RuntimeError"),
        "b": versus._Made("failed", instead="raises RuntimeError"),
        "c": versus._Made("failed", instead="raises ValueError"),
        "d": versus._Made("passed"),
    }
    dispute = versus._dispute(Case(op="relu", args=()), made, ())
    assert dispute.sides == ((ORACLE, "d"), ("a", "b"), ("c",))
    dead = {name: versus._Made("failed", instead=CRASH) for name in "ab"}
    assert not versus._dispute(Case(op="relu", args=()), dead, ()).outvoted


def test_a_kind_of_input_is_what_tells_disputes_from_other_cases():
    def dispute(**how):
        return versus._Dispute(Case(op="relu", args=(TensorSpec((3, 4), "float32", **how),)), (), False, {})

    nan = [dispute(specials=(Special(0, "nan"),), seed=seed) for seed in range(3)]
    large = dispute(values="normal_large", specials=(Special(0, "nan"),))
    # Every call with a NaN is disputed, and one with other values is because it has one, too.
    kinds = {"specials=nan": 4, "values=scaled": 9}
    assert [*versus._by_kind([*nan, large], kinds, 20)] == [("specials=nan", [*nan, large])]
    # All is: then the features tell nothing.
    assert [*versus._by_kind([*nan, large], kinds, 4)] == [(versus.ANY, [*nan, large])]
    plain = [dispute(seed=seed) for seed in range(9)]
    assert [*versus._by_kind([*nan, *plain], {"specials=nan": 3}, 60)] == [("specials=nan", nan), (versus.ANY, plain)]
    # One alone tells nothing of kinds: what it holds is shown.
    assert [*versus._by_kind([large], {"specials=nan": 1, "values=scaled": 1}, 20)] == [
        ("values=scaled, specials=nan", [large])
    ]
    assert [*versus._by_kind(plain[:1], {}, 20)] == [(versus.ANY, plain[:1])]
