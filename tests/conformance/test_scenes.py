"""Scenes of models: drawn beside all other calls, legal, and of the shapes and layouts that they are about."""

from __future__ import annotations

import itertools
import math
from functools import cache

import hypothesis
import pytest
from op_tools import drawn

from conformance import cases, drawing, profiles, runner
from conformance import spec as specs
from conformance.cases import Case
from conformance.implementations import load
from conformance.ops import _scenes, pow
from conformance.selftest import search
from strategies import layouts
from strategies.specs import TensorSpec

OPS = sorted(name for name, spec in specs.registry().items() if spec.scenes is not None)


@cache
def scenes(op: str, dtype: str = "", rounds: int = 4) -> list[Case]:
    spec = specs.registry()[op]
    calls = spec.all_scenes()((dtype or spec.dtypes[0],))
    return [case for start in range(rounds) for case in drawn(calls, profiles.ROUND, start)]


@pytest.mark.parametrize("op", OPS)
def test_scenes_are_legal_and_what_is_right_passes(op):
    # Its deviations are excused.
    torchs = load("torch")
    right = torchs if torchs.function(op) else search.right(op)
    for dtype in specs.registry()[op].dtypes[:2]:
        for case in scenes(op, dtype, rounds=1):
            verdict = runner.judge(case, right, "cpu", thorough=False)
            assert verdict.status in ("passed", "deviation"), verdict.failure
            assert not verdict.refused, case


@pytest.mark.parametrize("profile", ["smoke", "ci"])
@pytest.mark.parametrize("op", [op for op in OPS if specs.registry()[op].apart])
def test_a_run_has_scenes_of_each_sort_apart(op, profile):
    """Of a sort that is drawn among others a run may have none; of float32 and float16 each of them has its rounds, of
    more than the simplest call."""
    spec = specs.registry()[op]
    ci = hypothesis.settings(profiles.PROFILES[profile])
    for dtype in [name for name in ("float32", "float16") if name in spec.dtypes]:
        found = [part for part in profiles.rounds(op, dtype, False, (dtype,), ci, 0) if part.kind == "scenes"]
        own = [part for part in found if part.sort]
        assert len({part.sort for part in own}) == sum(not one((dtype,)).is_empty for one in spec.apart)
        assert min((part.examples for part in own), default=2) >= 2


def test_an_op_may_have_scenes_apart_alone(monkeypatch):
    spec = specs.registry()["mul"]
    alone = spec.__class__(**{**vars(spec), "scenes": None})
    monkeypatch.setitem(specs.registry(), "mul", alone)
    found = profiles.rounds("mul", "float32", False, ("float32",), hypothesis.settings(profiles.PROFILES["ci"]), 0)
    assert {part.sort for part in found if part.kind == "scenes"} == {"0", "1"}
    assert len(drawn(alone.all_scenes()(("float32",)), profiles.ROUND, 0)) == profiles.ROUND


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_powers_at_the_ends_have_bases_that_the_dtype_holds(dtype):
    """And exponents of all kinds are still drawn elsewhere."""
    found = [case for start in range(20) for case in drawn(specs.registry()["pow"].all_scenes()((dtype,)), 10, start)]
    assert any(case.args[1] in pow.WHOLE_EXPONENTS for case in found if isinstance(case.args[1], int | float))
    numbers = {
        case.args[1] for start in range(30) for case in drawn(pow.cases((dtype,)), 10, start) if len(case.args) > 1
    }
    assert {0.5, -0.5, 2.75} <= {number for number in numbers if isinstance(number, int | float)}


def test_scenes_take_no_share_of_other_calls(monkeypatch):
    """Scenes are the last rounds, and all else is drawn as without them."""
    ci = hypothesis.settings(profiles.PROFILES["ci"], max_examples=30)

    def parts() -> list[profiles.Round]:
        return list(profiles.rounds("add", "float32", False, ("float32", "int8"), ci, 0, 1 << 16))

    def ids(found: list[profiles.Round]) -> list[str]:
        return [cases.case_id(case) for part in found for case in drawing.drawn(part.draws, part.seed, part.examples)]

    found = parts()
    # Activations beside others; pairs of special numbers; numbers that float32 does not hold.
    last = [(part.kind, part.examples) for part in found[-3:]]
    assert last == [("scenes", 3), ("scenes", 3), ("scenes", 3)]
    assert not any(part.kind == "scenes" for part in found[:-3])
    spec = specs.registry()["add"]
    monkeypatch.setitem(specs.registry(), "add", spec.__class__(**{**vars(spec), "scenes": None, "apart": ()}))
    assert ids(parts()) == ids(found[:-3])


