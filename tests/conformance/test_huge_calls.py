"""Calls past all sizes that are drawn: few, legal, and judged by few checks."""

from __future__ import annotations

import math
from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from op_tools import drawn

from conformance import case_files, cases, checks, huge_calls, huge_kinds, profiles, runner, session
from conformance import spec as specs
from conformance.cases import Case
from conformance.checks.gradient_kinds import KINDS_OF_STEP, wish
from conformance.checks.gradient_sizes import MOST, most_elements
from conformance.implementations import Implementation
from conformance.selftest import defect_registry, search
from conformance.session import Run
from conformance.spec import Call
from strategies import layouts
from strategies.specs import TensorSpec

OPS = ("exp", "eq", "softmax", "layer_norm", "sum", "mm", "cross_entropy")


@cache
def starts(op: str, dtype: str) -> list[Case]:
    spec = specs.registry()[op]
    legal = [case for start in range(10) for case in drawn(spec.cases((dtype,)), profiles.ROUND, start)]
    return legal + (drawn(spec.all_scenes()((dtype,)), profiles.ROUND) if spec.scenes else [])


@cache
def huge(op: str, dtype: str = "float32") -> list[Case]:
    return huge_calls.calls(specs.registry()[op], starts(op, dtype), [dtype], dtype)


def reaches(case: Case) -> set[str]:
    operands = cases.operands(case)
    sizes = {size for spec in operands for size in spec.shape}
    found = {"rows"} if huge_kinds.ROWS in sizes else set()
    found |= {"elements"} if sizes & {*huge_kinds.ELEMENTS} else set()
    found |= {"terms"} if sizes & {huge_kinds.TERMS, huge_kinds.FLOAT64} else set()
    found |= {"outer"} if sizes >= {*huge_kinds.OUTER} else set()
    found |= {"dims"} if any(len(spec.shape) > 16 for spec in operands) else set()
    found |= {"step"} if any(sizes >= {*step} for step in huge_kinds.STEPS) else set()
    found |= {"both"} if any(spec.shape[-2:] in huge_kinds.BOTH for spec in operands) else set()
    found |= {"volume"} if any(spec.shape[-2:] == huge_kinds.VOLUME[-2:] for spec in operands) else set()
    products = huge_kinds.PRODUCTS + huge_kinds.WEIGHTS
    found |= {"product"} if any(sizes >= {*numbers} for numbers in products) else set()
    found |= {"prompt"} if sizes >= {*huge_kinds.PROMPT} else set()
    found |= {"rare"} if case.kwargs.get("p") == huge_kinds.RARE else set()
    found |= {"in place"} if isinstance(case.kwargs.get("out"), cases.Same) else set()
    for spec in operands:
        if spec.layout.offset == huge_kinds.DISTANCE:
            found.add("offset")
        if any(
            size > 1 and stride >= huge_kinds.DISTANCE
            for size, stride in zip(spec.shape, layouts.strides(spec.layout, spec.shape), strict=True)
        ):
            found.add("stride")
    return found


@pytest.mark.parametrize(
    ("op", "kinds"),
    [
        ("exp", {"rows", "elements", "terms", "stride", "offset", "step", "dims", "in place", "both", "volume"}),
        ("sum", {"rows", "elements", "terms", "stride", "offset", "step", "dims", "both", "volume"}),
        ("softmax", {"rows", "elements", "terms", "stride", "offset", "step", "dims", "both", "volume"}),
        ("mm", {"rows", "elements", "terms", "stride", "offset", "outer", "step", "both", "product"}),
        ("eq", {"rows", "elements", "terms", "stride", "offset", "dims", "both", "volume"}),
        ("scaled_dot_product_attention", {"elements", "volume", "prompt"}),
        ("rotary_position_embedding", {"volume"}),
        ("dropout", {"rare"}),
    ],
)
def test_a_dtype_that_is_alone_gets_every_kind(op, kinds):
    assert set[str]().union(*map(reaches, huge(op))) >= kinds


