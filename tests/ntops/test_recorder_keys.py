"""Recorded calls: those that differ are told apart, and few are kept."""

import pytest
import torch
from fake_kernels import plus_function

from ntops.launch import recorder


def test_calls_with_other_arguments_are_not_recorded(kernel):
    calls = []

    @recorder.repeatable(recorded=True)
    def plus(input, other):
        calls.append(other)
        result = recorder.empty(input.shape, input.stride(), input.dtype, input.device)
        recorder.launch(kernel, (7,), {}, result, input, input.numel(), 1.0)
        return result

    for other in ((1, 2.0), {}, 1j):
        for _ in range(3):
            plus(torch.zeros(2), other)

    assert len(calls) == 9


@pytest.mark.parametrize(
    "other",
    [
        lambda x: ((x.double().float()[:4],), {}),
        lambda x: ((x, 2.0), {}),
        lambda x: ((x, 1), {}),
        lambda x: ((x, True), {}),
        lambda x: ((x[::2],), {}),
        lambda x: ((x.view(2, 4),), {}),
        lambda x: ((torch.zeros(9)[1:],), {}),
        lambda x: ((x,), {"view": True}),
    ],
    ids=["shape", "number", "kind of number", "bool", "strides", "dims", "alignment", "flag"],
)
@pytest.mark.parametrize("before", [1, 2])
def test_another_call_is_made_anew(kernel, other, before):
    calls = []
    plus = plus_function(kernel, calls)

    for _ in range(before):
        plus(torch.zeros(8), 1.0)

    args, kwargs = other(torch.zeros(8))
    plus(*args, **kwargs)
    assert len(calls) == 2


def test_the_sign_of_zero_is_told_apart(kernel):
    calls = []
    plus = plus_function(kernel, calls)

    for number in (0.0, 0.0, -0.0, 0.0, -0.0):
        plus(torch.zeros(1), float(str(number)))

    assert list(map(str, calls)) == ["0.0", "-0.0"]


def test_what_else_a_call_depends_on_is_told_apart(kernel):
    calls = []
    state = ["highest"]
    plus = plus_function(kernel, calls, lambda: state[0])
    plus(torch.zeros(1))
    plus(torch.zeros(1))
    state[0] = "high"
    plus(torch.zeros(1))
    plus(torch.zeros(1))
    assert len(calls) == 2


def test_calls_of_many_shapes_are_all_repeated_at_once(kernel, monkeypatch):
    calls, described = [], []
    plus = plus_function(kernel, calls)
    describe = recorder.describe_call
    monkeypatch.setattr(recorder, "describe_call", lambda *args: described.append(1) or describe(*args))

    for _ in range(4):
        for size in range(1, 40):
            input = torch.randn(size)
            torch.testing.assert_close(plus(input), input + 1)

    # The first is recorded, the second is told from others, and then none is looked up any more.
    assert (len(calls), len(described)) == (39, 2 * 39)


def test_one_tensor_twice_is_not_two_tensors(kernel):
    calls = []

    @recorder.repeatable(recorded=True)
    def plus(first, second):
        calls.append(1)
        result = recorder.empty(first.shape, first.stride(), first.dtype, first.device)
        recorder.launch(kernel, (7,), {}, result, second, 4, 1.0)
        return result

    x, y = torch.zeros(4), torch.ones(4)

    for _ in range(3):
        assert [plus(x, x).tolist(), plus(x, y).tolist(), plus(y, x).tolist()] == [[1] * 4, [2] * 4, [1] * 4]

    assert len(calls) == 2
    # Both take the short way.
    assert [len(tried) for tried in recorder._memory[-2].values()] == [2]


def test_kinds_of_calls_are_limited(kernel, monkeypatch):
    monkeypatch.setattr(recorder, "LIMIT", 3)
    calls = []
    plus = plus_function(kernel, calls)

    for size in (1, 2, 3, 4, 4, 1):
        plus(torch.zeros(size))

    assert len(calls) == 5
    known = recorder._memory[-1]
    assert len(known) == 2


def test_kinds_of_calls_that_are_tried_in_turn_are_few(kernel):
    calls = []
    plus = plus_function(kernel, calls)

    for _ in range(3):
        for number in range(1, recorder.RECENT + 4):
            assert plus(torch.zeros(2), number=float(number)).tolist() == [number] * 2

    assert len(calls) == recorder.RECENT + 3
    assert [len(tried) for tried in recorder._memory[-2].values()] == [recorder.RECENT]


def test_shapes_that_are_tried_at_once_are_limited(kernel, monkeypatch):
    monkeypatch.setattr(recorder, "LIMIT", 5)
    plus = plus_function(kernel, [])

    for size in range(20):
        for _ in range(3):
            plus(torch.zeros(size + 1))

    assert len(recorder._memory[-2]) <= 5


def test_arguments_are_told_apart_by_keyword(kernel):
    calls = []

    @recorder.repeatable(recorded=True)
    def minus(first, second):
        calls.append(1)
        result = recorder.empty(first.shape, first.stride(), first.dtype, first.device)
        recorder.launch(kernel, (7,), {}, result, second, 4, -1.0)
        return result

    x, y = torch.zeros(4), torch.ones(4)

    for _ in range(3):
        assert minus(x, second=y).tolist() == minus(second=y, first=x).tolist() == minus(x, y).tolist() == [0] * 4
        assert minus(first=y, second=x).tolist() == [-1] * 4

    assert len(calls) == 4


def test_defaults_that_change_are_seen(kernel):
    calls = []
    plus = plus_function(kernel, calls)

    for _ in range(3):
        plus(torch.zeros(4))

    assert len(calls) == 1
    recorder.forget()
    plus(torch.zeros(4))
    assert len(calls) == 2


def test_another_default_dtype_is_seen(kernel):
    calls = []
    plus = plus_function(kernel, calls)
    before = torch.get_default_dtype()

    for _ in range(3):
        plus(torch.zeros(4, dtype=torch.int64))

    try:
        torch.set_default_dtype(torch.float64)
        plus(torch.zeros(4, dtype=torch.int64))
    finally:
        torch.set_default_dtype(before)

    assert len(calls) == 2
