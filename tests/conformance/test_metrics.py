"""Counts: what one process counted and another merges is what one process alone would have counted."""

from __future__ import annotations

import json
import sys

import msgspec

from conformance import case_files, cases, metrics
from conformance.cases import Case
from conformance.checks import Finding
from conformance.metrics import Record, Tally
from conformance.runner import Verdict
from strategies.specs import TensorSpec


def judged(op: str, seed: int, status: str = "passed", share: float = 0.5, **more) -> tuple[Case, Verdict]:
    case = Case(op=op, args=(TensorSpec((3,), "float32", seed=seed), float("nan")))
    found = (Finding("values", status, "why", share, sys.float_info.max), *more.pop("findings", ()))
    return case, Verdict(cases.case_id(case), op, status, found, **more)


ALL = [
    judged("add", 0),
    judged("add", 1, share=0.75),
    judged("add", 2, "failed", share=9.0),
    judged("add", 3, "deviation"),
    judged(
        "add",
        4,
        "not_provided",
    ),
    judged("eq", 0, refused=True, findings=[Finding("deterministic", "unclaimed", "differs")]),
    judged("eq", 1, findings=[Finding("deterministic", "unclaimed", "differs")]),
]


def test_counts():
    tally = Tally()
    for one in ALL * 2:
        tally.add(*one)
    add, eq = tally.sorted()
    assert (add.cases, add.passed, add.failed, add.deviated, add.not_provided, add.refused) == (5, 2, 1, 1, 1, 0)
    assert (eq.cases, eq.passed, eq.refused) == (2, 2, 1)
    assert add.worst is not None
    assert (add.worst.share, add.worst.id) == (0.75, ALL[1][1].id), "of those that passed"
    assert [failure.check for failure in add.failures] == ["values"]
    assert add.deviations["why"].count == 1
    assert add.left_out["why"].count == 1
    assert eq.unclaimed["deterministic"].count == 2
    # Of edges from 2^-10 to 1: three cases up to 0.5, one up to 1, one over it.
    assert add.shares == [0] * 10 + [3, 1, 1]


def test_the_largest_errors_in_ulp_are_kept():
    tally = Tally()
    for seed, (status, ours, theirs) in enumerate((("passed", 0.5, 2.0), ("passed", 1.5, 1.0), ("failed", 9.0, 0.0))):
        case = Case(op="add", args=(TensorSpec((3,), "float32", seed=seed),))
        finding = Finding("values", status, share=0.5, torch_share=0.5, ulps=ours, torch_ulps=theirs)
        tally.add(case, Verdict(cases.case_id(case), "add", status, (finding,)))
    (record,) = tally.sorted()
    assert (record.ulps, record.torch_ulps) == (1.5, 2.0), "ours of the cases that passed"


def test_merging_loses_nothing():
    whole = Tally()
    for one in ALL:
        whole.add(*one, legal=True)
    parts = [Tally(), Tally(), Tally()]
    for number, one in enumerate(ALL):
        parts[number % 3].add(*one, legal=True)
    for order in (parts, parts[::-1]):
        merged = Tally()
        for part in order:
            # As a worker sends it.
            merged.merge(msgspec.json.decode(msgspec.json.encode(part.sorted()), type=list[Record]))
        for ours, theirs in zip(merged.sorted(), whole.sorted(), strict=True):
            ours.failures.sort(key=lambda failure: failure.id)
            # Which case is the example depends on the order, nothing else does.
            named = ("deviations", "unclaimed", "left_out")
            for kind in named:
                assert {n: e.count for n, e in getattr(ours, kind).items()} == {
                    n: e.count for n, e in getattr(theirs, kind).items()
                }
                setattr(ours, kind, getattr(theirs, kind))
            if ours.legal_refused:
                ours.legal_refused.case = theirs.legal_refused.case
            assert ours == theirs


def test_table_and_document():
    tally = Tally()
    for one in ALL:
        tally.add(*one)
    tally.lacks("mm", "int8")
    lines = metrics.table(tally.by_op())
    assert [line.split()[0] for line in lines[:4]] == ["op", "add", "eq", "mm"]
    assert lines[1].split()[1:9] == ["5", "2", "1", "3", "0", "1", "1", "0.750"]
    assert lines[1].split()[9] == "inf", "torch's share"
    assert lines[3].split()[1:] == ["1", "0", "0", "0", "0", "1", "0", "-", "-", "-"]
    assert lines[4] == "of 8 cases 4 judged, 1 refused, 2 not provided, 1 excused, 0 out of memory"
    assert "add: 1 calls left out: why" in lines
    assert "add: known deviation of torch, 1 times: why" in lines
    assert "eq: deterministic is not claimed and broken in 2 cases" in lines
    found = json.loads(metrics.document(tally.sorted(), {"seed": 3}))
    assert (found["schema"], found["seed"]) == (1, 3)
    assert {"torch", "numpy", "hypothesis", "python"} <= set(found["versions"])
    worst = found["records"][0]["worst"]
    assert worst["torch_share"] == sys.float_info.max
    assert cases.case_id(case_files.decode(json.dumps(worst["case"]))) == worst["id"]
