"""On a GPU: what the checks of graphs, streams and devices find, and what they leave alone."""

from __future__ import annotations

from types import SimpleNamespace

import gpu_defects
import pytest
import torch

from conformance import call_contexts, guards, runner
from conformance import spec as specs
from conformance.cases import Case
from conformance.checks import FAILED, PASSED, UNCLAIMED
from conformance.checks.gpu import CONTEXTS
from conformance.implementations import Implementation, load
from strategies.specs import Layout, Special, TensorSpec

CPU = torch.device("cpu")
NEEDS_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
NEEDS_TWO = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="there are no two GPUs")


def spec(*shape):
    return TensorSpec(shape=shape, dtype="float32", values="normal")


def claiming(op, check, function):
    return Implementation("tested", SimpleNamespace(**{op: function}), {op: ("deterministic", check)})


CALLS = {
    "add": Case(op="add", args=(spec(33, 65), spec(65))),
    "silu": Case(op="silu", args=(spec(17, 129),)),
    "mm": Case(op="mm", args=(spec(17, 33), spec(33, 9))),
    "softmax": Case(op="softmax", args=(spec(9, 130), -1)),
}
OTHERS = {
    "lt": Case(op="lt", args=(spec(5, 33), spec(5, 33))),
    "relu": Case(op="relu", args=(spec(5, 33),)),
    "layer_norm": Case(op="layer_norm", args=(spec(6, 33), (33,)), kwargs={"weight": spec(33)}),
    "sum": Case(op="sum", args=(spec(6, 33), 0)),
    "scaled_dot_product_attention": Case(
        op="scaled_dot_product_attention", args=(spec(2, 3, 5, 16), spec(2, 3, 7, 16), spec(2, 3, 7, 16))
    ),
}
DROPOUT = Case(op="dropout", args=(spec(33, 65), 0.5))
BANKS = {"graph": gpu_defects.GRAPH, "stream": gpu_defects.STREAM, "device": gpu_defects.DEVICE}


def finding(check, case, implementation):
    verdict = runner.judge(case, implementation, torch.device("cuda", 0), [check])
    (found,) = [one for one in verdict.findings if one.check == check] or [verdict.findings]
    return found


@NEEDS_GPU
@pytest.mark.parametrize("check", ["graph", "stream", pytest.param("device", marks=NEEDS_TWO)])
@pytest.mark.parametrize("op", sorted({*OTHERS, *CALLS, "dropout"}))
@pytest.mark.parametrize("name", ["ntops.torch", "torch"])
def test_right_calls_pass(name, op, check):
    case = DROPOUT if op == "dropout" else {**OTHERS, **CALLS}[op]
    found = finding(check, case, load(name))
    # torch's attention, composed around its cache, claims none of these.
    expected = UNCLAIMED if (name, op) == ("torch", "scaled_dot_product_attention") else PASSED
    assert found.status == expected, found.message


@NEEDS_GPU
@pytest.mark.parametrize("op", sorted(CALLS))
@pytest.mark.parametrize(
    ("check", "defect"),
    [
        pytest.param(check, name, marks=[NEEDS_TWO] if check == "device" else [])
        for check, bank in BANKS.items()
        for name in bank
    ],
)
def test_a_mistake_is_found(check, defect, op):
    wrong = BANKS[check][defect](specs.registry()[op].reference)
    found = finding(check, CALLS[op], claiming(op, check, wrong))
    assert found.status == FAILED


@NEEDS_GPU
def test_replays_that_draw_the_same_mask_are_found():
    wrong = gpu_defects.same_mask(torch.nn.functional.dropout)
    found = finding("graph", DROPOUT, claiming("dropout", "graph", wrong))
    assert (found.status, "same random numbers" in found.message) == (FAILED, True)


@NEEDS_GPU
def test_elements_that_show_no_mask_are_no_evidence():
    nothing = TensorSpec(shape=(16, 10), dtype="float64", values="zeros", specials=(Special(0, "nan", run=64),))
    found = finding("graph", Case(op="dropout", args=(nothing, 0.5)), load("torch"))
    assert (found.status, found.message) == (PASSED, "")


TURNED, FAR, ALIKE = Layout(order=(1, 0)), Layout(steps=(1, 2)), Layout(expanded=(0,))


@NEEDS_GPU
@pytest.mark.parametrize("size", [65, 128])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_product_of_a_row_that_is_broadcast_is_rounded_like_any(dtype, size):
    """A compiler fuses a product with a sum unless the product has several uses."""
    turned = TensorSpec((size, size), dtype, seed=1, layout=TURNED)
    row, rows = TensorSpec((1, size), dtype, seed=2, layout=FAR), TensorSpec((size, size), dtype, seed=2, layout=ALIKE)
    factors = [TensorSpec((size, size), dtype, seed=seed) for seed in (3, 4)]
    for case in (
        Case(op="add", args=(turned, row), kwargs={"alpha": 18}),
        Case(op="sub", args=(turned, row), kwargs={"alpha": 0.3}),
        Case(op="addmm", args=(rows, *factors), kwargs={"beta": 0.3, "alpha": 2.7}),
    ):
        found = finding("layout_invariant", case, load("ntops.torch"))
        assert (found.status, found.message) == (PASSED, "")


@NEEDS_GPU
def test_who_does_not_claim_it_is_not_asked():
    quiet = Implementation("quiet", SimpleNamespace(silu=torch.nn.functional.silu))
    for check in ("graph", "stream"):
        found = finding(check, CALLS["silu"], quiet)
        assert found.status == UNCLAIMED


@NEEDS_GPU
@pytest.mark.parametrize("name", ["ntops.torch", "torch"])
def test_a_number_that_is_read_from_a_tensor_fits_no_graph(name):
    case = Case(op="clamp", args=(spec(2), spec(), 3))
    implementation = load(name)
    found = finding("graph", case, claiming("clamp", "graph", implementation.function("clamp")))
    assert found.status == PASSED


def test_without_a_gpu_they_do_not_apply():
    verdict = runner.judge(CALLS["silu"], load("ntops.torch"), CPU, CONTEXTS)
    assert not {one.check for one in verdict.findings} & {*CONTEXTS}


def test_all_operators_claim_them():
    implementation = load("ntops.torch")
    for op in specs.registry():
        assert {*CONTEXTS} <= {*implementation.claims(op)}


@NEEDS_GPU
@pytest.mark.parametrize("form", call_contexts.OPERANDS)
def test_bools_of_any_bytes_are_the_same_after_a_call_in_a_form(form):
    """A copy of strided bools has bytes of 0 and 1 alone on CUDA."""
    operands = [torch.arange(20, dtype=torch.uint8, device="cuda").view(torch.bool).view(4, 5) for _ in range(2)]
    before = [guards.memory_of(one).clone() for one in operands]
    given = call_contexts.dressed(form, operands, [])
    call_contexts.undressed(form, operands, given, None)
    assert all(map(torch.equal, before, map(guards.memory_of, operands)))
