"""A call may not write an operand, not even for a while: others may read it, or nobody may write it."""

from __future__ import annotations

import contextlib

import pytest
import torch

from conformance import guards
from conformance.cases import Case
from conformance.worker import Child
from strategies.specs import Layout, TensorSpec

CASE = Case(op="sub", args=(TensorSpec((3, 5), "float32"), TensorSpec((3, 5), "float32", layout=Layout(order=(1, 0)))))


@pytest.mark.parametrize("shape", [(), (0,), (7,), (300, 5)])
def test_memory_that_may_not_be_written_reads_as_it_was(shape):
    tensor = torch.randn(2, *shape)[1]
    copy = guards.read_only(tensor)
    assert torch.equal(copy, tensor)
    assert (copy.stride(), copy.storage_offset()) == (tensor.stride(), tensor.storage_offset())
    assert torch.equal(guards.memory_of(copy), guards.memory_of(tensor))


@pytest.mark.slow
def test_what_is_written_for_a_while_ends_the_process_and_is_told():
    with contextlib.closing(Child("written_for_a_while", "cpu")) as child:
        failure = child.judge(CASE, True, ("bare",)).failure
        assert failure is not None
        assert failure.check == "crash"
        assert "memory that may not be written" in failure.message
        assert child.judge(CASE, True, ("values",)).status == "passed"


@pytest.mark.slow
@pytest.mark.parametrize("implementation", ["torch", "ntops.torch"])
def test_right_implementations_are_judged_there(implementation):
    with contextlib.closing(Child(implementation, "cpu")) as child:
        assert child.judge(CASE, True, ("bare",)).status == "passed"
