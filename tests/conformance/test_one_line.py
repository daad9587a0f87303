"""``conformance.judge``: an operator of a user's own, in one line of a test."""

from __future__ import annotations

import os
import time

import pytest
import torch
from torch.nn import functional

from conformance import authoring, error_analysis, judge
from conformance import spec as specs
from conformance.one_line import Judgement

SOON = 2.0
"""Seconds after which what sleeps for a minute has failed."""
SWIGLU = {"reference": lambda x, gate: functional.silu(gate) * x, "arguments": "... D, ... D", "dtypes": "float32"}


def own_swiglu(x, gate):
    return functional.silu(gate) * x


def wrong_swiglu(x, gate):
    return functional.silu(gate) * x * 1.001


def deadly_swiglu(x, gate):
    if x.numel() > 3:
        os.abort()
    return own_swiglu(x, gate)


def hanging_swiglu(x, gate):
    time.sleep(60)


def test_a_function_of_the_test_is_judged_in_a_process_of_its_own(tmp_path):
    judge(own_swiglu, **SWIGLU, examples=4, folder=tmp_path)
    assert not list(tmp_path.iterdir())
    assert "own_swiglu" not in specs.registry()


def test_a_mistake_is_told_shrunk_saved_and_judged_first(tmp_path, monkeypatch):
    how = {**SWIGLU, "refused": False, "folder": tmp_path}
    with pytest.raises(Judgement, match=r"values failed: 1 of 1 elements are wrong") as caught:
        judge(wrong_swiglu, **how, examples=4)
    (path,) = tmp_path.glob("wrong_swiglu-*.json")
    assert f"case {path.stem}" in str(caught.value)
    assert "run the test again: it judges this case first" in str(caught.value)
    assert (tmp_path / f"repro_{path.stem}.py").exists()
    # Nothing that is drawn shows it now.
    monkeypatch.setattr("conformance.session.Run.search", lambda *_, **__: pytest.fail("drawn before saved ones"))
    with pytest.raises(pytest.fail.Exception, match="drawn"):
        judge(own_swiglu, **how)
    replayed = []
    monkeypatch.setattr("conformance.session.Run.replay", lambda self, path, _: replayed.append(path) or pytest.skip())
    with pytest.raises(pytest.skip.Exception):
        judge(wrong_swiglu, **how)
    assert replayed == [path]


@pytest.mark.slow
def test_crashes_and_hangs_are_failures(tmp_path):
    how = {**SWIGLU, "refused": False, "folder": tmp_path}
    with pytest.raises(Judgement, match=r"crash failed: the process ended with status -6"):
        judge(deadly_swiglu, **how, examples=4)
    with pytest.raises(Judgement, match=r"timeout failed: no result after 2 s"):
        judge(hanging_swiglu, **how, examples=1, timeout=SOON)


def test_what_no_process_finds_is_refused_or_judged_here(tmp_path):
    def local(x, gate):
        return own_swiglu(x, gate)

    with pytest.raises(ValueError, match="isolated=False"):
        judge(local, **SWIGLU)
    judge(local, **SWIGLU, isolated=False, examples=3, folder=tmp_path)
    with pytest.raises(ValueError, match="say name="):
        judge(lambda x, gate: x, **SWIGLU)


def test_example_tensors_stand_for_shapes(tmp_path):
    def scaled(x, weight, power):
        return (x.float() * weight.float() ** power).to(x.dtype)

    like = (torch.ones(2, 1, 8).half(), torch.ones(8), 2)
    judge(scaled, reference=scaled, like=like, isolated=False, examples=4, folder=tmp_path)
    spec = authoring.operator("scaled", reference=scaled, like=like)
    assert spec.dtypes == ("float16",)
    with pytest.raises(Judgement, match="float32"):
        judge(lambda x, w, p: scaled(x, w, p).float(), name="scaled", reference=scaled, like=like, isolated=False,
              examples=2, refused=False, folder=tmp_path)  # fmt: skip


def test_a_reference_may_refuse_some_calls_and_not_most(tmp_path):
    def largest(x):
        return x.amax(-1)

    how = {"isolated": False, "examples": 8, "folder": tmp_path, "refused": False, "dtypes": "float32"}
    judge(largest, reference=largest, arguments="B N", sizes={"N": [0, 1, 2, 3, 4, 5, 6, 7]}, **how)
    with pytest.raises(Judgement, match="does not take the shapes"):
        judge(largest, reference=largest, arguments="B N", sizes={"N": [0]}, **how)


def test_an_operation_without_a_rule_is_named_and_a_bound_helps(tmp_path):
    def bessel(x):
        return torch.special.bessel_j0(x)

    how = {"reference": bessel, "arguments": "N: normal finite", "dtypes": "float32", "isolated": False}
    with pytest.raises(error_analysis.NoRule, match=r"bessel_j0.*bound="):
        judge(bessel, **how)
    judge(bessel, **how, bound=lambda value, x: 2.0**-20, examples=4, refused=False, folder=tmp_path)
    with pytest.raises(Judgement, match="values failed"):
        judge(lambda x: bessel(x) + 1e-5, name="bessel", **how, bound=lambda value, x: 2.0**-20, examples=4,
              refused=False, folder=tmp_path)  # fmt: skip


@pytest.mark.parametrize(
    ("how", "complaint"),
    [
        ({"arguments": "B 8*"}, "'8\\*' is no size"),
        ({"arguments": "B ... D"}, "'...' is no size"),
        ({"arguments": "B: float99"}, "unknown word 'float99'"),
        ({"arguments": "B", "dtypes": "float99"}, "unknown dtype"),
        ({"arguments": "B", "sizes": {"D": [1]}}, "unknown size 'D'"),
        ({"arguments": (1.0, 2)}, "no argument is a tensor"),
        ({}, "either arguments or like"),
    ],
)
def test_descriptions_are_checked(how, complaint):
    with pytest.raises(authoring.ArgumentError, match=complaint):
        authoring.operator("own", reference=torch.neg, **how)


def silu(x):
    return functional.silu(x.float()).to(x.dtype) * 2


def test_a_function_may_be_called_like_an_operator_of_the_suite(tmp_path):
    how = {"arguments": "N", "dtypes": "float32", "examples": 3, "folder": tmp_path}
    judge(silu, reference=lambda x: functional.silu(x) * 2, **how)
    with pytest.raises(Judgement, match=r"own_silu \(float32\): values failed"):
        judge(silu, reference=lambda x: functional.silu(x), **how)
    assert specs.registry()["silu"].reference is functional.silu
