"""What the interpreter sees a kernel do to memory becomes a failed case like any other: shrunk, saved, repeatable."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from conformance import case_files, cases, runner
from conformance.checks import CHECKS
from conformance.implementations import load
from conformance.profiles import PROFILES
from conformance.session import Run

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="compiled kernels cannot be watched")
CPU = torch.device("cpu")
PLANTED = "conformance.selftest.planted"
OTHERS = ("layout_invariant", "batch_invariant", "inplace", "layouts", "plain_operands", "call_forms")


def search(name: str, folder: Path):
    run = Run(
        implementation=load(f"{PLANTED}:{name}"),
        device=CPU,
        dtypes=["float32"],
        checks=None,
        save_to=folder,
        settings=PROFILES["ci"],
        seed=0,
    )
    return run.search("relu", "float32", False)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("reads_beyond", "past its last"),
        ("writes_beyond", "past its last"),
        ("leaves_last", "was never written"),
        ("writes_input", "argument"),
        ("programs_collide", "program"),
        ("reads_unwritten", "written"),
    ],
)
def test_a_fault_is_a_failed_case(name, says, tmp_path):
    report = search(f"relu_{name}", tmp_path)
    failures = [failure for record in report.tally.sorted() for failure in record.failures]
    # Of a call in place, of other layouts and forms and of a part of the batch, too: by names of their own.
    assert {failure.check for failure in failures} - {*OTHERS} == {"memory"}
    paths = [tmp_path / f"{failure.id}.json" for failure in failures if failure.check in ("memory", "inplace")]
    saved = [case_files.read(path) for path in paths]
    assert saved

    for case in saved:
        verdict = runner.judge(case, f"{PLANTED}:relu_{name}", CPU)
        assert verdict.failure.check == "memory"
        assert says in verdict.failure.message
        assert "kernel" in verdict.failure.message
        assert runner.judge(case, f"{PLANTED}:kernels", CPU).status == "passed"
        # Small enough to read: one block and an element at most, but for programs that race, of which it takes two.
        assert math.prod(cases.operands(case)[0].shape) <= 130


@pytest.mark.slow
def test_a_sound_kernel_passes(tmp_path):
    assert not [f for record in search("kernels", tmp_path).tally.sorted() for f in record.failures]


def test_the_check_can_be_left_out():
    case = cases.Case(op="relu", args=(cases.TensorSpec((3,), "float32"),))
    verdict = runner.judge(case, f"{PLANTED}:relu_leaves_last", CPU, ["metadata"])
    assert [finding.check for finding in verdict.findings] == ["metadata"]


@pytest.mark.parametrize(("name", "check"), [("writes_beyond", "guard_bands"), ("leaves_last", "fully_written")])
def test_a_kernel_that_is_not_watched_is_guarded(name, check):
    """As one that is compiled: the same is found by what it leaves in memory."""
    case = cases.Case(op="relu", args=(cases.TensorSpec((67,), "float32"),))
    for checks in ([check], [name for name in CHECKS if name != "memory"]):
        assert runner.judge(case, f"{PLANTED}:relu_{name}", CPU, checks).failure.check == check
        assert runner.judge(case, f"{PLANTED}:kernels", CPU, checks).status == "passed"
