"""Calls that an operator is mostly made for are drawn, and those are caught that get them wrong."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch
from op_tools import drawn

from conformance import cases, profiles
from conformance import spec as specs
from conformance.cases import Case, Variant
from conformance.checks import gradient_kinds
from conformance.ops import _cross_entropy
from conformance.profiles import PROFILES
from conformance.selftest import defect_registry, search
from conformance.spec import Call
from strategies.specs import Layout, Special, TensorSpec

BANK = defect_registry.bank()


def legal(op: str, dtype: str, rounds: int = 10) -> list[Case]:
    calls = specs.registry()[op].cases((dtype,))
    return [case for start in range(rounds) for case in drawn(calls, profiles.ROUND, start)]


def test_losses_of_a_vocabulary_are_drawn():
    calls = specs.registry()["cross_entropy"].large(1 << 20)(("bfloat16",))
    found = [case.args[0].shape for start in range(3) for case in drawn(calls, profiles.ROUND, start)]
    assert sum(len(shape) == 2 and shape[1] > 1 << 15 for shape in found) >= 8
    assert any(shape[0] > 1 << 12 for shape in found)
    assert max(map(math.prod, found)) <= 1 << 20


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_most_losses_that_are_one_number_are_finite():
    finite: Counter[tuple[bool, bool]] = Counter()
    banned = 0
    for case in legal("cross_entropy", "float32"):
        args, kwargs, _ = cases.materialize(case)
        loss = specs.registry()["cross_entropy"].reference(*args, **kwargs)
        whole = _cross_entropy.reduction(_cross_entropy.named(args, kwargs)) != "none"
        if whole and loss.ndim == 0 and args[0].numel():
            finite[args[1].is_floating_point(), bool(loss.isfinite())] += 1
        banned += bool((args[0] == -torch.inf).any() and loss.isfinite().all())
    for probabilities in (False, True):
        assert finite[probabilities, True] > 2 * finite[probabilities, False]
    assert banned >= 2


def test_scales_of_both_matrices_are_alike():
    found = [case for case in legal("fp8_gemm", "float8_e4m3fn") if {"a_scale", "b_scale"} <= case.kwargs.keys()]
    alike = [case for case in found if case.kwargs["a_scale"].shape == case.kwargs["b_scale"].shape == ()]
    assert len(alike) >= 8
    assert sum(not case.kwargs["a_scale"].specials for case in alike) > len(alike) // 2


def test_column_of_a_square():
    inputs = [(case.args[0].shape, case.args[1].shape[0], case.args[2].shape[1]) for case in legal("addmm", "float32")]
    assert sum(shape == (m, 1) and m == n > 1 for shape, m, n in inputs) >= 2


def test_lower_right_triangles_of_few_keys():
    found = 0
    for dtype in ("float32", "float16", "bfloat16"):
        for case in legal("scaled_dot_product_attention", dtype, 6):
            variant, (query, key, _) = case.kwargs.get("causal_variant"), case.args
            lower = (
                case.kwargs.get("is_causal") and variant == Variant("LOWER_RIGHT") and "present_key" not in case.kwargs
            )
            found += bool(lower and query.shape[-2] > key.shape[-2] > 1)
    assert found >= 3, found


def test_gradients_that_are_asked_for_twice_are_laid_out_in_any_way():
    laid: Counter[tuple[str, bool]] = Counter()
    for seed in range(400):
        case = Case(op="neg", args=(TensorSpec((3, 5), "float32", seed=seed),))
        way = gradient_kinds.wish(case, torch.empty(3, 5))
        laid[way.kind, way.dout.layout == Layout()] += 1
    for kind in ("twice", "overwritten"):
        assert laid[kind, True]
        assert laid[kind, False] > laid[kind, True]


def test_zeros_stay_where_gradients_are_asked_for_of_finite_numbers():
    planted = Special(1, "-0"), Special(3, "nan")
    for seed in range(20):
        case = Case(op="neg", args=(TensorSpec((3, 5), "float32", specials=planted, seed=seed),))
        (kept,) = {one.specials for one in cases.operands(gradient_kinds.wish(case, torch.empty(3, 5)).case)}
        assert kept in (planted, planted[:1])


@pytest.mark.parametrize(
    "name",
    [
        "cross_entropy_no_smoothing_times_a_sum",
        "cross_entropy_probabilities_of_pixels_by_batch",
        "cross_entropy_sum_of_means_of_pixels",
        "fp8_gemm_scales_of_rows_swapped",
        "addmm_row_of_a_square_is_a_column",
        "gelu_gradient_dense_dout_in_order_of_memory",
    ],
)
def test_some_that_get_usual_calls_wrong_are_caught(name):
    defect = BANK[name]
    (result,), _ = search.study(defect.op, [defect], (), PROFILES["ci"])
    assert result.killed


def test_an_expected_loss_of_a_vocabulary_is_judged():
    """In one row, whose loss is a number."""
    logits = torch.randn(1, 50257, generator=torch.Generator().manual_seed(0))
    expected = specs.registry()["cross_entropy"].expected(Call((logits, torch.tensor([50256])), {}, None))
    assert expected.judged is None or bool(expected.judged.all())
    assert float(expected.bound) < 1e-4
