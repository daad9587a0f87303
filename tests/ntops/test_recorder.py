"""Recorded calls, with a stand-in for a compiled kernel that reads memory by its address."""

import contextlib
import subprocess
import sys

import pytest
import torch
from fake_kernels import Kernel, add
from torch._subclasses import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from triton.tools.tensor_descriptor import TensorDescriptor

from ntops.host import output
from ntops.launch import boundary, recorder, replay


def _function(kernel, calls, state=None):
    @recorder.repeatable(state=state, recorded=True)
    def plus(input, number=1.0, *, out=None, view=False, cast=False, inplace=False):
        calls.append(number)
        read = input.double().float() if cast else input[1:] if view else input
        result = out if out is not None else read if inplace else None

        if result is None:
            result = recorder.empty(read.shape, read.stride(), read.dtype, read.device)

        recorder.launch(kernel, (7,), {}, result, read, read.numel(), number)
        return result

    return plus


def test_a_call_that_comes_again_only_launches(kernel):
    calls = []
    plus = _function(kernel, calls)

    for k in range(3):
        input = torch.randn(5, 3)
        torch.testing.assert_close(plus(input), input + 1, msg=f"call {k}")

    assert (len(calls), kernel.compiled.launched) == (1, 2)


def test_random_numbers_are_drawn_anew(kernel):
    calls = []

    @recorder.repeatable(recorded=True)
    def noisy(input):
        calls.append(input)
        seed = recorder.drawn(input.device)
        result = recorder.empty(input.shape, input.stride(), input.dtype, input.device)
        recorder.launch(kernel, (7,), {}, result, input, input.numel(), 1.0)
        return result, seed

    found = []

    for _ in range(3):
        torch.manual_seed(3)
        found.append([noisy(torch.zeros(5))[1].item() for _ in range(3)])

    assert len(calls) == 1
    assert found[0] == found[1]
    assert len(set(found[0])) == 3


def test_a_view_of_an_argument_is_found_again(kernel):
    calls = []
    plus = _function(kernel, calls)

    for _ in range(3):
        input = torch.randn(9)
        torch.testing.assert_close(plus(input, view=True), input[1:] + 1)

    assert len(calls) == 1


def test_a_descriptor_is_of_the_memory_of_each_call(kernel):
    run, calls = kernel.compiled.run, []

    def launch(output, input, count, number):
        add(output.base.data_ptr(), input.base.data_ptr(), count, number)
        return kernel.compiled

    def run_described(*args):
        *before, output, input, count, number = args
        assert (output.shape, output.strides, input.shape, input.padding) == ([2, 4], [4, 1], [2, 4], "zero")
        run(*before, output.base.data_ptr(), input.base.data_ptr(), count, number)

    class Described(Kernel):
        def __getitem__(self, grid):
            return launch

    kernel.compiled.run = run_described
    described = Described()

    @recorder.repeatable(recorded=True)
    def plus(input):
        calls.append(input)
        result = recorder.empty(input.shape, input.stride(), input.dtype, input.device)
        output, read = (TensorDescriptor(one, [2, 4], [4, 1], [1, 4]) for one in (result, input[2:]))
        recorder.launch(described, (7,), {}, output, read, 8, 2.0)
        return result

    for k in range(3):
        input = torch.randn(4, 4)
        torch.testing.assert_close(plus(input)[:2], input[2:] + 2, msg=f"call {k}")

    assert (len(calls), kernel.compiled.launched) == (1, 2)


def test_several_results_are_returned_in_their_order(kernel):
    calls = []

    @recorder.repeatable(recorded=True)
    def plus_one_and_two(input):
        calls.append(input)
        results = [recorder.empty(input.shape, input.stride(), input.dtype, input.device) for _ in range(2)]

        for number, result in enumerate(results, 1):
            recorder.launch(kernel, (7,), {}, result, input, input.numel(), float(number))

        return results[1], None, input, results[0], results[1].view(1, 5)[:, 2:]

    for _ in range(3):
        input = torch.randn(5)
        two, nothing, same, one, view = plus_one_and_two(input)
        assert nothing is None
        torch.testing.assert_close(view, two[None, 2:])
        assert view._base is two
        assert same is input
        torch.testing.assert_close((one, two), (input + 1, input + 2))

    assert len(calls) == 1


