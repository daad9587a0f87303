"""What a recorded call does beside its launches is never lost: then the call is not repeated."""

import inspect

import pytest
import torch
from fake_kernels import Kernel
from torch.autograd import forward_ad
from triton import knobs

import ntops
from ntops._runtime import INTERPRETED
from ntops.autograd import fused, positions, products
from ntops.host import attention_gradients, gradients, promotion, row_gradients
from ntops.launch import recorder


def _plus_one(kernel, calls, then=lambda input, result: None):
    @recorder.repeatable(recorded=True)
    def plus_one(input, inplace=False):
        calls.append(1)
        result = input if inplace else recorder.empty(input.shape, input.stride(), input.dtype, input.device)
        recorder.launch(kernel, (7,), {}, result, input, input.numel(), 1.0)

        if inplace:
            recorder.written(input)

        return then(input, result) or result

    return plus_one


def _twice(input, result):
    result.mul_(2)


LOST = {
    "in place": (_twice, 4),
    "out": (lambda input, result: torch.mul(result, 2, out=result) and None, 4),
    "copy": (lambda input, result: result.copy_(input * 4), 4),
    "of a view": (lambda input, result: result[:1].mul_(2) and None, None),
    "of an input": (lambda input, result: input.zero_() and None, 2),
}


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize("kind", LOST)
def test_an_operation_of_torch_is_not_dropped(kernel, kind, inference):
    then, expected = LOST[kind]
    calls = []
    function = _plus_one(kernel, calls, lambda input, result: then(input, result) if input.ndim else None)

    with torch.inference_mode(inference):
        for _ in range(4):
            found = function(torch.ones(1))
            assert found.tolist() == [4 if expected is None else expected]

    assert len(calls) == 4


def test_an_operation_for_some_sizes_is_not_dropped(kernel):
    """The version counter shows it, without looking at every operation of every size."""
    calls = []
    function = _plus_one(kernel, calls, lambda input, result: _twice(input, result) if len(input) > 2 else None)

    for size in (1, 2, 3, 4, 3, 4):
        assert function(torch.ones(size)).tolist() == [2 if size < 3 else 4] * size

    assert len(calls) == 6


@pytest.mark.parametrize("read", [lambda x: x[0].item(), lambda x: float(x.sum()), lambda x: torch.rand(()).item()])
def test_a_number_that_is_read_from_memory_is_read_anew(kernel, read):
    @recorder.repeatable(recorded=True)
    def plus(input):
        result = recorder.empty(input.shape, input.stride(), input.dtype, input.device)
        recorder.launch(kernel, (7,), {}, result, input, input.numel(), read(input))
        return result

    for number in range(4):
        torch.manual_seed(number)
        expected = read(torch.full((1,), float(number)))
        torch.manual_seed(number)
        torch.testing.assert_close(plus(torch.full((1,), float(number))).item(), number + expected)


def test_clamp_reads_a_bound_that_is_a_tensor_anew(kernel):
    """As on a GPU, where the bound is on the device: the number is part of no key."""

    @recorder.repeatable(recorded=True)
    def clamped(input, low):
        # The launch stands for that of clamp, which takes the number.
        result = recorder.empty(input.shape, input.stride(), input.dtype, input.device)
        recorder.launch(kernel, (7,), {}, result, input, input.numel(), low.item())
        return result

    for number in (1.0, 2.0, 3.0):
        assert clamped(torch.zeros(2), torch.tensor(number)).tolist() == [number] * 2


def test_a_kernel_that_is_launched_by_itself_is_not_dropped(kernel):
    class Heard(Kernel):
        """Triton tells its hooks of every launch."""

        def __getitem__(self, grid):
            launch = super().__getitem__(grid)

            def heard(*args, **options):
                knobs.runtime.launch_enter_hook(None)
                return launch(*args)

            return heard

    heard, calls = Heard(), []

    def then(input, result):
        heard[7,](result, result, result.numel(), 1.0)

    alone, with_another = (_plus_one(heard, calls), _plus_one(heard, calls, then))

    for _ in range(3):
        assert alone(torch.ones(2)).tolist() == [2] * 2

    assert len(calls) == 1
    assert not knobs.runtime.launch_enter_hook.calls

    for _ in range(3):
        assert with_another(torch.ones(2)).tolist() == [3] * 2

    assert len(calls) == 4


