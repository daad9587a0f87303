"""Operands that lie far away have the elements and the shape that they had, and take no memory in between."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from conformance import far_memory, runtime
from conformance.calls import Local, described

HOW = (far_memory.FAR_OFFSET, far_memory.FAR_ROWS)
CPU = torch.device("cpu")


def called(function, inputs, how, *, seed=0, written=(), **named):
    kwargs = {name: inputs[number] for name, number in named.items()}
    args = [one for number, one in enumerate(inputs) if number not in named.values()]
    call = described("any", args, kwargs, inputs, before=how, seed=seed, written=list(written))
    return Local(function).made(call, inputs, CPU)


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("number", [0, 1])
def test_one_operand_is_far(how, number):
    inputs = torch.randn(100, 70).mT, torch.randn(70, 100)[:, ::2].repeat(1, 2)
    found = []

    def looked(*operands):
        found.extend(operands)
        return operands[0] + operands[1]

    outcome = called(looked, inputs, how, seed=number)
    assert torch.equal(outcome.value, inputs[0] + inputs[1])
    ends = [(one.storage_offset() + max(one.stride()) * 99) * one.itemsize for one in found]
    assert [end >> 31 > 0 for end in ends] == [number == 0, number == 1]
    assert found[number].shape == inputs[number].shape
    assert found[number].stride().index(max(found[number].stride())) == inputs[number].stride().index(
        max(inputs[number].stride())
    )
    assert all(one.untyped_storage().nbytes() < 1 << 16 for one in outcome.operands)
    assert all(map(torch.equal, outcome.operands, inputs))


@pytest.mark.parametrize("how", HOW)
def test_what_is_written_comes_back(how):
    inputs = torch.randn(33, 5), torch.zeros(33, 7)[:, :5]
    outcome = called(torch.exp, inputs, how, seed=1, written=[1], out=1)
    assert outcome.value is outcome.operands[1]
    assert outcome.value.stride() == (7, 1)
    assert torch.equal(outcome.value, inputs[0].exp())


def test_a_view_of_a_result_is_a_copy():
    """All of the memory in between would be sent."""
    outcome = called(lambda x: x[1:], (torch.randn(9, 4),), far_memory.FAR_ROWS)
    assert outcome.value.untyped_storage().nbytes() < 1 << 10


ONE, SINGLE, EXPANDED = torch.randn(()), torch.randn(1, 1), torch.randn(4, 1).expand(4, 3)


@pytest.mark.parametrize("one", [ONE, SINGLE, EXPANDED, torch.randn(9).as_strided((4, 3), (1, 2))])
def test_rows_of_one_address_are_not_spread(one):
    """torch could not fill them, or the order of the dims would be another one."""
    assert far_memory.laid((one,), (one,), far_memory.FAR_ROWS, 0) == ((one,), None)


@pytest.mark.parametrize("rows", [2, far_memory.MOST_ROWS + 1])
def test_few_rows_and_many_are_not_spread(rows):
    one = torch.randn(rows, 3)
    assert far_memory.laid((one,), (one,), far_memory.FAR_ROWS, 0)[1] is None
    assert far_memory.laid((one,), (one,), far_memory.FAR_OFFSET, 0)[1] == 0


@pytest.mark.parametrize("dtype", [torch.bool, torch.bfloat16, torch.float64])
def test_where_memory_is_little_there_are_as_many_bytes(dtype, monkeypatch):
    monkeypatch.setattr(
        far_memory, "_SPARE", (0.9 * os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**31, 4)
    )
    one = torch.ones(3, dtype=dtype)
    (moved,), number = far_memory.laid((one,), (one,), far_memory.FAR_OFFSET, 0)
    assert number == 0
    assert moved.storage_offset() * moved.itemsize == 1 << 31


def test_nothing_is_moved_where_there_is_no_memory(monkeypatch):
    monkeypatch.setattr(far_memory, "_SPARE", (1 << 40, 1 << 40))
    one = torch.ones(3, 3)
    assert far_memory.laid((one,), (one,), far_memory.FAR_OFFSET, 0) == ((one,), None)


def _resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize("how", HOW)
def test_little_memory_is_taken(how):
    """A page for each row, of 2 MiB at most."""
    rows, taken = far_memory.MOST_ROWS, []
    before = _resident()
    called(lambda one: taken.append(_resident()) or -one, (torch.ones(rows, 3),), how)
    assert taken[0] - before < (rows << 21) + (1 << 27)


def test_a_result_as_far_apart_as_its_operand_is_copied():
    outcome = called(lambda one: torch.empty_strided(one.shape, one.stride()), (torch.ones(4, 3),), far_memory.FAR_ROWS)
    assert outcome.value.untyped_storage().nbytes() < 1 << 10


def test_a_view_in_a_list_lies_as_it_was():
    base = torch.randn(5, 4)
    call = described("any", [[base[1:3]]], {}, (base,), before=far_memory.FAR_ROWS, seed=0)
    assert [*runtime._viewed(call["args"])] == [0]
    assert torch.equal(Local(lambda parts: -parts[0]).made(call, (base,), CPU).value, -base[1:3])


def test_memory_of_others_is_not_resized():
    inputs = torch.randn(5), torch.randn(3)
    outcome = called(torch.neg, inputs, runtime.FIXED, written=[1], out=1)
    assert isinstance(outcome.error, RuntimeError)
    assert torch.equal(outcome.operands[1], inputs[1])
    assert called(torch.neg, inputs[:1], runtime.FIXED).error is None


def _reserved():
    return int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")


def test_children_get_no_memory_that_is_far():
    before, inputs = _reserved(), (torch.ones(4, 3),)
    (operand,), _ = far_memory.laid(inputs, inputs, far_memory.FAR_ROWS, 0)
    size = operand.untyped_storage().nbytes()
    far_memory.keep_from_children(operand)
    assert _reserved() - before > size / 2
    child = os.fork()
    if not child:
        small = _reserved() - before < size / 2
        # What lies in front, as the allocator needs it to free the memory, is there.
        del operand
        os._exit(0 if small else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert operand.sum() == 12
