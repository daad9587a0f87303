"""torch itself, judged as any library without kernels is: in a process apart, and as its CPU answers. What fails is the
harness's fault, or a deviation that lacks a name."""

from __future__ import annotations

import contextlib
import sys

import pytest
import torch

from conformance import case_files, corpus, gradient_calls, semantics
from conformance.cases import Case
from conformance.spec import registry
from conformance.worker import Child
from strategies.specs import Layout, TensorSpec


@pytest.mark.slow
@pytest.mark.parametrize("op", sorted(registry()))
def test_no_saved_case_fails_without_a_name(op):
    files = [path for path in corpus.files([corpus.SHIPPED]) if corpus.name(path).startswith(f"{op}-")]
    found = [case for case in map(case_files.read, files) if isinstance(case, Case)]
    with contextlib.closing(Child("torch", "cpu", semantics=semantics.CPU)) as child:
        verdicts = [child.judge(case, True) for case in found]
    assert verdicts
    assert [(one.id, one.failure.check, one.failure.message) for one in verdicts if one.failure] == []


def test_an_out_whose_elements_share_memory_is_written_as_torch_does_it():
    half = TensorSpec((2, 2, 2), "bfloat16")
    out = TensorSpec((2, 2, 2), "bfloat16", layout=Layout(expanded=(2,)))
    with contextlib.closing(Child("torch", "cpu", semantics=semantics.CPU)) as child:
        verdict = child.judge(Case(op="bmm", args=(half, half), kwargs={"out": out}), True, ("errors",))
    assert verdict.failure is None


@pytest.mark.parametrize(
    ("op", "operands"), [("gt", 2), ("bitwise_and", 2), ("bitwise_not", 1), ("add", 2), ("sum", 1)]
)
def test_bools_whose_bytes_are_not_0_or_1_are_copied_as_they_are(op, operands):
    case = Case(op=op, args=(TensorSpec((9,), "bool", values="bytes"),) * operands)
    with contextlib.closing(Child("torch", "cpu", semantics=semantics.CPU)) as child:
        verdict = child.judge(case, True)
    assert verdict.failure is None


@pytest.mark.parametrize("kwargs", [{"min": TensorSpec((), "float64"), "max": 2}, {"max": TensorSpec((), "float32")}])
def test_a_number_in_a_tensor_stays_one_where_floats_are_parameters(kwargs):
    case = Case(op="clamp", args=(TensorSpec((3, 5), "float32"),), kwargs=kwargs)
    with contextlib.closing(Child("torch", "cpu", semantics=semantics.CPU)) as child:
        assert [child.judge(case, True, (check,)).failure for check in ("bare", "forms")] == [None, None]


def test_a_backward_pass_that_is_refused_half_way_holds_no_operand():
    """Of several nodes, torch leaves those that it had still to visit in a queue."""
    parameter, target = torch.nn.Parameter(torch.ones(3, 5)), torch.zeros(3, dtype=torch.int64)
    before = sys.getrefcount(parameter)
    loss = torch.nn.functional.cross_entropy(parameter, target, label_smoothing=0.1)
    *_, is_freed = gradient_calls.twice(loss, [parameter], torch.ones(()))
    del loss
    assert is_freed
    assert sys.getrefcount(parameter) == before


def test_a_product_of_parameters_may_have_other_bits():
    case = Case(op="mm", args=(TensorSpec((3, 5), "float32"), TensorSpec((5, 4), "float32")))
    with contextlib.closing(Child("parameters_apart", "cpu")) as child:
        assert child.judge(case, True, ("bare",)).failure is None


def test_strides_of_a_result_follow_those_of_rows_that_are_far_apart():
    """Among operands that are broadcast the order of a result's dims is that of torch for the very strides."""
    input = TensorSpec((1, 9, 9, 73), "float32", "one_hot", 186, Layout(order=(0, 2, 3, 1), padding=(0, 9, 0, 0)))
    low = TensorSpec((9, 9, 1), "float32", "positive", 66, Layout(order=(0, 2, 1), padding=(0, 0, 1), offset=1))
    high = TensorSpec((1, 1, 9, 1, 1), "float32", "ascending", 254, Layout(order=(3, 0, 1, 4, 2)))
    case = Case(op="clamp", args=(input, low, high))
    with contextlib.closing(Child("torch", "cpu", semantics=semantics.CPU)) as child:
        verdict = child.judge(case, True, ("bare",))
    assert verdict.failure is None
