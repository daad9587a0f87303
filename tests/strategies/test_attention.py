"""Calls of attention: their parts fit together, all kinds are drawn, and planted defects shrink to simple calls."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import HealthCheck, find, settings
from hypothesis import strategies as st

from strategies import attention, attention_sizes, layouts
from strategies.attention import Attention, Positions, Views
from strategies.specs import TensorSpec
from strategies.tensors import materialize

ANY = attention.attentions()
SETTINGS = settings(max_examples=3000, derandomize=False, database=None, suppress_health_check=list(HealthCheck))


def simplest(defect, seed: int = 0) -> Attention:
    return find(ANY, defect, settings=SETTINGS, random=random.Random(seed))


def keys_read(call: Attention) -> int:
    """How many keys the longest sequence attends to."""
    rows = call.key.shape[-2]
    if not isinstance(call.cache, Positions):
        return rows
    slot = call.cache.slot
    last = slot if isinstance(slot, int) else max(materialize(slot).tolist(), default=0)
    return last + rows


@pytest.mark.slow
def test_parts_fit_together(examples):
    for call in examples(ANY, 400):
        query, key, value = call.query.shape, call.key.shape, call.value.shape
        assert query[-1] == key[-1]
        assert key[:-1] == value[:-1]
        assert query[:-3] == key[:-3]
        assert query[-3] % max(key[-3], 1) == 0
        assert call.grouped or query[-3] == key[-3]
        assert max(*query[-1:], *value[-1:]) <= attention_sizes.MAX_DIM
        assert call.variant is None or call.variant in attention.VARIANTS
        if call.mask is not None:
            assert not call.causal
            scores = (*query[:-1], keys_read(call))
            assert 2 <= len(call.mask.shape) <= len(scores)
            assert all(a in (1, b) for a, b in zip(call.mask.shape[::-1], scores[::-1], strict=False))
        match call.cache:
            case Views(present_key, present_value, start, elsewhere):
                new = present_key.shape[-2]
                assert 0 <= start <= start + new <= key[-2]
                assert present_key.shape == (*key[:-2], new, key[-1])
                assert present_value.shape == (*value[:-2], new, value[-1])
                for slot in elsewhere or ():
                    assert slot.shape in (present_key.shape, present_value.shape)
            case Positions(key_cache, value_cache, slot, _):
                capacity = key_cache.shape[-2]
                assert keys_read(call) <= capacity == value_cache.shape[-2]
                assert isinstance(slot, int) or slot.shape == query[:1]
        caches = {Views: (call.key, call.value), Positions: vars_of(call.cache)}.get(type(call.cache), ())
        for spec in caches:
            assert layouts.layout_class(spec.layout, spec.shape) != "expanded"


def vars_of(cache) -> tuple[TensorSpec, ...]:
    return (cache.key, cache.value) if isinstance(cache, Positions) else ()


def test_work_is_bounded(examples):
    for call in examples(attention.attentions(("float64",), float64_work=1 << 12), 200):
        rows = math.prod(call.query.shape[:-1]) * keys_read(call)
        assert rows * (call.query.shape[-1] + call.value.shape[-1]) <= max(1 << 12, 2 * rows)


@pytest.mark.slow
def test_what_is_stale_is_poisoned(examples, monkeypatch):
    """NaN from the first new row of each sequence on, and nothing before it."""
    monkeypatch.setattr(attention, "_AT_TIMES", st.just(False))  # no NaN is planted elsewhere
    seen = 0
    for call in examples(ANY, 400):
        if not isinstance(call.cache, Positions) or not call.cache.key.specials or call.cache.key.shape[-2] > 40:
            continue
        slot = call.cache.slot
        slots = [slot] * call.query.shape[0] if isinstance(slot, int) else materialize(slot).tolist()
        if len(call.query.shape) == 3:
            continue
        cache = materialize(call.cache.key)
        for sequence, first in enumerate(slots):
            assert cache[sequence, :, first:].isnan().all()
            assert not cache[sequence, :, :first].isnan().any()
        seen += 1
    assert seen > 5


@pytest.mark.parametrize(
    ("defect", "shapes"),
    [
        (lambda call: True, ((1, 1, 1, 1), (1, 1, 1, 1))),
        (lambda call: call.query.shape[-2] > 16 and call.key.shape[-2] > 20, ((1, 1, 17, 1), (1, 1, 21, 1))),
        (lambda call: call.query.shape[-1] > 64, ((1, 1, 1, 65), (1, 1, 1, 65))),
        (lambda call: call.query.shape[-3] > call.key.shape[-3], ((1, 2, 1, 1), (1, 1, 1, 1))),
        (lambda call: call.causal and call.variant == "LOWER_RIGHT", ((1, 1, 1, 1), (1, 1, 1, 1))),
        (lambda call: call.mask is not None and call.mask.dtype != "bool", ((1, 1, 1, 1), (1, 1, 1, 1))),
        (lambda call: isinstance(call.cache, Views), ((1, 1, 1, 1), (1, 1, 1, 1))),
        (lambda call: isinstance(call.cache, Positions), ((1, 1, 1, 1), (1, 1, 1, 1))),
        (
            lambda call: isinstance(call.cache, Positions) and call.cache.slot.__class__ is TensorSpec,
            ((1, 1, 1, 1), (1, 1, 1, 1)),
        ),
    ],
)
def test_defects_shrink_part_by_part(defect, shapes):
    # A search may end where no single step makes a call simpler: another start then gets further.
    assert any(is_simplest(simplest(defect, seed), defect, shapes) for seed in range(4))


def is_simplest(call: Attention, defect, shapes) -> bool:
    if (call.query.shape, call.key.shape) != shapes or call.value.shape[:-1] != call.key.shape[:-1]:
        return False
    operands = (call.query, call.key, call.value)
    if call.scale is not None or any(spec != TensorSpec(spec.shape, "float32") for spec in operands):
        return False
    # What the defect does not need is gone.
    fields = {name: getattr(call, name) for name in call.__struct_fields__}
    return all(
        getattr(call, without) is None or not defect(Attention(**{**fields, without: None}))
        for without in ("mask", "cache")
    )
