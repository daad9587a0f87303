"""The check of arguments that torch's signature refuses: what it finds, and what it leaves alone."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from test_contexts import CPU, judged, spec

from conformance import runner
from conformance.cases import Case
from conformance.checks import FAILED, PASSED
from conformance.checks.signature import AS_IT_IS, edits
from conformance.implementations import Implementation, load
from conformance.selftest import defect_registry
from strategies.layouts import Layout
from strategies.specs import TensorSpec

WHOLE = Case(op="softmax", args=(spec(5, 33), -1))
CASES = {
    **{op: Case(op=op, args=(spec(5, 33),)) for op in ("gelu", "abs", "exp", "cos", "neg", "relu")},
    **{op: Case(op=op, args=(spec(5, 33), spec(33))) for op in ("mul", "add", "eq")},
    **{op: Case(op=op, args=(spec(5, 33), 1, True)) for op in ("amax", "amin", "sum", "mean", "logsumexp")},
    "softmax": WHOLE,
    "cumsum": Case(op="cumsum", args=(spec(5, 33), 0)),
    "layer_norm": Case(op="layer_norm", args=(spec(5, 33), (33,))),
}
OWN = [one for one in defect_registry.bank().values() if one.check == "signature"]


@pytest.mark.parametrize("defect", OWN, ids=lambda one: one.name)
def test_what_takes_them_is_caught(defect):
    assert judged("signature", CASES[defect.op], defect.implementation).status == FAILED


@pytest.mark.parametrize("implementation", ["torch", "ntops.torch"])
@pytest.mark.parametrize("op", CASES)
def test_what_refuses_what_torch_refuses_passes(op, implementation):
    finding = judged("signature", CASES[op], load(implementation))
    assert (finding.status, finding.message) == (PASSED, "")


@pytest.mark.parametrize("implementation", ["torch", "ntops.torch"])
@pytest.mark.parametrize(
    "case",
    [
        # One element along a dim has a stride that no view of bytes takes.
        Case(op="bmm", args=(TensorSpec((3, 6, 1), "float32", layout=Layout((2, 0, 1), (1, 1, 3))), spec(3, 1, 4))),
        # A bool that is filled with 7 holds 1.
        Case(op="add", args=(spec(5, 33, dtype="bool"), False)),
        # torch looks at ``inplace`` also where nothing is dropped.
        Case(op="dropout", args=(spec(3, 5), 0.5, False)),
    ],
    ids=["strides", "bool", "inplace"],
)
def test_other_calls_pass(case, implementation):
    finding = judged("signature", case, load(implementation))
    assert (finding.status, finding.message) == (PASSED, "")


def test_each_argument_is_given_as_other_types():
    trial = runner.tried(runner.prepare(CASES["sum"], CPU), load("torch"))
    found = edits(trial)
    assert next(iter(found)) == AS_IT_IS
    assert {"input as a NumPy array", "dim as a set", "argument 2 as a bool of NumPy", "dtype=float"} <= {*found}
    assert {"the keyword ot", "a tensor behind the positional arguments", "operands of float8_e5m2"} <= {*found}


def test_what_torch_takes_may_be_refused_but_not_mistaken():
    def gives(dtype):
        def own(input, dim=None, keepdim=False, *, out=None, **kwargs):
            if kwargs.get("dtype") is float:
                if dtype is None:
                    raise TypeError("no type of Python's")
                kwargs["dtype"] = dtype
            return torch.sum(input, dim, keepdim, **kwargs, **({} if out is None else {"out": out}))

        return Implementation("own", SimpleNamespace(sum=own), {})

    assert judged("signature", CASES["sum"], gives(None)).status == PASSED
    assert judged("signature", CASES["sum"], gives(torch.float64)).status == PASSED
    finding = judged("signature", CASES["sum"], gives(torch.float32))
    assert finding.message.startswith("dtype=float: the result is torch.float32[5, 1]; torch's is torch.float64")


def test_an_end_that_is_no_exception_is_a_failure():
    def exits(input, **kwargs):
        if isinstance(input, np.ndarray):
            raise SystemExit(1)
        return torch.exp(input, **kwargs)

    finding = judged("signature", CASES["exp"], Implementation("own", SimpleNamespace(exp=exits), {}))
    assert finding.status == FAILED
