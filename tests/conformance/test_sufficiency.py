"""Nothing that was not judged makes a run green."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from test_suite import QUICK, _torch_is_whole, suite  # noqa: F401

from conformance import cases, sufficiency
from conformance.cases import Case
from conformance.checks import Finding
from conformance.implementations import Implementation, ImplementationError, load
from conformance.metrics import Tally
from conformance.runner import NOT_PROVIDED, Verdict
from conformance.session import Run
from strategies.specs import TensorSpec

pytest_plugins = ["pytester"]


def tally(judged: int = 0, refused: int = 0, left_out: int = 0, out_of_memory: int = 0) -> Tally:
    """Of legal calls of relu: so many of each."""
    found, kinds = Tally(), ["passed"] * (judged + refused) + [NOT_PROVIDED] * left_out
    for seed, status in enumerate([*kinds, *["out_of_memory"] * out_of_memory]):
        case = Case(op="relu", args=(TensorSpec((3,), "float32", seed=seed),))
        findings = (Finding("provided", NOT_PROVIDED, "no form"),) if status == NOT_PROVIDED else ()
        refusal = judged <= seed < judged + refused
        found.add(case, Verdict(cases.case_id(case), "relu", status, findings, refusal), legal=True)
    return found


RELU = Implementation("library", torch.nn.functional)
DECLARED = Implementation("library", torch.nn.functional, {}, {"relu": "half of it"})


@pytest.mark.parametrize(
    ("counts", "implementation", "complaint"),
    [
        ({"judged": 20}, RELU, ""),
        ({"judged": 19, "refused": 1}, RELU, ""),
        ({"judged": 95, "refused": 5}, RELU, ""),
        ({"judged": 94, "refused": 6}, RELU, "relu: torch refuses 6 of 100 calls that were drawn as legal ones"),
        ({"refused": 15}, RELU, "relu: torch refuses 15 of 15 calls"),
        ({"judged": 10, "left_out": 10}, RELU, ""),
        ({"judged": 10, "left_out": 11}, RELU, "relu: library leaves out 11 of 21 calls; more than 50%"),
        ({"judged": 10, "left_out": 11}, DECLARED, ""),
        ({"left_out": 11}, DECLARED, "nothing was judged"),
        ({"out_of_memory": 3}, RELU, "nothing was judged"),
        ({}, RELU, "nothing was judged"),
    ],
)
def test_complaints(counts, implementation, complaint):
    found = sufficiency.complaints(tally(**counts).by_op(), implementation)
    assert "\n".join(found).startswith(complaint)
    assert bool(found) == bool(complaint)


def test_saved_cases_of_an_op_that_there_is_not_are_no_complaint():
    without = Implementation("library", SimpleNamespace(neg=torch.neg))
    assert sufficiency.complaints(tally(left_out=3).by_op(), without, others=1) == []


def test_an_op_that_is_asked_for_has_to_be_judged():
    records = tally(judged=20).by_op()
    assert sufficiency.complaints(records, RELU, ["relu"]) == []
    (complaint,) = sufficiency.complaints(records, RELU, ["relu", "mm"])
    assert complaint == "mm: asked for by --op, and not provided by library"
    lacking = tally(left_out=3).by_op()
    assert "relu: asked for by --op, and no call of it has a verdict" in sufficiency.complaints(
        lacking, DECLARED, ["relu"], others=2
    )


def test_tests_of_an_op_as_a_whole_are_a_verdict():
    assert sufficiency.complaints([], RELU, others=1) == []


@pytest.mark.slow
def test_legal_calls_that_torch_refuses_fail_the_run(suite, pytester, monkeypatch):  # noqa: F811
    """As in a process where the implementation has broken torch: every verdict is that of a refusal."""

    def refused(self, case, thorough=True, checks=None, search=""):
        return Verdict(cases.case_id(case), case.op, "passed", (Finding("errors", "passed"),), refused=True)

    monkeypatch.setattr(Run, "judge", refused)
    result = suite(*QUICK, "--metrics", "m.json")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert result.parseoutcomes().get("failed") is None, "no case fails; the run does"
    result.stdout.re_match_lines(
        [r"relu: torch refuses \d+ of \d+ calls that were drawn as legal ones; at most 5% may be"]
    )
    assert "torch refuses" in (pytester.path / "m.json").read_text()


def test_calls_that_are_left_out_are_told_with_the_reason(suite, pytester):  # noqa: F811
    source = """
        from types import SimpleNamespace
        from conformance.implementations import NotProvided

        def relu(input, inplace=False):
            raise NotProvided("rows only")

        declared = SimpleNamespace(relu=relu, conformance_left_out={"relu": "no rows are drawn"})
    """
    pytester.makepyfile(evasive=source)
    for implementation in ("evasive", "evasive:declared"):
        result = suite(*QUICK, implementation=implementation)
        assert result.ret == pytest.ExitCode.TESTS_FAILED
        result.stdout.re_match_lines([r"relu: \d+ calls left out: rows only", "nothing was judged: no call of .*"])
        assert ("has to be declared" in result.stdout.str()) == (implementation == "evasive")


def test_a_collection_alone_fails_nothing(suite):  # noqa: F811
    assert suite(*QUICK, "--collect-only", "-q").ret == pytest.ExitCode.OK


@pytest.mark.parametrize("declared", [{"relu": ""}, {"relu": 3}, ["relu"], "relu"])
def test_declarations_are_checked(declared, pytester):
    pytester.makepyfile(declares=f"conformance_left_out = {declared!r}")
    pytester.syspathinsert()
    with pytest.raises(ImplementationError, match="conformance_left_out maps op names to reasons"):
        load("declares")
