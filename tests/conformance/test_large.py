"""Large calls: past the limits of kernels and grids, legal, and judged in a moment."""

from __future__ import annotations

import math
from collections import Counter
from functools import cache
from types import SimpleNamespace

import hypothesis
import pytest
import torch
from op_tools import drawn

from conformance import cases, features, profiles, result_samples, runner
from conformance import spec as specs
from conformance.cases import Case
from conformance.implementations import Implementation, load
from conformance.ops import _elementwise as elementwise
from conformance.selftest import correct, search
from conformance.spec import Call
from strategies import layouts
from strategies.specs import TensorSpec
from strategies.values import LISTED

OPS = sorted(name for name, spec in specs.registry().items() if spec.large is not None)


@cache
def large(op: str, elements: int, dtype: str = "", rounds: int = 10) -> list[Case]:
    spec = specs.registry()[op]
    calls = spec.large(elements)((dtype or spec.dtypes[0],))
    return [case for start in range(rounds) for case in drawn(calls, profiles.ROUND, start)]


def elements(case: Case) -> int:
    return max(math.prod(spec.shape) for spec in cases.operands(case))


@pytest.mark.parametrize("op", ["exp", "mul", "rms_norm"])
def test_large_calls_reach_every_class_up_to_their_limit(op):
    found = Counter(features.reach(elements(case)) for case in large(op, 1 << 24))
    assert found.keys() >= {"to 2^16", "to 2^20", "to 2^24"}
    assert "to 2^31" not in found
    assert max(map(elements, large(op, 1 << 18, rounds=2))) <= 1 << 18


def _rows_apart(case: Case) -> int:
    input = case.args[0]
    wide = len(input.shape) > 1 and input.shape[0] > 1
    return layouts.strides(input.layout, input.shape)[0] if wide else 0


@pytest.mark.parametrize("op", ["sum", "argmax", "logsumexp"])
def test_large_reductions_go_past_what_float32_counts_and_16_bits_hold(op):
    found = large(op, 1 << 24, "float32", rounds=6)
    counted = [case for case in found if elements(case) > 1 << 24]
    assert counted
    assert all(case.args[0].specials[0].index == elements(case) - 1 for case in counted)
    assert any(_rows_apart(case) >= 1 << 22 for case in found)
    # Wider numbers take more memory, and few of them count.
    assert max(map(elements, large(op, 1 << 24, "float64", rounds=3))) <= 1 << 24
    assert max(map(elements, large(op, 1 << 20, "float32", rounds=3))) <= 1 << 20


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int32"])
def test_a_sum_of_more_integers_than_float32_counts_has_more_bits_than_32(dtype):
    found = [case for case in large("sum", 1 << 24, dtype, rounds=6) if elements(case) > 1 << 24]
    ordinary = [int(case.args[0].values.removeprefix(LISTED)) for case in found]
    assert ordinary
    assert all(abs(number) << 24 >= 1 << 31 for number in ordinary)


@pytest.mark.parametrize("op", ["layer_norm", "rms_norm", "softmax", "log_softmax"])
def test_large_calls_of_norms_have_outliers(op):
    found = large(op, 1 << 24, "float32", rounds=6)
    outliers = [special for case in found for special in case.args[0].specials if special.value == "-30000"]
    assert outliers
    assert any(_rows_apart(case) >= 1 << 22 for case in found)


@pytest.mark.parametrize("op", OPS)
def test_large_calls_of_cheap_kernels_are_drawn_for_every_dtype(op):
    spec = specs.registry()[op]
    for dtype in spec.dtypes:
        # An operator need not have any of a dtype.
        assert spec.large(1 << 24)((dtype,)).is_empty or large(op, 1 << 24, dtype, rounds=1)


@pytest.mark.parametrize("dtype", ["int64", "int8", "bool"])
def test_large_rows_of_integers_have_outliers(dtype):
    found = large("softmax", 1 << 24, dtype, rounds=6)
    values = {special.value for case in found for special in case.args[0].specials}
    assert values & {"max", "min"}
    assert not values & {"1000", "-30000", "300"}


def test_vocabularies_are_classes_of_large_linear_layers():
    classes = {case.args[1].shape[0] for case in large("linear_cross_entropy", 1 << 24, "float32", rounds=4)}
    assert max(classes) > 1 << 16