def test_operands_of_elementwise_scenes():
    found = [[spec for spec in cases.operands(case) if spec.shape] for case in scenes("add", "float32", 20)]
    pairs = [(first, second) for first, second, *_ in itertools.filterfalse(lambda one: len(one) < 2, found)]
    assert any(_is_cut(spec) for specs_of in found for spec in specs_of)
    assert any(spec.layout.order == (0, 2, 1) and other.shape == spec.shape[-1:] for spec, other in pairs)
    assert any(spec.layout.expanded and other.shape == spec.shape and other.layout.order for spec, other in pairs)
    assert any(other.shape == (1, spec.shape[1], 1) for spec, other in pairs if len(spec.shape) == 3)
    outer = [(spec, other) for spec, other in pairs if spec.shape[-1:] == (1,) and other.shape[:1] == (1,)]
    assert any(math.prod(spec.shape) * math.prod(other.shape) > 1 << 16 for spec, other in outer)


def _is_cut(spec: TensorSpec) -> bool:
    """Tell whether the dim before the last is shorter than in memory."""
    if len(spec.shape) < 3 or spec.layout.order or spec.layout.expanded:
        return False
    *_, outer, row, _ = layouts.strides(spec.layout, spec.shape)
    return row == spec.shape[-1] and outer > row * spec.shape[-2]


def test_rows_of_scenes_are_many_and_short_or_statistics():
    found = scenes("sum", "float32", 8)
    shapes = [(case.args[0].shape, case.args[1]) for case in found]
    assert any(math.prod(shape[:-1]) > 512 and shape[-1] <= 64 and dim == -1 for shape, dim in shapes)
    assert any(dim == (0, 2, 3) and math.prod(shape) > 512 for shape, dim in shapes)
    normed = [case.args[1] for case in scenes("layer_norm", "float32", 8)]
    assert any(len(shape) == 2 and math.prod(shape) > 4096 for shape in normed)


def test_masks_of_scenes_are_of_as_many_heads_as_there_are_sequences():
    found = scenes("scaled_dot_product_attention", "float32")
    alike = [case for case in found if case.args[0].shape[0] == case.args[0].shape[1] and "attn_mask" in case.kwargs]
    assert sum(len(case.kwargs["attn_mask"].shape) == 3 for case in alike) >= len(found) // 4


def test_contexts_of_scenes_are_long():
    found = [case.args for case in scenes("scaled_dot_product_attention", "float32", 8)]
    tokens = [(query.shape, key.shape) for query, key, _ in found if query.shape[2] <= 2]
    assert any(shape[0] > 1 and shape[2] > 1024 for _, shape in tokens)
    cached = scenes("scaled_dot_product_attention", "float32", 8)
    caches = [case.kwargs["present_key"].shape for case in cached if "present_key_slot" in case.kwargs]
    assert any(shape[2] > 2048 for shape in caches)
    assert any(query.shape[2] >= 16 and key.shape[2] > 500 for query, key, _ in found)


@pytest.mark.parametrize("op", ["mm", "addmm"])
def test_tokens_of_scenes_are_few(op):
    for case in scenes(op, "float32"):
        *_, left, right = [spec for spec in cases.operands(case) if spec is not case.kwargs.get("out")]
        assert left.shape[0] <= 4
        assert right.shape[0] >= 1
    assert any(case.args[-1].shape[0] >= 512 and case.args[-1].shape[1] > 64 for case in scenes(op, "float32"))


def test_numbers_whose_product_is_beyond_64_bits():
    # torch multiplies them in Python on the meta device, which tells whether an ``out`` may lie before the operand.
    tensor = TensorSpec((2, 2), "int64")
    cases_ = [Case(op="add", args=(tensor, 2**40 + n), kwargs={"alpha": 2**40}) for n in range(20)]
    assert all(_scenes._in_arena(case) == case for case in cases_)
