"""Recorded calls where torch does more than compute: gradients, modes, fake tensors, transforms, profilers."""

import contextlib

import pytest
import torch
from fake_kernels import plus_function
from torch._subclasses import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from ntops.launch import boundary, replay


def test_what_needs_a_gradient_is_left_to_the_function(kernel):
    calls = []
    plus = plus_function(kernel, calls)
    weight = torch.nn.Parameter(torch.zeros(4))

    with torch.no_grad():
        plus(weight)
        plus(weight)

        plus(weight)

    assert len(calls) == 1
    plus(weight)
    assert len(calls) == 2


def test_modes_see_what_is_allocated(kernel):
    calls, found = [], []
    plus = plus_function(kernel, calls)

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
    plus = plus_function(kernel, calls)
    input = torch.zeros(4)

    for _ in range(3):
        plus(input)

    launched = kernel.compiled.launched

    with FakeTensorMode(allow_non_fake_inputs=True), pytest.raises(NotImplementedError, match="mode"):
        plus(input)

    assert (len(calls), kernel.compiled.launched) == (2, launched)


def test_a_profiler_hears_of_every_launch(kernel, monkeypatch):
    calls = []
    plus = plus_function(kernel, calls)
    plus(torch.zeros(4))
    plus(torch.zeros(4))
    monkeypatch.setattr(replay.knobs.runtime, "launch_enter_hook", lambda metadata: None)
    plus(torch.zeros(4))
    assert len(calls) == 2


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
    plus = plus_function(kernel, calls)
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
    plus = plus_function(kernel, calls)
    monkeypatch.setitem(boundary.OPERATORS, "plus", lambda *args, **kwargs: sent.append(args))

    with _DispatchMode(), boundary.inside():
        for _ in range(3):
            assert plus(torch.zeros(4)).tolist() == [1] * 4

    assert (len(calls), kernel.compiled.launched, sent) == (1, 2, [])
