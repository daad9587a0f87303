"""Every operator there is, on cases of the harness: at once as one by one, and nothing wrong with its memory."""

import pytest
import torch

pytest.importorskip("msgspec", reason="the harness is not installed")

from hypothesis import HealthCheck, given, settings

import ntops.torch
from conformance import cases
from conformance.spec import registry
from ntops import _runtime, interpreter
from ntops.interpreter import launch

pytestmark = [
    pytest.mark.skipif(not _runtime.INTERPRETED, reason="kernels are compiled here"),
    pytest.mark.filterwarnings("ignore:.*was resized"),
]


def call(function, case, **watching):
    """What an operator returns and leaves in its operands, on fresh operands."""
    args, kwargs, tensors = cases.materialize(case)
    # torch.manual_seed also notes the stack for each kind of device that is not there.
    torch.default_generator.manual_seed(0)

    if not watching:
        return function(*args, **kwargs), tensors

    written = registry()[case.op].writes(case)
    allowed = [tensor for number, tensor in enumerate(tensors) if number in written]

    with interpreter.watch(inputs=tensors, writable=allowed) as watcher:
        result = function(*args, **kwargs)
        watcher.check_written(result)

    return result, tensors


def bits(tensor, computed=True):
    """The bits. Of what is ``computed`` any NaN is as good as another: its sign follows from the order in which a CPU's
    vector instructions take operands, and so from how many programs there are at once."""
    if computed and tensor.is_floating_point():
        nan = torch.isnan(tensor.to(torch.float64))
        tensor = torch.where(nan, torch.full((), float("nan"), dtype=torch.float64).to(tensor.dtype), tensor)

    return tensor.contiguous().view(-1).view(torch.uint8)


def results(value):
    return value if isinstance(value, tuple) else (value,)


def one_by_one(function, case, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(launch, "CHUNK", 1)

        return call(function, case)


@pytest.mark.parametrize("op", sorted(registry()))
def test_operator(op, monkeypatch):
    spec = registry()[op]
    function = getattr(ntops.torch, op)
    seen = set()

    @settings(max_examples=24, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
    @given(spec.cases(spec.dtypes))
    def check(case):
        # Hypothesis draws some more than once.
        if (identity := cases.case_id(case)) in seen:
            return

        seen.add(identity)

        try:
            expected, expected_operands = one_by_one(function, case, monkeypatch)
        except NotImplementedError:
            return

        # Watched; that this changes nothing, the conformance suite checks: its second call of each case is not.
        result, operands = call(function, case, watched=True)
        assert all(torch.equal(bits(a), bits(b)) for a, b in zip(results(result), results(expected), strict=True))
        written = spec.writes(case)

        for number, (a, b) in enumerate(zip(operands, expected_operands, strict=True)):
            assert torch.equal(bits(a, number in written), bits(b, number in written))

    check()