@pytest.mark.parametrize("op", OPS)
def test_large_calls_are_legal_and_what_is_right_passes(op):
    # Its deviations are excused.
    torchs = load("torch")
    right = torchs if torchs.function(op) else search.right(op)
    for case in large(op, 1 << 17, rounds=1)[:6]:
        verdict = runner.judge(case, right, "cpu", thorough=False)
        assert verdict.status in ("passed", "deviation"), verdict.failure
        assert not verdict.refused, case


@pytest.mark.parametrize("dtype", ["uint8", "int64"])
def test_large_quotients_of_integers_are_defined(dtype):
    # Eight zeros in 2,048 numbers of 8 bits, without more ado.
    for case in large("div", 1 << 17, dtype, rounds=4):
        args, _ = cases.bind(case, cases.materialize(case)[2])
        if case.kwargs.get("rounding_mode") and not torch.result_type(*args).is_floating_point:
            assert torch.as_tensor(args[1]).ne(0).all(), case


@pytest.mark.parametrize(
    ("op", "args"),
    [
        ("add", (TensorSpec((3, 400_000), "float32"), TensorSpec((400_000,), "float32"))),
        ("exp", (TensorSpec((1 << 20,), "float64"),)),
        ("bitwise_not", (TensorSpec((1 << 20,), "int64", "uniform"),)),
        ("softmax", (TensorSpec((70_001, 9), "bfloat16"), 1)),
        ("rms_norm", (TensorSpec((70_001, 9), "float16"), (9,))),
    ],
)
def test_one_wrong_element_of_a_large_result_is_found(op, args):
    """Wherever it is: all of the result is compared with torch's, and the oracle is asked where they differ."""
    case = Case(op=op, args=args)
    right = correct.right(op)
    place = cases.seed(case)

    def wrong(*args, **kwargs):
        result = right(*args, **kwargs)
        flat = result.view(-1)
        flat[place % len(flat)] = flat[place % len(flat)] * 2 + 1
        return result

    assert runner.judge(case, provider(op, right)).status == "passed"
    failure = runner.judge(case, provider(op, wrong), checks=("values",)).failure
    assert failure is not None
    shape = torch.Size(cases.operands(case)[0].shape)
    assert failure.index == tuple(int(i) for i in torch.unravel_index(torch.tensor(place % shape.numel()), shape))


@pytest.mark.parametrize(("off", "status"), [(0, "passed"), (3000, "failed")])
def test_a_sum_of_all_of_a_large_operand_is_judged_whole(off, status):
    """There is no part of it that a smaller call gives."""
    case = Case(op="sum", args=(TensorSpec((8219, 1031), "float32"),))

    def near(x, **kwargs):
        right = x.double().sum().float()
        return torch.nextafter(right, torch.tensor(torch.inf)) + off

    assert runner.judge(case, provider("sum", near), checks=("values",)).status == status


def provider(op, function):
    return Implementation("wrong", SimpleNamespace(**{op: function}), {op: ()})


def test_a_sample_has_the_ends_and_the_edges_of_powers_of_two():
    x = torch.arange(3 << 20).view(3, 1 << 20)
    call = Call((x, x[0]), {}, x + x[0])
    sample = result_samples.chosen(elementwise.parts(call), call, 1)
    rows, columns = sample.places
    assert rows.tolist() == [0, 1, 2]
    assert {0, (1 << 20) - 1, *(1 << k for k in range(20)), *((1 << k) - 1 for k in range(20))} <= {*columns.tolist()}
    assert result_samples.ELEMENT * sample.of(x).numel() <= result_samples.CHOSEN
    assert torch.equal(sample.call.args[0] + sample.call.args[1], sample.of(x + x[0]))
    assert sample.index((2, 3)) == (2, int(columns[3]))
    small = Call((x[:, :1000],), {}, x[:, :1000])
    assert result_samples.chosen(elementwise.parts(small), small, 1) is None


def test_one_case_in_five_is_large_where_large_ones_are_cheap():
    ci = hypothesis.settings(profiles.PROFILES["ci"])
    for kernels, one in (("", 5), ("vectorised", 6)):
        parts = list(profiles.rounds("add", "float32", False, ("float32",), ci, 0, runner.LARGE[kernels]))
        shares = Counter()
        for part in parts:
            # Rounds after the first draw the simplest case once more.
            shares[part.kind] += part.examples - (part.start > 0)
        assert shares["large"] * one == shares["large"] + shares["legal"]
    kinds = {part.kind for part in profiles.rounds("add", "float32", False, ("float32",), ci, 0)}
    assert kinds == {"legal", "equal", "scenes"}
