"""Calls drawn as models make them: the same everywhere, legal, and counted by family."""

from __future__ import annotations

import pytest
import torch

from conformance import case_files, cases
from conformance.benchmarks import _rows, _sampled, host_time
from strategies import dtypes as dtype_names
from strategies import layouts


def on_meta(spec):
    shape, dtype = spec.shape, dtype_names.to_torch(spec.dtype)
    return torch.empty_strided(shape, layouts.strides(spec.layout, shape), dtype=dtype, device="meta")


def encoded(rows):
    return [cases.encode(row.case) for _, row in rows.values()]


def test_a_seed_gives_the_same_calls_and_another_seed_others():
    first, again, other = (_sampled.drawn(40, seed, [], []) for seed in (7, 7, 8))
    assert list(first) == list(again)
    assert [cases.encode(row.case) for _, row in first.values()] == [
        cases.encode(row.case) for _, row in again.values()
    ]
    assert len(first) == 40
    assert set(first) != set(other)


def test_calls_of_another_number_begin_alike():
    # So that a figure of few calls is one of the first of many.
    assert set(_sampled.drawn(10, 3, [], [])) <= set(_sampled.drawn(20, 3, [], []))


@pytest.mark.parametrize("seed", range(3))
def test_each_call_is_legal(seed):
    rows = _sampled.drawn(150, seed, [], [])
    assert {spec.sampled.family for spec, _ in rows.values()} == {"attention", "elementwise", "products", "rows"}
    for spec, row in rows.values():
        case_files.validate(row.case, max_elements=2**31)
        args, kwargs = cases.bind(row.case, [on_meta(operand) for operand in cases.operands(row.case)])
        result = spec.reference(*args, **kwargs)
        assert result.numel() > 0
        assert result.dtype is args[0].dtype
        # What is written counts once, and what is read at least once unless it is read in part.
        assert 0 < row.bytes <= _sampled.MOST_BYTES
        assert row.bytes >= result.numel() * result.element_size()
        assert 0 < row.flops <= _sampled.MOST_FLOPS


def test_ops_and_dtypes_are_those_that_are_asked_for():
    rows = _sampled.drawn(5, 0, ["mm", "softmax"], ["float16"])
    assert {spec.name for spec, _ in rows.values()} == {"mm", "softmax"}
    assert {cases.dtype_of(row.case) for _, row in rows.values()} == {"float16"}
    with pytest.raises(ValueError, match="none of isnan is sampled"):
        _sampled.drawn(5, 0, ["isnan"], [])
    with pytest.raises(ValueError, match="no 5 different calls"):
        _sampled.drawn(5, 0, ["mm"], ["int8"])


def row(family, ratio, label="4x4"):
    peers = {"torch": {"ratio": [ratio, ratio, ratio]}}
    about = {"op": "add", "dtype": "float32", "label": label, "seed": 1}
    return {**about, "family": family, "peers": peers, "best_peer": "torch"}


def test_the_distribution_is_that_of_the_ratios():
    found = _sampled.distribution([row("rows", 0.5, "slow"), row("rows", 2.0), row("products", 4.0), row(None, 0.1)])
    assert found["seed"] == 1
    assert found["all"] == pytest.approx({"count": 3, "geometric_mean": 4 ** (1 / 3), "percentile_5": 0.65})
    assert found["families"]["rows"]["geometric_mean"] == pytest.approx(1)
    assert found["worst"][0] == {"row": "add[float32 slow]", "ratio": 0.5}
    assert any("slow" in line for line in _sampled.table(found))
    assert _sampled.distribution([row(None, 1.0)]) == {}


def test_host_time_is_that_of_each_call_beside_torch(capsys):
    assert host_time.main("torch", shapes=2) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("  ")[0] for line in lines][4:] == [
        f"{op}, 2 shapes" for op in ("add", "silu", "softmax", "rms_norm", "mm")
    ]
    assert all("torch" in line for line in lines)


def test_identities_of_drawn_calls_differ():
    rows = _sampled.drawn(60, 5, [], [])
    assert [_rows.identity(row) for _, row in rows.values()] == list(rows)
