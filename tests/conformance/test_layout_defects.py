"""Other layouts of a call's operands: what they look like, that torch takes them, and that elements stay."""

from __future__ import annotations

import pytest
import torch
from msgspec.structs import replace

from conformance import case_files, cases, runner
from conformance.cases import Case, Same
from conformance.checks import calls, derived_calls
from conformance.spec import registry
from strategies import layouts
from strategies.specs import Layout, Special, TensorSpec

X, Y = TensorSpec((4, 8), "float32"), TensorSpec((2, 3, 8), "float32", seed=1)
PLANTED = "conformance.selftest.planted:layer_norm_int_counts_dims"
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
        "windows of rows": (8, 8, 1),
        "windows of signals": (24, 4, 1),
        "parts of longer sequences": (48, 8, 1),
        "images, channels last": (216, 1, 24, 3),
        "videos, channels last": (120, 1, 24, 6, 3),
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


def test_plain_operands():
    strided_with_nan = replace(X, layout=Layout(steps=(1, 2)), specials=(Special(0, "nan"),), values="ascending")
    counts = TensorSpec((4, 8), "int64", "integers", layout=Layout(offset=1))
    rows = TensorSpec((8,), "float32", "listed:3,0,5", layout=Layout(steps=(2,)))
    mask = replace(strided_with_nan, values="masked")
    case = Case(op="add", args=(strided_with_nan, counts, rows, mask), kwargs={"out": strided_with_nan})
    plain = calls._plain(case)
    assert plain.args[0] in [replace(X, values=values) for values in calls._PLAIN]
    assert plain.args[1] == replace(counts, layout=Layout())
    assert plain.args[2] == replace(rows, layout=Layout())
    assert plain.args[3] == replace(X, values="masked")
    assert calls._plain(plain) == plain


def test_what_a_plain_call_leaves_out():
    query, index = TensorSpec((1, 2, 3, 4), "float32"), TensorSpec((3,), "int64", "integers")
    optional = {"attn_mask": query, "scale": 0.5, "dropout_p": 0.0}
    kept = {"enable_gqa": True, "is_causal": True}
    found = set()
    for seed in range(40):
        args = (replace(query, seed=seed), query, query)
        case = Case(op="scaled_dot_product_attention", args=args, kwargs={**optional, **kept, "slot": index, "n": 3})
        alone = calls._alone(case).kwargs
        assert {"slot", "n"} <= {*alone} <= {"slot", "n", *kept}
        found.add(frozenset(alone) - {"slot", "n"})
    assert found == {frozenset(), *(frozenset({name}) for name in kept)}


def test_numbers_for_tuples_of_one():
    case = Case(op="layer_norm", args=(TensorSpec((3, 5), "float32"), (5,)))
    verdict = runner.judge(case, PLANTED, checks=["call_forms"])
    assert verdict.failure is not None
    assert verdict.failure.message.startswith("a number for argument 1: ")
    # torch refuses a number, and so may others.
    assert runner.judge(case, "torch", checks=["call_forms"]).status == "passed"


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
    found = derived_calls.outs(Case(op="exp", args=(X,)), torch.empty(4, 8), registry()["exp"].outs)
    out = found["an empty out= with room"].kwargs["out"]
    (tensor,) = cases.materialize(Case(op="exp", args=(out,)))[2]
    assert tensor.numel() == 0
    assert tensor.untyped_storage().nbytes() == 4 * (32 + 7)
