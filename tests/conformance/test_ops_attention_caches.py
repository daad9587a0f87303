"""Caches of attention: what is written to them, and what is read of them."""

from __future__ import annotations

import msgspec
import pytest
import torch
from test_ops import call
from test_ops_attention import answer, case, tensor

from conformance import cases, runner
from conformance.cases import Case, Variant, View
from conformance.ops import _attention as attention
from conformance.ops.scaled_dot_product_attention import OP
from conformance.spec import registry
from strategies.specs import Layout

SPEC = registry()[OP]


def cached(slot, rows: int, capacity: int, **kwargs) -> Case:
    """Caches of zeros; queries of zeros see the mean of the values, which are all alike."""
    cache = tensor(2, 1, capacity, 1, values="zeros")
    new = tensor(2, 1, rows, 1, values="constant")
    query = tensor(2, 1, rows, 1, values="zeros")
    present = {"present_key": cache, "present_value": cache, "present_key_slot": slot}
    return Case(op=OP, args=(query, new, new), kwargs=present | kwargs)


def test_positions():
    slots = tensor(2, dtype="int64", values="listed:1,3")
    found = cached(slots, 2, 6)
    constant = call(found).args[2][0, 0, 0, 0].item()
    args, kwargs, _ = cases.materialize(found)
    result = attention.composed(*args, **kwargs)
    assert torch.allclose(result.flatten(), torch.tensor([2 / 3, 2 / 3, 2 / 5, 2 / 5]) * constant)
    assert (kwargs["present_value"][..., 0] == constant).squeeze(1).nonzero().tolist() == [
        [0, 1],
        [0, 2],
        [1, 3],
        [1, 4],
    ]
    # Each new row sees the history and itself.
    causal = msgspec.structs.replace(found, kwargs={**found.kwargs, "is_causal": True})
    assert torch.allclose(answer(causal).flatten() / constant, torch.tensor([1 / 2, 2 / 3, 1 / 4, 2 / 5]).double())
    upper = {**causal.kwargs, "causal_variant": Variant("UPPER_LEFT")}
    found = answer(msgspec.structs.replace(found, kwargs=upper)).flatten() / constant
    assert torch.allclose(found, torch.tensor([0, 1 / 2, 0, 0]).double())


def test_a_cache_is_written_and_read_whatever_the_masks_dtype():
    """Implementations may take what they may leave out, a float32 mask of float64 queries among it."""
    operands = (tensor(1, 4, 2, 8, dtype="float64"), *(tensor(1, 2, 3, 8, dtype="float64", seed=n) for n in (1, 2)))
    caches = {f"present_{name}": tensor(1, 2, 6, 8, dtype="float64", seed=3) for name in ("key", "value")}
    kwargs = {**caches, "present_key_slot": 2, "enable_gqa": True}
    results = []
    for dtype in ("float32", "float64"):
        mask = tensor(2, 5, dtype=dtype, values="integers")
        given = call(Case(op=OP, args=operands, kwargs=kwargs | {"attn_mask": mask}))
        results.append(SPEC.reference(*given.args, **given.kwargs))
        assert torch.equal(given.kwargs["present_key"][..., 2:5, :], given.args[1])
    torch.testing.assert_close(*results)


def test_views_are_written_before_they_are_read():
    shapes = ((1, 1, 1, 1), (1, 1, 3, 1), (1, 1, 3, 1))
    new = {"present_key": tensor(1, 1, 2, 1), "present_value": tensor(1, 1, 2, 1, values="one_hot")}
    slots = {"present_key_slot": View(1, 2, 1, 2), "present_value_slot": View(2, 2, 1, 2)}
    args = (tensor(*shapes[0], values="zeros"), tensor(*shapes[1]), tensor(*shapes[2], values="zeros"))
    found = Case(op=OP, args=args, kwargs=new | slots)
    assert answer(found).item() == pytest.approx(2 / 3)
    assert SPEC.writes(found) == {1, 2}
    before = call(found)
    SPEC.expected(before)
    assert (before.args[2] == 0).all(), "the oracle left the call's own operands alone"


def test_what_is_written_is_numbered():
    slot = tensor(2, dtype="int64", values="listed:0")
    assert SPEC.writes(cached(1, 2, 6)) == {3, 4}
    found = cached(slot, 2, 6)
    numbers = {n for n, spec in enumerate(cases.operands(found)) if spec.shape == (2, 1, 6, 1)}
    assert SPEC.writes(found) == numbers
    masked = cached(1, 2, 6, attn_mask=tensor(2, 3, dtype="bool"))
    assert SPEC.writes(masked) == {4, 5}
    assert SPEC.writes(case((1, 1, 2), (1, 3, 2), (1, 3, 2))) == set()


def test_nothing_else_of_a_cache_may_be_written():
    """The row after the new ones: a defect that only `written` sees; and beside a view, `inputs_unchanged`."""
    found = cached(1, 2, 6)
    verdict = runner.judge(found, "conformance.selftest.planted:scaled_dot_product_attention_cache_one_row_more")
    assert verdict.status == "passed", "zeros over zeros"
    args = (*found.args,)
    ones = tensor(2, 1, 6, 1, values="positive", layout=Layout(padding=(0, 0, 2, 1)))
    found = Case(op=OP, args=args, kwargs=found.kwargs | {"present_value": ones})
    verdict = runner.judge(found, "conformance.selftest.planted:scaled_dot_product_attention_cache_one_row_more")
    assert verdict.failure.check == "written"
    assert (
        "operand 4, which the call writes, is wrong in 2 elements; the first is [0, 0, 3, 0]" in verdict.failure.message
    )


def test_positions_are_compared_on_any_default_device():
    heads, cache = torch.randn(2, 3, 1, 4), torch.zeros(2, 3, 5, 4)
    present = {"present_key": cache, "present_value": cache.clone()}
    with torch.device("meta"):
        found = SPEC.reference(heads, heads, heads, **present, present_key_slot=1, present_value_slot=1)
        with pytest.raises(RuntimeError, match="present_value_slot"):
            SPEC.reference(heads, heads, heads, **present, present_key_slot=1, present_value_slot=2)
    assert found.device.type == "cpu"
    assert found.shape == heads.shape