def test_all_sizes_are_reached():
    """Of shapes that differ in what is long, each is one that a mistake may need."""

    def shapes(op: str) -> set[tuple[int, ...]]:
        return {spec.shape[-2:] for case in huge(op) for spec in cases.operands(case)}

    assert shapes("softmax") >= {*huge_kinds.BOTH, *huge_kinds.STEPS, huge_kinds.VOLUME[-2:]}
    assert shapes("add") >= {*huge_kinds.BOTH, *huge_kinds.STEPS, huge_kinds.VOLUME[-2:]}
    for op in ("mm", "addmm", "bmm", "matmul"):
        for rows, terms, columns in huge_kinds.PRODUCTS + huge_kinds.WEIGHTS:
            assert shapes(op) >= {(rows, terms), (terms, columns)}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_weights_are_of_every_dtype(dtype):
    spec, dtypes = specs.registry()["mm"], ["bfloat16", "float16", "float32"]
    made = huge_calls.calls(spec, starts("mm", dtype), dtypes, dtype)
    shapes = {spec.shape for case in made for spec in cases.operands(case)}
    assert shapes >= {(terms, columns) for _, terms, columns in huge_kinds.WEIGHTS}


def test_nan_is_where_it_hides_nothing():
    def ends(op: str) -> set[bool]:
        found = (max(cases.operands(case), key=lambda spec: math.prod(spec.shape)) for case in huge(op))
        return {bool(spec.specials) for spec in found if {*spec.shape} & {*huge_kinds.ELEMENTS}}

    assert True in ends("exp")
    assert ends("softmax") == {False}


def test_two_operands_of_one_shape_have_many_elements():
    shapes = [[spec.shape for spec in cases.operands(case)] for case in huge("add")]
    assert any(len(one) == 2 and one[0] == one[1] and math.prod(one[0]) > 1 << 25 for one in shapes)


@pytest.mark.parametrize(
    ("shape", "differentiated"), [((1, 1, 1033, 67), True), ((1, 1, 32_768, 17), False), ((1, 300, 1033, 17), False)]
)
def test_attention_of_many_pairs_is_not_differentiated(shape, differentiated):
    """The oracle evaluates each of them."""
    case = Case(op="scaled_dot_product_attention", args=(TensorSpec(shape, "float32"),) * 3)
    operands = [torch.empty(shape, device="meta") for _ in range(3)]
    parts = specs.registry()[case.op].parts(Call(tuple(operands), {}, operands[0]))
    trial: Any = SimpleNamespace(case=case, thorough=True, parts=parts)
    trial.implementation, trial.reference = SimpleNamespace(kernels=False), SimpleNamespace(value=operands[0])
    assert (most_elements(trial) > MOST) is differentiated


def test_dtypes_share_the_kinds():
    spec, dtypes = specs.registry()["exp"], ["bfloat16", "float16", "float32"]
    made = [huge_calls.calls(spec, starts("exp", dtype), dtypes, dtype) for dtype in dtypes]
    assert set[str]().union(*(reaches(case) for one in made for case in one)) == set[str]().union(
        *map(reaches, huge("exp"))
    )
    assert max(len([case for case in one if reaches(case) - {"step"}]) for one in made) < len(KINDS_OF_STEP)


@pytest.mark.parametrize("op", OPS)
def test_they_are_legal_and_within_their_bytes(op):
    for case in huge(op):
        for spec in cases.operands(case):
            form = torch.empty((), dtype=getattr(torch, spec.dtype)).element_size()
            times = 2 if reaches(case) & {"product", "elements"} else 1
            assert math.prod(spec.shape) * form <= times * (huge_calls.BYTES + (1 << 21))
            assert layouts.storage_size(spec.layout, spec.shape) * form <= 4 * huge_calls.BYTES
        assert not isinstance(case.kwargs.get("out"), TensorSpec)


def test_a_step_is_asked_for_every_kind_of_gradient():
    kinds = []
    for case in huge("exp"):
        if "step" in reaches(case):
            shape = cases.operands(case)[0].shape
            way = wish(case, torch.empty(shape, device="meta"))
            kinds.append(way.kind)
            assert way.wanted == (0,)
    assert sorted(kinds) == sorted(KINDS_OF_STEP)


def test_two_operands_of_many_dims_are_broadcast_from_either_side():
    case = next(case for case in huge("eq") if "dims" in reaches(case))
    first, second = (spec.shape for spec in cases.operands(case))
    pairs = list(zip(first, second, strict=True))
    assert pairs.count((2, 1)) >= 3
    assert pairs.count((1, 2)) >= 3


def test_a_refused_call_is_judged_by_its_refusal():
    verdict = runner.judge(Case(op="exp", args=("x",)), search.right("exp"), "cpu")
    assert verdict.refused
    assert verdict.status == "passed"


def test_float64_has_no_more_than_its_oracle_bears():
    assert max(math.prod(spec.shape) for case in huge("softmax", "float64") for spec in cases.operands(case)) < 1 << 16
    assert any("terms" in reaches(case) for case in huge("softmax", "float64"))