def test_a_call_without_a_result_is_made_each_time(kernel):
    calls = []

    @recorder.repeatable(recorded=True)
    def fill(input):
        calls.append(input)
        recorder.launch(kernel, (7,), {}, recorder.empty((5,), (1,), torch.float32, "cpu"), input, 5, 1.0)

    for _ in range(3):
        assert fill(torch.randn(5)) is None

    assert len(calls) == 3


def test_in_place_gives_the_argument_itself(kernel):
    calls = []
    plus = _function(kernel, calls)

    for _ in range(3):
        input = torch.zeros(4)
        assert plus(input, inplace=True) is input
        assert input.tolist() == [1] * 4

    assert len(calls) == 1


@pytest.mark.parametrize("shape", [(2, 3), torch.Size([2, 3]), [2, 3]])
def test_calls_with_a_shape_are_recorded(kernel, shape):
    calls = []

    @recorder.repeatable(recorded=True)
    def plus(input, shape):
        calls.append(shape)
        result = recorder.empty(input.shape, input.stride(), input.dtype, input.device)
        recorder.launch(kernel, (7,), {}, result, input, input.numel(), float(shape[1]))
        return result

    for _ in range(3):
        assert plus(torch.zeros(2), shape).tolist() == [3, 3]

    plus(torch.zeros(2), type(shape)([2, 4]))
    assert len(calls) == 2


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
    plus = _function(kernel, calls)

    for _ in range(before):
        plus(torch.zeros(8), 1.0)

    args, kwargs = other(torch.zeros(8))
    plus(*args, **kwargs)
    assert len(calls) == 2


def test_the_sign_of_zero_is_told_apart(kernel):
    calls = []
    plus = _function(kernel, calls)

    for number in (0.0, 0.0, -0.0, 0.0, -0.0):
        plus(torch.zeros(1), float(str(number)))

    assert list(map(str, calls)) == ["0.0", "-0.0"]


def test_what_else_a_call_depends_on_is_told_apart(kernel):
    calls = []
    state = ["highest"]
    plus = _function(kernel, calls, lambda: state[0])
    plus(torch.zeros(1))
    plus(torch.zeros(1))
    state[0] = "high"
    plus(torch.zeros(1))
    plus(torch.zeros(1))
    assert len(calls) == 2


def test_a_call_that_casts_is_never_recorded(kernel):
    calls = []
    plus = _function(kernel, calls)

    for _ in range(3):
        plus(torch.zeros(4), cast=True)

    assert len(calls) == 3


def _out_function(kernel, calls):
    @recorder.repeatable(recorded=True)
    def plus(input, *, out=None):
        calls.append(1)
        result = recorder.empty(input.shape, input.stride(), input.dtype, input.device) if out is None else out

        if result.shape != input.shape:
            output.resize_out(result, input.shape, input.stride())

        recorder.launch(kernel, (7,), {}, result, input, input.numel(), 1.0)
        return output.given(out, result)

    return plus


def test_out_is_written_again_and_counted(kernel):
    calls = []
    plus = _out_function(kernel, calls)

    for k in range(4):
        input, out = torch.randn(4), torch.zeros(4)
        version = out._version
        assert plus(input, out=out) is out
        torch.testing.assert_close(out, input + 1, msg=f"call {k}")
        assert out._version == version + 1

    assert len(calls) == 1

    # The input itself is another kind of call.
    for _ in range(3):
        input = torch.zeros(4)
        assert plus(input, out=input) is input
        assert input.tolist() == [1.0] * 4

    assert len(calls) == 2


def test_out_that_overlaps_or_is_resized_is_never_repeated(kernel):
    calls = []
    plus = _out_function(kernel, calls)
    whole = torch.zeros(32)

    for _ in range(3):
        plus(torch.zeros(8), out=torch.zeros(8))

    assert len(calls) == 1

    # As aligned as the others, 4 elements apart; in both directions.
    for first, second in ((0, 4), (4, 0)):
        for _ in range(2):
            plus(whole[first : first + 8], out=whole[second : second + 8])

    assert len(calls) == 5
    plus(whole[:8], out=whole[8:16])
    assert len(calls) == 5, "memory that begins where the other ends is not shared"

    for _ in range(3):
        plus(torch.zeros(8), out=torch.zeros(0))

    assert len(calls) == 8


