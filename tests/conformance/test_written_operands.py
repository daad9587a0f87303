"""Operands that are written and are views, of inference mode, or refused; and settings that are demanded of torch."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from msgspec.structs import replace

from conformance import call_contexts, runner
from conformance.calls import Local
from conformance.cases import Case
from conformance.implementations import Implementation, load
from conformance.selftest import written_operands
from conformance.selftest.defect_registry import bank
from strategies.specs import Layout, TensorSpec

CPU = torch.device("cpu")
X = TensorSpec((3, 4), "float32", seed=1)
IN_PLACE = Case(op="silu", args=(replace(X, layout=Layout(offset=3)),), kwargs={"inplace": True})
WITH_OUT = Case(op="exp", args=(X,), kwargs={"out": X})


def test_operands_are_views_of_what_lies_around_them_and_their_versions_move():
    def silu(input, inplace):
        assert input._base is None or input._base.shape == (input.untyped_storage().nbytes() // input.itemsize,)
        return torch.nn.functional.silu(input, inplace)

    case = replace(IN_PLACE, form=call_contexts.VIEWS)
    assert runner.judge(case, Implementation("one", SimpleNamespace(silu=silu)), CPU).status == "passed"
    assert runner.prepare(case, CPU).invoke(Local(silu)).moved == (True,)
    behind = SimpleNamespace(silu=lambda input, inplace: input if silu(input.data, inplace) is not None else None)
    assert runner.judge(case, Implementation("one", behind), CPU, ["versions"]).failure.check == "versions"


def test_operands_are_of_inference_mode_as_the_form_says():
    found = {}

    def exp(input, out=None):
        found[form] = (input.is_inference(), out is not None and out.is_inference(), torch.is_inference_mode_enabled())
        return torch.exp(input, out=out)

    for form in (call_contexts.INFERENCE, call_contexts.ENTIRE, call_contexts.FOREIGN):
        runner.prepare(replace(WITH_OUT, form=form), CPU).invoke(Local(exp))
    assert found == {
        call_contexts.INFERENCE: (True, False, True),
        call_contexts.ENTIRE: (True, True, True),
        call_contexts.FOREIGN: (False, True, False),
    }


def test_settings_are_those_of_the_form_and_restored():
    found = {}

    def exp(input):
        found[form] = torch.get_deterministic_debug_mode(), torch.is_anomaly_enabled(), input.requires_grad
        return torch.exp(input)

    for form in (call_contexts.ALONE, call_contexts.ANOMALIES):
        runner.prepare(replace(Case(op="exp", args=(X,)), form=form), CPU).invoke(Local(exp))
    assert found == {call_contexts.ALONE: (2, False, False), call_contexts.ANOMALIES: (0, True, True)}
    assert (torch.get_deterministic_debug_mode(), torch.is_anomaly_enabled()) == (0, False)


EXPANDED = replace(X, layout=Layout(expanded=(0,)))
REFUSED = {
    "relu": Case(op="relu", args=(EXPANDED,), kwargs={"inplace": True}),
    "exp": Case(op="exp", args=(X,), kwargs={"out": EXPANDED}),
    "mm": Case(op="mm", args=(X, replace(X, shape=(4, 4))), kwargs={"out": EXPANDED}),
}


@pytest.mark.parametrize("op", REFUSED)
@pytest.mark.parametrize("implementation", ["torch", "ntops.torch"])
def test_what_is_refused_writes_nothing(op, implementation):
    verdict = runner.judge(REFUSED[op], load(implementation), CPU, ["errors", "inputs_unchanged"])
    assert (verdict.status, verdict.refused) == ("passed", True)


@pytest.mark.parametrize(
    ("op", "name"), [("relu", "written_before_it_is_refused"), ("exp", "out_written_before_it_is_refused")]
)
def test_what_is_written_before_it_is_refused_shows(op, name):
    verdict = runner.judge(REFUSED[op], bank()[f"{op}_{name}"].implementation, CPU)
    assert verdict.failure.check == "inputs_unchanged"
    assert "a call that is refused" in verdict.failure.message


def test_what_torch_resizes_before_it_refuses_may_be_resized():
    """An ``out`` of another size whose dtype cannot hold the result: torch decides which comes first."""
    case = Case(op="exp", args=(X,), kwargs={"out": TensorSpec((2,), "int32")})
    assert runner.judge(case, "torch", CPU, ["errors", "inputs_unchanged"]).status == "passed"


NAMES = [
    name for name, one in vars(written_operands).items() if getattr(one, "__module__", "") == written_operands.__name__
]
OWN = [one for one in bank().values() if one.name.removeprefix(f"{one.op}_") in NAMES]
LEGAL = {
    **{op: Case(op=op, args=(X,)) for op in ("relu", "silu", "exp", "neg", "tanh", "argmax", "mean")},
    **{op: Case(op=op, args=(X, 1)) for op in ("softmax", "cumsum", "sum")},
    **{op: Case(op=op, args=(X, replace(X, seed=2))) for op in ("add", "mul", "lt")},
    "dropout": Case(op="dropout", args=(X, 0.5)),
    "layer_norm": Case(op="layer_norm", args=(X, (4,))),
    "mm": Case(op="mm", args=(X, replace(X, shape=(4, 5)))),
    "bmm": Case(op="bmm", args=(replace(X, shape=(2, 3, 4)), replace(X, shape=(2, 4, 5)))),
}


@pytest.mark.parametrize("defect", [one for one in OWN if one.check != "inputs_unchanged"], ids=lambda one: one.name)
def test_what_mistakes_them_is_caught(defect):
    case = LEGAL[defect.op]
    if defect.name.endswith("written_before_it_is_refused"):
        case = replace(case, args=(EXPANDED,))
    # It begins at the start of what it is a view of otherwise.
    if defect.name.endswith("start_of_their_base"):
        case = replace(case, args=(replace(case.args[0], layout=Layout(offset=5)), *case.args[1:]))
    assert runner.judge(case, defect.implementation, CPU, [defect.check]).status == "failed"


@pytest.mark.parametrize("op", LEGAL)
@pytest.mark.parametrize("implementation", ["torch", "ntops.torch"])
def test_torch_and_the_library_pass(op, implementation):
    checks = ["inplace", "out_argument", "call_forms"]
    verdict = runner.judge(LEGAL[op], load(implementation), CPU, checks)
    assert verdict.failure is None
