"""Planted attention defects: what is left of a case is small enough to read. ``nox -s selftest`` has all of them."""

from __future__ import annotations

import math

import pytest
import torch
from searches import UntilOneFails

from conformance import cases
from conformance.profiles import PROFILES
from conformance.selftest import attention
from conformance.selftest.defect_registry import bank

OP = attention.OP


@pytest.fixture(autouse=True)
def _one_thread():
    """Small calls; threads that wait for one another cost more than they bring."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


SHRUNK = {
    ("causal_off_by_one", "float32", False): 4,
    # Two keys are enough for one of its failures, a block and one more for the other.
    ("causal_one_more", "float32", False): 4 * (attention.BLOCK + 1),
    ("tail_last_key", "float32", False): 4 * (attention.BLOCK + 1),
    ("mask_head", "float16", False): 12,
    ("cache_values_in_keys", "bfloat16", False): 12,
    ("refused_as_value_error", "float32", True): 800,
}
"""Elements of all operands that the simplest case has."""


@pytest.mark.slow
@pytest.mark.parametrize(("name", "dtype", "refused"), SHRUNK)
def test_what_is_left_can_be_read(name, dtype, refused, tmp_path):
    defect = bank()[f"{OP}_{name}"]
    # Others fail too, and are shrunk for themselves.
    given = (defect.implementation, torch.device("cpu"), (dtype,), (defect.check,), tmp_path, PROFILES["ci"], 0)
    run = UntilOneFails(*given)
    report = run.search(OP, dtype, refused)
    failures = [failure for record in report.tally.sorted() for failure in record.failures]
    failure = next(failure for failure in failures if failure.check == defect.check)
    operands = cases.operands(failure.case)
    assert sum(math.prod(spec.shape) for spec in operands) <= SHRUNK[name, dtype, refused]
    # A script repeats it without the harness.
    assert (tmp_path / f"repro_{failure.id}.py").exists()