def test_views_and_new_memory_are_no_operations(kernel):
    calls = []

    def then(input, result):
        result.view(2, 2).mT.expand(3, 2, 2)[1:].unsqueeze(0)
        torch.empty(3)
        promotion.rounded(0.1, torch.float16)
        recorder.constant(3.5, input.device)

    function = _plus_one(kernel, calls, then)

    for _ in range(3):
        assert function(torch.ones(2, 2).view(4)).tolist() == [2] * 4

    assert len(calls) == 1


def test_a_call_that_cannot_be_repeated_is_watched_once(kernel, monkeypatch):
    calls, watches = [], []
    watch = recorder.Watch
    monkeypatch.setattr(recorder, "Watch", lambda: watches.append(1) or watch())
    function = _plus_one(kernel, calls, _twice)

    for _ in range(4):
        function(torch.ones(2))

    assert len(watches) == 1


def test_sizes_are_not_watched_again(kernel, monkeypatch):
    calls, watches = [], []
    watch = recorder.Watch
    monkeypatch.setattr(recorder, "Watch", lambda: watches.append(1) or watch())
    function = _plus_one(kernel, calls)

    for size in range(1, 5):
        function(torch.ones(size))

    function(torch.ones(2, 2))
    assert (len(calls), len(watches)) == (5, 2)


@pytest.mark.parametrize("described", [False, True])
def test_the_version_of_what_is_written_moves_in_each_repetition(kernel, described):
    calls = []
    function = _plus_one(kernel, calls)
    input = torch.zeros(4)
    view = input[1:]

    for k in range(1, 5):
        if described:
            recorder._memory[-2].clear()  # what is tried first

        function(input, True)
        assert (input._version, view._version) == (k, k)

    assert len(calls) == 1
    other = torch.zeros(4)
    function(other)
    function(other)
    assert other._version == 0


def test_the_version_of_one_that_is_written_and_given_twice_moves_once(kernel):
    calls = []

    @recorder.repeatable(recorded=True)
    def add_to(first, second):
        calls.append(1)
        recorder.launch(kernel, (7,), {}, first, second, 4, 1.0)
        recorder.written(first)
        return recorder.empty((), (), first.dtype, first.device)

    for k in range(1, 4):
        x, y = torch.zeros(8), torch.zeros(4)
        add_to(x[:4], x[4:])
        add_to(x, x)
        add_to(x[:4], y)
        assert (x._version, y._version) == (3, 0), k


def test_tensors_of_inference_mode_have_no_version(kernel):
    calls = []
    function = _plus_one(kernel, calls)

    with torch.inference_mode():
        tensor = torch.zeros(4)

        for k in range(1, 4):
            assert function(tensor, True).tolist() == [k] * 4

    ordinary = torch.zeros(4)

    with torch.inference_mode():
        for k in range(1, 4):
            function(ordinary, True)
            assert ordinary._version == k

    # A recording of each kind: what inference mode made may not be written outside of it, which only a call sees.
    assert len(calls) == 2


def test_what_autograd_saved_is_not_overwritten_unseen(kernel):
    calls = []
    function = _plus_one(kernel, calls)

    for _ in range(3):
        x = torch.ones(3, requires_grad=True)
        saved = x.detach().clone()
        y = (x * saved).sum()

        with torch.no_grad():
            function(saved, True)

        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.backward()


def test_a_null_pointer_is_never_repeated(kernel, monkeypatch):
    calls = []
    function = _plus_one(kernel, calls)

    for _ in range(3):
        function(torch.ones(4))

    freed, functional = torch.ones(4), torch._to_functional_tensor(torch.ones(4))
    freed.untyped_storage().resize_(0)
    monkeypatch.setattr(recorder, "launch", lambda *args: None)
    before = kernel.compiled.launched

    for one in (freed, functional):
        function(one)

    assert (len(calls), kernel.compiled.launched) == (3, before)


def test_a_call_with_a_tangent_is_never_repeated(kernel):
    calls = []
    function = _plus_one(kernel, calls)

    for _ in range(3):
        function(torch.ones(4))

    with forward_ad.dual_level():
        function(forward_ad.make_dual(torch.ones(4), torch.ones(4)))

    assert len(calls) == 2