def test_calls_of_many_shapes_are_all_repeated_at_once(kernel, monkeypatch):
    calls, described = [], []
    plus = _function(kernel, calls)
    describe = recorder.describe_call
    monkeypatch.setattr(recorder, "describe_call", lambda *args: described.append(1) or describe(*args))

    for _ in range(4):
        for size in range(1, 40):
            input = torch.randn(size)
            torch.testing.assert_close(plus(input), input + 1)

    # The first is recorded, the second is told from others, and then none is looked up any more.
    assert (len(calls), len(described)) == (39, 2 * 39)


def test_a_view_of_shared_memory_is_not_recorded(kernel):
    calls = []

    @recorder.repeatable(recorded=True)
    def plus(first, second):
        calls.append(1)
        result = recorder.empty(first.shape, first.stride(), first.dtype, first.device)
        recorder.launch(kernel, (7,), {}, result, second[1:], 3, 1.0)
        return result

    both = torch.arange(16.0)

    for _ in range(3):
        assert plus(both[:4], both[4:8])[:3].tolist() == [6, 7, 8]

    assert len(calls) == 3


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


def test_an_inner_call_belongs_to_the_outer_one(kernel):
    calls = []
    inner = _function(kernel, calls)

    @recorder.repeatable(recorded=True)
    def twice(input):
        calls.append("outer")
        return inner(inner(input))

    for _ in range(3):
        assert twice(torch.zeros(4)).tolist() == [2] * 4

    assert calls == ["outer", 1.0, 1.0]


def test_what_needs_a_gradient_is_left_to_the_function(kernel):
    calls = []
    plus = _function(kernel, calls)
    weight = torch.nn.Parameter(torch.zeros(4))

    with torch.no_grad():
        plus(weight)
        plus(weight)

        plus(weight)

    assert len(calls) == 1
    plus(weight)
    assert len(calls) == 2


def test_kinds_of_calls_are_limited(kernel, monkeypatch):
    monkeypatch.setattr(recorder, "LIMIT", 3)
    calls = []
    plus = _function(kernel, calls)

    for size in (1, 2, 3, 4, 4, 1):
        plus(torch.zeros(size))

    assert len(calls) == 5
    known = recorder._memory[-1]
    assert len(known) == 2


def test_kinds_of_calls_that_are_tried_in_turn_are_few(kernel):
    calls = []
    plus = _function(kernel, calls)

    for _ in range(3):
        for number in range(1, recorder.RECENT + 4):
            assert plus(torch.zeros(2), number=float(number)).tolist() == [number] * 2

    assert len(calls) == recorder.RECENT + 3
    assert [len(tried) for tried in recorder._memory[-2].values()] == [recorder.RECENT]


def test_shapes_that_are_tried_at_once_are_limited(kernel, monkeypatch):
    monkeypatch.setattr(recorder, "LIMIT", 5)
    plus = _function(kernel, [])

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


def test_modes_see_what_is_allocated(kernel):
    calls, found = [], []
    plus = _function(kernel, calls)

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            found.append(str(function))
            return function(*args, **(kwargs or {}))

    input = torch.zeros(4)

    for _ in range(3):
        for mode in (Mode(), contextlib.nullcontext(), torch.inference_mode()):
            with mode:
                assert plus(input).is_inference() == torch.is_inference_mode_enabled()

    assert [name for name in found if "empty" in name] == ["aten.empty_strided.default"] * 3


def test_tensors_are_not_repeated_where_new_ones_are_fake(kernel):
    """torch's guards take an ordinary tensor for what it was, under this mode too."""
    calls = []
    plus = _function(kernel, calls)
    input = torch.zeros(4)

    for _ in range(3):
        plus(input)

    launched = kernel.compiled.launched

    with FakeTensorMode(allow_non_fake_inputs=True), pytest.raises(NotImplementedError, match="mode"):
        plus(input)

    assert (len(calls), kernel.compiled.launched) == (2, launched)


def test_a_torch_without_guards_repeats_calls(kernel, monkeypatch):
    monkeypatch.setattr(replay, "_TensorGuards", None)
    test_a_call_that_comes_again_only_launches(kernel)


