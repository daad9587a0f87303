"""Planted defects of backward passes: how many there are of each family, and that some of each are caught."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from conformance.profiles import PROFILES
from conformance.selftest import defect_registry, report, search
from conformance.selftest import families as of
from conformance.selftest.controls import controls
from conformance.selftest.differentiable import with_gradients

BANK = defect_registry.bank()
PAGE = Path(__file__).parents[2] / "docs" / "selftest.md"
QUICK = {
    "fused_gated_mlp": ("half_products", "frozen_gate", "tokens_of_full_blocks", "derivative_of_silu"),
    "fused_rmsnorm_rope": ("no_projection", "tables_swapped", "tables_without_gradient", "weight_of_first_sequence"),
    "layer_norm": ("usual_eps", "no_mean", "bias_without_gradient"),
    "log_softmax": ("passed_on", "sum_over_last", "shares_in_bfloat16"),
    "logsumexp": ("unshared", "shares_of_all", "past_the_last_tile", "aligned_with_the_last_dims"),
    "rotary_position_embedding": ("sine_without_minus", "rows_past_the_sequence", "tables_of_first_sequence"),
    "scaled_dot_product_attention": ("values_for_constants", "first_head_of_shared_values"),
    "sub": ("dims_of_1_from_the_first", "without_keepdim"),
}
"""Defects that a few cases of an operator show."""


def test_every_family_has_its_defects():
    """Mistakes are counted once for each family, however many of its operators have them."""
    found: dict[str, set[str]] = {}
    planted = [defect for defect in BANK.values() if of.of_backward(defect.op, defect.check, defect.kind)]
    for defect in planted:
        for family in of.of_backward(defect.op, defect.check, defect.kind):
            found.setdefault(family, set()).add(defect.name.removeprefix(f"{defect.op}_"))
    text = PAGE.read_text()
    (least, each) = re.findall(r"more than (\d+) defects of backward passes, and (\d+) or more kinds", text)[0]
    assert len(planted) > int(least) >= 0.8 * len(planted)
    assert {name: len(kinds) for name, kinds in found.items() if len(kinds) < int(each)} == {}
    assert set(found) == {*of.BACKWARD, of.BROADCAST}
    assert int(each) >= 10


def test_every_operator_that_has_gradients_is_of_a_family():
    assert {op for ops in of.BACKWARD.values() for op in ops} == set(with_gradients())


@pytest.mark.slow
@pytest.mark.parametrize("op", QUICK)
def test_some_are_caught_and_what_is_right_is_not(op):
    defects = [BANK[f"{op}_gradient_{name}"] for name in QUICK[op]]
    right = [one for one in controls(op) if one.name == "float64 autograd"]
    results, tallies = search.study(op, defects, right, PROFILES["ci"], controlled=30)
    assert [result.name for result in results if not result.killed] == []
    assert [(tally.name, tally.cases, tally.message) for tally in tallies] == [("float64 autograd", 30, "")]


def test_the_report_counts_them_by_family():
    names = ("sub_gradient_without_keepdim", "fused_rmsnorm_rope_gradient_no_projection", "sub_alpha_ignored")
    results = [search.result(BANK[name], 3, set()) for name in names]
    lines = report.tables(results, [])
    start = next(number for number, line in enumerate(lines) if line.startswith("backward pass"))
    counted = [line.split()[:3] for line in lines[start + 1 : lines.index("", start)]]
    assert counted == [["broadcast", "1", "0"], ["fused", "1", "0"], ["rotations", "1", "0"], ["all", "2", "0"]]
