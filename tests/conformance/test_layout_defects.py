"""Other layouts of a call's operands: what they look like, that torch takes them, and that elements stay."""

from __future__ import annotations

import pytest
import torch
from msgspec.structs import replace

from conformance import case_files, cases, runner
from conformance.cases import Case, Same
from conformance.checks import calls, forms
from conformance.spec import registry
from strategies import layouts
from strategies.specs import TensorSpec

X, Y = TensorSpec((4, 8), "float32"), TensorSpec((2, 3, 8), "float32", seed=1)
ADD = Case(op="add", args=(X, replace(X, seed=1)), kwargs={"out": TensorSpec((0,), "float32")})


def strided(case: Case) -> dict[str, tuple[int, ...]]:
    changed = calls._laid_out(case)
    return {what: layouts.strides(one.args[0].layout, one.args[0].shape) for what, one in changed.items()}


def test_how_operands_lie():
    found = strided(Case(op="exp", args=(Y,)))
    many = {rank: found.pop(f"{rank} dims") for rank in calls.RANKS}
    assert found == {
        "misaligned by one element": (24, 8, 1),
        "column-major with a longer leading dim": (48, 1, 6),
        "no unit stride": (48, 16, 2),
        "one batch for all": (0, 8, 1),
        "windows that overlap": (12, 4, 1),
        "a stride beyond 8 bits": (7200, 2400, 300),
        "rows beyond 16 bits apart": (196656, 65552, 1),
        "an offset beyond 20 bits": (24, 8, 1),
        "far apart": (240, 80, 1),
    }
    for rank, steps in many.items():
        wide = [(stride, 2) for dim, stride in enumerate(steps) if dim != rank - 6]
        assert len(steps) == rank
        assert not any(a == b * size for a, _ in wide for b, size in wide if a != b)


def test_a_dim_of_one_may_have_any_stride():
    found = strided(Case(op="exp", args=(replace(Y, shape=(1, 8)),)))
    assert found["dims of one turned"] == (1, 1)
    assert "dims of one turned" not in strided(Case(op="exp", args=(replace(Y, shape=(1, 1)),)))


def test_only_what_is_read_lies_otherwise():
    for case in calls._laid_out(ADD).values():
        assert case.kwargs == ADD.kwargs
        assert case.args != ADD.args
    assert calls._laid_out(Case(op="add", args=(X, X), kwargs={"out": Same(0)})) == {}
    assert calls._laid_out(Case(op="exp", args=(TensorSpec((), "float32"),))) == {}


@pytest.mark.parametrize(
    "case",
    [
        ADD,
        Case(op="exp", args=(Y,)),
        Case(op="mm", args=(replace(X, shape=(1, 8)), replace(X, shape=(8, 1)))),
        Case(op="bmm", args=(Y, replace(Y, shape=(2, 8, 5)))),
        Case(op="softmax", args=(Y, -1)),
        Case(op="layer_norm", args=(Y, (8,)), kwargs={"weight": TensorSpec((8,), "float32")}),
    ],
)
def test_torch_passes(case):
    verdict = runner.judge(case, "torch", checks=["layouts", "out_argument"])
    assert verdict.status == "passed"
    for changed in calls._laid_out(case).values():
        case_files.validate(changed)


def test_an_empty_out_may_have_room():
    found = forms._outs(Case(op="exp", args=(X,)), torch.empty(4, 8), registry()["exp"].outs)
    out = found["an empty out= with room"].kwargs["out"]
    (tensor,) = cases.materialize(Case(op="exp", args=(out,)))[2]
    assert tensor.numel() == 0
    assert tensor.untyped_storage().nbytes() == 4 * (32 + 7)
