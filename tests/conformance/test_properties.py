"""The tests of single ops in the suite, ``conformance/test_<op>.py``: they fail for what is wrong, and nothing else."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import forked_python
import pytest
import torch

from conformance import test_scaled_dot_product_attention as attention
from conformance.implementations import load
from conformance.profiles import PROFILES
from conformance.selftest.defect_registry import NAME
from conformance.session import Run

HERE, OP = Path(__file__).parent, attention.OP


PROFILE = ("--max-examples", "120", "--hypothesis-seed", "0")


def suite(*arguments: str) -> str:
    """What pytest prints of the suite, run as its users do."""
    path = os.pathsep.join((os.environ["PYTHONPATH"], str(HERE)))
    command = [sys.executable, "-m", "pytest", "conformance", "-q", "-p", "no:cacheprovider", *PROFILE, *arguments]
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    found = forked_python.run(command, cwd=HERE.parent.parent, env=environment)
    return found.stdout


ROTATIONS = {
    "right": set(),
    "second_left": {"rotation_by_0_is_the_identity", "rotation_and_back", "scores_depend_on_the_distance"},
    "first_rows": {"offsets_are_rows_of_a_longer_table", "in_place_and_strides"},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ROTATIONS)
def test_rotations(name):
    op = "rotary_position_embedding"
    found = suite("--op", op, "--implementation", f"properties:{name}", "-k", f"test_{op}.py")
    assert set(re.findall(r"^\[\d+\] test_(\w+): ", found, re.M)) == ROTATIONS[name]
    assert re.search(rf"{5 - len(ROTATIONS[name])} passed", found)


def test_an_op_is_asked_only_where_it_is_judged():
    found = suite("--op", "add", "--dtype", "int8", "--collect-only")
    assert "test_conformance.py" in found
    assert "test_rotary" not in found
    assert "test_scaled" not in found


def run_of(name: str, tmp_path: Path) -> Run:
    dtypes = ("float32", "float16", "bfloat16", "float64")
    return Run(load(name), torch.device("cpu"), dtypes, None, tmp_path, PROFILES["ci"], 0)


def test_decoding_by_torch_is_right(tmp_path):
    attention.test_decoding(run_of("torch", tmp_path))


@pytest.mark.parametrize(
    "defect",
    [
        "cache_slot_off_by_one",
        "cache_first_length",
        "cache_longest",
        "cache_read_before",
        "cache_not_written",
        "cache_one_row_more",
        "cache_row_after",
        "causal_at_positions",
    ],
)
def test_decoding_finds(defect, tmp_path):
    run = run_of(f"{NAME}:{OP}_{defect}", tmp_path)
    with pytest.raises(AssertionError, match=r"the cache of|are wrong") as failed:
        attention.test_decoding(run)
    # The steps that it needs: few, and the first one makes the model.
    steps = [line for line in failed.value.__notes__ if "state." in line]
    assert any("state.begin" in line for line in steps)
    assert sum(line.count("state.") for line in steps) <= 8


def test_capacity(tmp_path):
    run = run_of("torch", tmp_path)
    function = run.implementation.function(OP)
    for slots in ((1, 5), (-1, 2)):
        attention.test_positions_past_the_capacity(run, function, slots)

        def clamped(*args, present_key_slot, **kwargs):
            return function(*args, present_key_slot=present_key_slot.clamp(0, 4), **kwargs)

        with pytest.raises(AssertionError, match="were taken"):
            attention.test_positions_past_the_capacity(run, clamped, slots)
