"""The OpSpecs of cross entropy: what stands for torch's linear one before 2.13, and the bound of its logits."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from torch.nn import functional

from conformance import cases
from conformance.ops import _linear_cross_entropy as oracle
from conformance.ops import cross_entropy
from conformance.ops import linear_cross_entropy as spec
from conformance.spec import Call

DTYPES = ("float32", "float16", "bfloat16", "float64")
ANY = settings(max_examples=150, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow])


def outcome(function, case):
    args, kwargs, _ = cases.materialize(case)
    try:
        return function(*args, **kwargs)
    except Exception as error:  # noqa: BLE001  (whatever torch refuses with is compared)
        return type(error)


@pytest.mark.skipif(not hasattr(functional, "linear_cross_entropy"), reason="torch has it from 2.13 on")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("strategy", [spec.cases, spec.refused])
def test_it_is_composed_as_torch_composes_it(strategy, monkeypatch):
    @ANY
    @given(strategy(DTYPES))
    def check(case):
        found = outcome(spec.linear_cross_entropy, case)
        with monkeypatch.context() as patch:
            patch.setattr(spec, "_OF_TORCH", None)
            again = outcome(spec.linear_cross_entropy, case)
        if isinstance(found, torch.Tensor):
            assert (found.dtype, found.stride()) == (again.dtype, again.stride())
            torch.testing.assert_close(found, again, rtol=0, atol=0, equal_nan=True)
        else:
            assert found is again

    check()


def log_softmax(rows: np.ndarray) -> np.ndarray:
    return torch.from_numpy(rows).log_softmax(-1).numpy()


@pytest.mark.parametrize("off", [1e-6, 1e-2, 0.5, 3.0])
@pytest.mark.parametrize("scale", [0.1, 1.0, 30.0])
def test_logits_that_are_off_move_the_result_within_the_bound(off, scale):
    generator = np.random.default_rng(0)
    rows = generator.normal(0, scale, (200, 17))
    most = off * generator.random(rows.shape)
    value = log_softmax(rows)
    bound = oracle.moved(value, most)
    used = np.zeros(rows.shape)
    # Each by as much as it may be, one class against all others among them.
    signs = [generator.choice((-1.0, 1.0), rows.shape) for _ in range(20)]
    signs += [sign * np.where(np.arange(17) == place, 1.0, -1.0) for place in range(17) for sign in (1, -1)]
    for sign in signs:
        moved = np.abs(log_softmax(rows + sign * most) - value)
        assert (moved <= bound * (1 + 1e-6) + 1e-13).all()
        used = np.maximum(used, moved / bound)
    # It is sharp: of small errors nearly all of it is used.
    assert off > 0.1 or used[bound > 1e-9].max() > 0.9


def test_what_is_ruled_out_is_not_off():
    value, off = np.array([[-0.5, -1.0, -np.inf]]), np.array([[0.1, 0.2, 0.0]])
    assert np.isfinite(oracle.moved(value, off)).all()
    assert oracle.moved(value, off)[0, 2] == 0


@pytest.mark.parametrize(("first", "is_judged"), [(0, False), (-100, True)])
def test_what_may_be_infinite_of_any_sign_takes_the_mean_with_it(first, is_judged):
    """A logit of the first row overflows, or not: its loss may be anything, beside one that is infinite."""
    left, right = torch.tensor([[65504.0], [-1.0]]).half(), torch.tensor([[torch.inf], [-1.2]]).half()
    found = spec.SPEC.expected(Call((left, right, torch.tensor([first, 0])), {}, None))
    assert bool(found.judged.all()) == is_judged
    assert torch.isinf(found.value).all()


def test_a_share_beyond_the_range_is_not_judged():
    """Its product with a probability of 0 is NaN in float32."""
    left, right = torch.tensor([[torch.finfo(torch.float32).min]]), torch.tensor([[0.5], [-0.9]])
    for target in ([[torch.inf, 0.0]], [[0.0, 1.0]]):
        assert not spec.SPEC.expected(Call((left, right, torch.tensor(target)), {}, None)).judged.any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_a_probability_and_its_share_may_leave_the_range_together(dtype):
    """A weight, or the gradient of the result, brings their product back only if it comes before it."""
    logits, most = torch.tensor([[-1.0, -2.0, 0.5]], dtype=dtype), torch.finfo(dtype).max
    weight, small = torch.full((3,), 2.0**-6, dtype=dtype), torch.full((1,), 2.0**-9, dtype=dtype)
    for probability, is_known in ((most, False), (most / 64, True)):
        target = torch.tensor([[0.5, probability, 0.25]], dtype=dtype)
        call = Call((logits, target), {"weight": weight, "reduction": "none"}, None)
        assert bool(cross_entropy.SPEC.expected(call).judged.all()) == is_known
        of_weight = cross_entropy.SPEC.gradients(call, small)["weight"]
        assert np.isfinite(of_weight.error).tolist() == [True, is_known, True]
