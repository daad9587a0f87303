"""Recorded calls, with a stand-in for a compiled kernel that reads memory by its address."""

import subprocess
import sys

import pytest
import torch
from fake_kernels import Kernel, add, plus_function
from triton.tools.tensor_descriptor import TensorDescriptor

from ntops.host import output
from ntops.launch import recorder, replay


def test_a_call_that_comes_again_only_launches(kernel):
    calls = []
    plus = plus_function(kernel, calls)

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
    plus = plus_function(kernel, calls)

    for _ in range(3):
        input = torch.randn(9)
        torch.testing.assert_close(plus(input, view=True), input[1:] + 1)

    assert len(calls) == 1


def test_a_descriptor_is_of_the_memory_of_each_call(kernel):
    run, calls = kernel.compiled.run, []

    def launch(output, input, count, number, **options):
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
    plus = plus_function(kernel, calls)

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


def test_a_call_that_casts_is_never_recorded(kernel):
    calls = []
    plus = plus_function(kernel, calls)

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


def test_an_inner_call_belongs_to_the_outer_one(kernel):
    calls = []
    inner = plus_function(kernel, calls)

    @recorder.repeatable(recorded=True)
    def twice(input):
        calls.append("outer")
        return inner(inner(input))

    for _ in range(3):
        assert twice(torch.zeros(4)).tolist() == [2] * 4

    assert calls == ["outer", 1.0, 1.0]


def test_a_torch_without_guards_repeats_calls(kernel, monkeypatch):
    monkeypatch.setattr(replay, "_TensorGuards", None)
    test_a_call_that_comes_again_only_launches(kernel)


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


def test_a_parameter_by_keyword_is_refused(kernel):
    """It would be lacking when the call is repeated."""
    tensor = torch.zeros(3)

    with pytest.raises(TypeError, match="3 arguments for the 4 parameters of plus"):
        recorder.launch(kernel, (7,), {"number": 1.0}, tensor, tensor, 3)