def test_defaults_that_change_are_seen(kernel):
    calls = []
    plus = _function(kernel, calls)

    for _ in range(3):
        plus(torch.zeros(4))

    assert len(calls) == 1
    recorder.forget()
    plus(torch.zeros(4))
    assert len(calls) == 2


def test_another_default_dtype_is_seen(kernel):
    calls = []
    plus = _function(kernel, calls)
    before = torch.get_default_dtype()

    for _ in range(3):
        plus(torch.zeros(4, dtype=torch.int64))

    try:
        torch.set_default_dtype(torch.float64)
        plus(torch.zeros(4, dtype=torch.int64))
    finally:
        torch.set_default_dtype(before)

    assert len(calls) == 2


NESTED = """
import torch
import ntops.torch
from ntops.launch import replay
tensor, nested = torch.zeros(4), torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)])
scope = {}
lines = replay._told([tensor], (tensor,), {}, None, scope)
told = replay.function("told(args, kwargs)", [*lines, "return True"], scope)
assert told((tensor,), {}) is True
assert told((nested,), {}) is None
"""


def test_a_nested_tensor_does_not_end_the_process():
    """As torch's guard alone would, which asks for strides."""
    done = subprocess.run([sys.executable, "-c", NESTED], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_profiler_hears_of_every_launch(kernel, monkeypatch):
    calls = []
    plus = _function(kernel, calls)
    plus(torch.zeros(4))
    plus(torch.zeros(4))
    monkeypatch.setattr(replay.knobs.runtime, "launch_enter_hook", lambda metadata: None)
    plus(torch.zeros(4))
    assert len(calls) == 2


def test_a_parameter_by_keyword_is_refused(kernel):
    """It would be lacking when the call is repeated."""
    tensor = torch.zeros(3)

    with pytest.raises(TypeError, match="3 arguments for the 4 parameters of plus"):
        recorder.launch(kernel, (7,), {"number": 1.0}, tensor, tensor, 3)


class _FunctionMode(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


class _DispatchMode(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


CONTEXTS = {
    "dispatch mode": lambda call, input: _within(_DispatchMode(), call, input),
    "function mode": lambda call, input: _within(_FunctionMode(), call, input),
    "autocast": lambda call, input: _within(torch.autocast("cpu"), call, input),
    "fake": lambda call, input: _within(FakeTensorMode(allow_non_fake_inputs=True), call, input),
    "vmap": lambda call, input: torch.func.vmap(lambda x: (call(input), x)[1])(input),
    "batched": lambda call, input: torch.func.vmap(lambda x: (call(x), x)[1])(input.expand(2, 4)),
    "gradient": lambda call, input: call(input.requires_grad_()),
    "subclass": lambda call, input: call(input.as_subclass(type("Subclass", (torch.Tensor,), {}))),
    "meta": lambda call, input: call(input.to("meta")),
}


def _within(context, call, input):
    with context:
        call(input)


@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("calls_before", [0, 1, 3])
def test_calls_that_belong_to_torch_go_there(kernel, monkeypatch, calls_before, context):
    """However often their like was recorded, they are not repeated."""
    calls, sent = [], []
    plus = _function(kernel, calls)
    monkeypatch.setitem(boundary.OPERATORS, "plus", lambda *args, **kwargs: sent.append(args))

    for _ in range(calls_before):
        plus(torch.zeros(4))

    before = len(calls), kernel.compiled.launched
    CONTEXTS[context](plus, torch.zeros(4))
    assert len(sent) == 1
    assert (len(calls), kernel.compiled.launched) == before
    plus(torch.zeros(4))
    assert len(sent) == 1


def test_calls_from_the_dispatcher_are_recorded(kernel, monkeypatch):
    """Under a mode that it has dealt with, too."""
    calls, sent = [], []
    plus = _function(kernel, calls)
    monkeypatch.setitem(boundary.OPERATORS, "plus", lambda *args, **kwargs: sent.append(args))

    with _DispatchMode(), boundary.inside():
        for _ in range(3):
            assert plus(torch.zeros(4)).tolist() == [1] * 4

    assert (len(calls), kernel.compiled.launched, sent) == (1, 2, [])
