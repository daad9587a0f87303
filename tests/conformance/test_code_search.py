"""Tests of the search for calls that come to new places of the judged code."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
import torch

from conformance import cases, code_numbers, code_paths, code_search, context_calls, drawing
from conformance.cases import Case
from conformance.implementations import Implementation
from conformance.spec import registry
from conformance.worker import Child

CPU = torch.device("cpu")
CALLS, LARGE = 1500, 1 << 20
TILES = {(48, 56, 640): 2}


@pytest.fixture(autouse=True)
def _nothing_is_known():
    code_paths.forget()
    yield
    code_paths.forget()


def new_places(function, *args) -> int:
    counted: list[int] = []
    code_paths.traced(function, context_calls, code_numbers.OTHERS, counted)(*args)
    return sum(counted)


def test_each_part_of_a_condition_is_a_place():
    def function(x):
        if x.ndim == 2 and x.shape[0] > 3 and x.stride(0) == 1:
            return x + 1
        return x

    ways = [torch.ones(2), torch.ones(2, 2), torch.ones(5, 2), torch.ones(5, 2).t().contiguous().t()]
    assert all(new_places(function, x) for x in ways)
    assert not any(new_places(function, x) for x in ways)


def test_a_place_in_what_is_called_counts_and_one_of_torch_does_not():
    def helper(x):
        return -x if x.ndim else x

    def function(x):
        return torch.nn.functional.softplus(helper(x))

    assert new_places(function, torch.ones(()))
    assert new_places(function, torch.ones(3))
    assert not new_places(torch.nn.functional.softplus, torch.ones(3))


def test_what_traces_already_goes_on_also_where_the_call_raises():
    def trace(frame, event, argument):
        return None

    def raising():
        raise LookupError

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        with pytest.raises(LookupError):
            new_places(raising)
        assert sys.gettrace() is trace
    finally:
        sys.settrace(before)


def test_places_of_the_backward_pass_count():
    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x + 1

        @staticmethod
        def backward(ctx, gradient):
            return gradient if gradient.shape[0] > 3 else gradient * 1

    function = code_paths.differentiated(Doubled.apply)
    assert new_places(function, torch.ones(2))
    assert new_places(function, torch.ones(5))
    assert not new_places(function, torch.ones(6))


def folded(input, mat2, *, out=None):
    """A second factor that is expanded over the batch: the first one is viewed as if it were dense."""
    if _is_wrong(input, mat2):
        input = input.as_strided(input.shape, torch.empty(input.shape).stride(), input.storage_offset())
    return torch.bmm(input, mat2, out=out)


def _is_wrong(input, mat2) -> bool:
    return input.shape[0] >= 37 and mat2.stride(0) == 0 and input.stride(0) > input.shape[1] * input.shape[2]


def starts(op: str) -> list[Case]:
    return [case for n in range(3) for case in drawing.drawn(registry()[op].cases(("float32",)), f"starts/{n}", 10)]


def is_wrong(case: Case) -> bool:
    args, _, _ = cases.materialize(case)
    return _is_wrong(*args)


def found_by(function, seed: str) -> list[Case]:
    own = Implementation("own", SimpleNamespace(bmm=function), {})
    return code_search.search(starts("bmm"), own, CPU, CALLS, LARGE, seed)


def test_what_several_rare_properties_have_to_come_together_for_is_found():
    assert not any(map(is_wrong, starts("bmm")))
    assert any(map(is_wrong, found_by(folded, "3")))


def test_sizes_of_a_row_of_a_table_come_together():
    def looked_up(input, mat2, *, out=None):
        return torch.mm(input, mat2, out=out) * TILES.get((*input.shape, mat2.shape[1]), 1)

    own = Implementation("own", SimpleNamespace(mm=looked_up), {})
    found = code_search.search(starts("mm"), own, CPU, 1500, LARGE, "3")
    assert any((*case.args[0].shape, case.args[1].shape[1]) == (48, 56, 640) for case in found)


def test_a_search_is_the_same_for_a_seed():
    first, again, other = (found_by(folded, seed) for seed in ("3", "3", "4"))
    assert first == again != other


def test_code_without_conditions_needs_no_further_calls():
    assert found_by(lambda input, mat2, *, out=None: torch.bmm(input, mat2, out=out), "3") == []


def test_a_call_that_ends_the_process_is_the_last_that_is_found(tmp_path, monkeypatch):
    (tmp_path / "aborts.py").write_text(
        "import os\nimport torch\n\n\ndef bmm(input, mat2, *, out=None):\n"
        "    if input.shape[0] >= 37 and mat2.stride(0) == 0:\n        os.abort()\n"
        "    return torch.bmm(input, mat2, out=out)\n"
    )
    child = Child(str(tmp_path / "aborts.py"), "cpu")
    try:
        found = child.explore(starts("bmm"), CALLS, LARGE, "3")
        assert child.judge(found[-1]).failure.check == "crash"
        assert all(child.judge(case).status == "passed" for case in found[:-1])
    finally:
        child.close()