X = torch.ones(8, 64)
ROW = torch.ones(64)
LONG = torch.ones(2, 10000)
FP8 = torch.ones(16, 16).to(torch.float8_e4m3fn)
HEADS, CACHE = torch.ones(1, 2, 1, 16), torch.ones(1, 2, 8, 16)
COMMON = {
    "exp": (X,),
    "relu": (X, True),
    "silu": (X.half(), True),
    "gelu": (X,),
    "dropout": (X, 0.5, True, True),
    "add": (X, ROW),
    "mul": (X.half(), 2.5),
    "pow": (X.half(), 2.5),
    "div": (2.5, X),
    "eq": (X, 1),
    "bitwise_and": (X.int(), 3),
    "clamp": (X, 0.0, 1.0),
    "softmax": (X.half(), 1, torch.float32),
    "layer_norm": (X, (64,), ROW),
    "rms_norm": (X, (64,), ROW),
    "mm": (X.half(), X.half().T),
    "addmm": (torch.ones(8), X, X.T),
    "matmul": (X, X.T),
    "rotary_position_embedding": (X.view(1, 4, 2, 64), X[:4, :32], X[4:, :32].clone(), True, True),
    "fused_rmsnorm_rope": (X[None], ROW, X.clone(), X.clone()),
    "fused_gated_mlp": (X, X.clone(), X.clone()),
    "quantize_fp8": (X,),
    "dequantize_fp8": (FP8, torch.ones(())),
    "fp8_gemm": (FP8, FP8.clone().T),
    "scaled_dot_product_attention": (
        *(HEADS, HEADS.clone(), HEADS.clone(), None, 0, False, None, False, None),
        *(CACHE, CACHE.clone(), 3),
    ),
}


ATTENTION = *[torch.ones(1, 2, 4, 16) for _ in range(5)], torch.ones(2, 1, 2, 4), None, False, 0.25
BACKWARD = {
    "a softmax": (row_gradients.softmax_backward, (X, X.clone(), 1, torch.float32)),
    "a norm": (row_gradients.norm, (X, X.clone(), ROW, 1e-5, True, torch.float32, True, True, True)),
    "a norm of plain inputs": (row_gradients.norm, (X, X.clone(), ROW, 1e-5, False, None, False, True, False)),
    "a norm of long rows": (
        row_gradients.norm,
        (LONG, LONG.clone(), None, 1e-5, True, torch.float32, True, False, True),
    ),
    "attention": (attention_gradients.attention, (*ATTENTION, True, True, True, False)),
    "attention of fixed keys": (attention_gradients.attention, (*ATTENTION, True, False, False, False)),
    "a factor": (products.contracted, (X, X.mT, (), ())),
    "factors of a batch": (products.contracted, (X.view(2, 4, 64), X.view(2, 4, 64).mT, (2,), (2,), 0.5)),
    "a gated MLP": (fused.mlp, (X[:, :8].contiguous(), X, X.clone(), X[:8].clone(), "silu", True, True, True)),
    "a rotation": (positions.rotated_back, (X.view(1, 4, 2, 64), X[:4, :32], X[4:, :32], True, torch.float32)),
    "a row that was broadcast": (gradients.summed, (X, (64,), torch.float32)),
}


@pytest.mark.parametrize("name", COMMON)
def test_common_calls_are_recorded(kernel, monkeypatch, name):
    assert_recorded(kernel, monkeypatch, getattr(ntops.torch, name), COMMON[name])


@pytest.mark.parametrize("name", BACKWARD)
def test_backward_passes_are_recorded(kernel, monkeypatch, name):
    assert_recorded(kernel, monkeypatch, *BACKWARD[name])


def assert_recorded(kernel, monkeypatch, function, values):
    """What a call asks torch for is nothing that has to be repeated. Launches of CPU tensors are stood in for."""
    if not INTERPRETED:
        pytest.skip("launches of CPU tensors are stood in for")

    launches, calls = [], []
    kernel.compiled.run = lambda *args: launches.append(args)

    def launch(kernel_, grid, options, *args):
        recorder._local.recording.launches.append((kernel.compiled, (*grid, 1, 1)[:3], args))

    monkeypatch.setattr(recorder, "launch", launch)

    @recorder.repeatable(recorded=True)
    def call(*args):
        calls.append(1)
        # Past its own decorator, which records nothing here.
        return inspect.unwrap(function)(*args)

    for _ in range(3):
        call(*values)

    assert len(calls) == 1
    assert launches


def test_a_kernel_that_measures_its_configuration_prevents_the_recording():
    """Its launch is not known here, and one that is known may follow it in the same call."""
    from ntops.kernels.exp import premake
    from ntops.launch import kernel_sources

    source = kernel_sources._generated("kernel", premake, (("ndim", 1),), (), 4, 1)
    assert "meta" in source
    specialized = kernel_sources._specialize(source, "kernel", {}, kernel_sources.Specialization())
    assert "recorder.prevent()" in specialized.partition("def launch_kernel")[2]
