"""What torch's profiler and NVTX hear of calls."""

import pytest
import torch
from operator_calls import CALLS, fresh, tensor
from torch.profiler import ProfilerActivity, profile

import ntops
from ntops.launch import recorder, tracing


def _profiled(function, *args, **kwargs):
    """What a profiler saw of a call: the ranges of operators and kernels, in order."""
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        function(*args, **kwargs)

    return [event.name for event in profiler.events() if "(" in event.name or event.name.startswith("ntops::")]


@pytest.mark.parametrize("name", CALLS)
def test_operators_and_configurations_have_names(name):
    args, kwargs = fresh(name)
    operator, *kernels = _profiled(getattr(ntops.torch, name), *args, **kwargs)
    assert operator == f"ntops::{name}"
    assert all("=" in kernel for kernel in kernels)
    assert kernels


def test_a_configuration_is_that_of_the_launch():
    x = tensor(64, 64)
    assert _profiled(ntops.torch.softmax, x, 1)[1].startswith("ntops_softmax(block_rows=")
    ntops.torch.set_default_num_warps(2)

    try:
        assert "num_warps=2" in _profiled(ntops.torch.add, x, x)[1]
    finally:
        ntops.torch.set_default_num_warps(None)


def test_calls_through_the_dispatcher_have_one_name():
    x = tensor(4).requires_grad_()
    names = _profiled(lambda: ntops.torch.exp(x).sum().backward())
    assert names.count("ntops::exp") == 1
    assert any(name.startswith("ntops::gradients.") for name in names)


def test_a_repeated_call_has_the_names_of_its_first(kernel):
    @recorder.repeatable(recorded=True)
    def plus(input):
        result = recorder.empty(input.shape, input.stride(), input.dtype, input.device)
        recorder.launch(kernel, (7,), {}, result, input, input.numel(), 1.0)
        return result

    input = torch.ones(3)
    first = _profiled(plus, input)
    assert first == ["ntops::test_tracing.plus", "plus()"]

    for _ in range(3):
        assert _profiled(plus, input) == first

    assert kernel.compiled.launched == 3


def test_an_error_closes_what_is_open():
    with profile(activities=[ProfilerActivity.CPU]), pytest.raises(TypeError):
        ntops.torch.add(tensor(1), "1")

    assert tracing.is_outermost()
    assert _profiled(ntops.torch.neg, tensor(1))[0] == "ntops::neg"


def test_ranges_go_to_nvtx_if_asked_for(kernel, monkeypatch):
    heard = []
    monkeypatch.setattr(torch.cuda.nvtx, "range_push", heard.append)
    monkeypatch.setattr(torch.cuda.nvtx, "range_pop", lambda: heard.append("end"))
    monkeypatch.setattr(tracing, "NVTX", True)

    @recorder.repeatable(recorded=True)
    def plus(input):
        result = recorder.empty(input.shape, input.stride(), input.dtype, input.device)
        recorder.launch(kernel, (7,), {}, result, input, input.numel(), 1.0)
        return result

    for _ in range(3):
        plus(torch.ones(3))

    assert heard == ["ntops::test_tracing.plus", "plus()", "end", "end"] * 3
