"""Failures by cause."""

from __future__ import annotations

from conformance import cases, failure_causes
from conformance.cases import Case, NonFinite
from conformance.checks import Finding
from conformance.failure_causes import Failed
from conformance.runner import Verdict
from strategies.specs import Layout, Special, TensorSpec

PLAIN = TensorSpec((3, 5), "float32")
NAN = TensorSpec((), "float32", specials=(Special(0, "nan"),))
TRANSPOSED = TensorSpec((3, 5), "float32", layout=Layout(order=(1, 0)))


def failed(op: str, *args, check: str = "values", why: str = "1 of 1 elements are wrong", **kwargs) -> Failed:
    case = Case(op=op, args=args, kwargs=kwargs)
    verdict = Verdict(cases.case_id(case), op, "failed", (Finding(check, "failed", why),))
    return failure_causes.of(case, verdict, f"{op}: all about it")


def test_two_bugs_of_a_library_are_two_groups():
    ops = ("abs", "exp", "neg", "relu", "sin")
    one = [failed(op, NAN) for op in ops] + [failed("add", PLAIN, NAN, alpha=2.0)]
    two = [failed(op, TRANSPOSED) for op in ops[:4]]
    groups = failure_causes.groups([*two, *one])
    assert [(group.feature, len(group.failures)) for group in groups] == [("specials=nan", 6), ("layout=permuted", 4)]
    first, second = groups
    assert first.title == "values, 6 failures, all with specials=nan: abs, add, exp, neg, relu, sin; float32"
    assert second.others == ", ".join(failure.id for failure in second.failures[1:])
    assert {failure.op for failure in second.failures} == {*ops[:4]}


def test_a_plain_call_has_no_feature():
    assert failed("relu", PLAIN, False).features == ()
    assert failed("relu", NAN, True).features == ("specials=nan",)
    assert failed("clamp", PLAIN, min=NonFinite("nan")).features == ("min=not finite",)


def test_checks_and_exceptions_are_kept_apart():
    operands = [TensorSpec((3, 5), "float32", seed=seed) for seed in range(3)]
    raised = [
        failed("mm", operand, check="errors", why=f"torch takes this call; raised {error}: no")
        for operand, error in zip(operands, ("A", "B", "B"), strict=True)
    ]
    died = [failed("mm", PLAIN, check="crash", why="the process was ended by SIGSEGV; it printed last:")]
    groups = failure_causes.groups([*raised, *died, failed("mm", PLAIN)])
    assert [(g.failures[0].check, g.failures[0].error, len(g.failures)) for g in groups] == [
        ("errors", "B", 2),
        ("crash", "SIGSEGV", 1),
        ("errors", "A", 1),
        ("values", "", 1),
    ]
    assert groups[0].title == "errors (B), 2 failures: mm; float32", "an op is no feature"


def test_what_is_no_case_stands_for_itself():
    groups = failure_causes.groups([Failed("damaged case file: a.json: no"), Failed("damaged case file: b.json: no")])
    assert [group.title for group in groups] == ["damaged case file: a.json: no", "damaged case file: b.json: no"]


def test_a_case_counts_once():
    (group,) = failure_causes.groups([failed("relu", NAN), failed("relu", NAN)])
    assert (len(group.failures), group.others) == (1, "")


def test_many_are_counted_and_some_are_named():
    many = [failed(op, NAN) for op in ("abs", "cos", "exp", "neg", "relu", "rsqrt", "sigmoid", "sin", "silu", "tanh")]
    (group,) = failure_causes.groups(many)
    assert "10 ops, abs, cos, exp, neg, relu, rsqrt among them" in group.title
    assert group.others.endswith(" and 1 more")