def test_what_is_huge_is_judged_by_few_checks():
    case = Case(op="exp", args=(TensorSpec((huge_kinds.ROWS,), "float16"),))
    verdict = runner.judge(case, search.right("exp"), "cpu")
    assert verdict.status == "passed"
    assert {finding.check for finding in verdict.findings} <= {*checks.OF_HUGE}
    assert runner.judge(case, search.right("exp"), "cpu", ["inputs_unchanged"]).findings


@pytest.mark.parametrize(("profile", "count"), [("smoke", 0), ("ci", 1)])
def test_a_search_ends_with_them_where_it_is_not_quick(profile, count, monkeypatch, tmp_path):
    """They are no starts of other searches, and what fails is reported."""
    asked = []

    class Provider:
        @staticmethod
        def relu(input, *, inplace=False):
            result = torch.nn.functional.relu(input, inplace)
            return result + 1 if asked and input.shape == (77, 3) else result

    def calls(spec, passed, dtypes, dtype):
        asked.append(dtype)
        return [Case(op="relu", args=(TensorSpec((77, 3), "float32"),))]

    monkeypatch.setattr(session.huge_calls, "calls", calls)
    monkeypatch.setattr(session.code_search, "search", lambda passed, *how: [])
    implementation = Implementation("own", Provider, {}, {})
    settings = profiles.PROFILES[profile]
    run = Run(implementation, torch.device("cpu"), ("float32",), ("values",), tmp_path, settings, 0, large=1 << 24)
    report = run.search("relu", "float32")
    assert len(asked) == count
    assert len(report.failed) == count


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("exp_huge_blocks_512", "float32"),
        ("mean_tail_of_vectors", "float32"),
        ("amax_gradient_ties_in_16_bits", "float32"),
        ("softmax_huge_row_stride", "float32"),
        ("neg_huge_more_than_16_dims", "float32"),
        ("mm_timed_products_of_few_bits", "float16"),
        ("sum_float32_of_long_float64", "float64"),
        ("silu_gradient_elements_past_2_21", "float32"),
        ("softmax_sums_of_2048_rows", "float32"),
        ("rms_norm_wide_rows_of_one_grid", "float32"),
        ("mm_first_terms_of_wide_weights", "float32"),
        ("addmm_last_wave_is_added_twice", "float32"),
        ("scaled_dot_product_attention_tiles_of_one_grid", "float32"),
        ("dropout_probabilities_of_16_bits", "float32"),
        ("sub_gradient_sums_of_rows_in_bfloat16", "float32"),
        ("scaled_dot_product_attention_gradient_last_1024_keys", "float32"),
        ("relu_huge_nan_is_smaller", "float32"),
        ("add_huge_blocks_of_two_tensors", "float32"),
        ("mm_huge_vocabulary", "bfloat16"),
        ("mm_huge_weights_by_version", "float32"),
        ("abs_huge_more_than_24_dims", "float32"),
        ("mul_gradient_rows_of_16_bits", "float32"),
    ],
)
def test_what_shows_there_alone_is_caught(name, dtype):
    defect = defect_registry.bank()[name]
    named = (*checks.OF_HUGE, "distribution")
    found = (runner.judge(case, defect.implementation, search.CPU, named) for case in huge(defect.op, dtype))
    assert any(verdict.failure and verdict.failure.check == defect.check for verdict in found)


def test_a_tensor_without_dims_has_no_row_that_is_reduced():
    """torch takes dim 0 and -1 of one."""
    scalar = Case(op="cumsum", args=(TensorSpec((), "float32"),), kwargs={"dim": 0})
    assert not huge_kinds.is_reduced(scalar, huge_kinds.ROWS)
    huge_calls.calls(specs.registry()["cumsum"], [scalar], ["float32"], "float32")


def test_a_call_of_more_bytes_than_can_be_counted_is_none():
    """Several dims get a large size where they share one, as of weights in blocks."""
    call = Case(op="quantize_fp8", args=(TensorSpec((14341, 14341, 1, 4099, 4099, 14341), "bfloat16"),))
    assert case_files.on_meta(call) is None
    case = Case(op="quantize_fp8", args=(TensorSpec((3, 3, 1, 5, 5, 3), "bfloat16"),), kwargs={"granularity": "block"})
    huge_calls.calls(specs.registry()["quantize_fp8"], [case], ["bfloat16"], "bfloat16")
