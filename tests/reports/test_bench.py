"""The benchmark suite itself: rows of every operator, and what a result that was not computed does to a run."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import statistics
import sys
from collections import Counter
from pathlib import Path

import forked_python
import pytest
import torch

import conformance
from conformance import spec as specs
from conformance.benchmarks import _rows, _workloads
from conformance.benchmarks.test_first_call import PROCESSES, apart
from reports import read

ROOT = Path(__file__).parents[2]
SUITES = ROOT / "conformance" / "benchmarks"

LIBRARY = """
import torch
import ntops.torch
from ntops.torch import *

kept = {}

def neg(input, *, out=None):
    return kept.setdefault(input.data_ptr(), torch.neg(input))

def relu(input, inplace=False):
    return ntops.torch.relu(input).to_sparse()
"""


def bench(folder, *arguments, suite="test_ops.py"):
    command = [
        sys.executable,
        "-m",
        "pytest",
        str(SUITES / suite),
        "--device",
        "cpu",
        "-q",
        "-p",
        "no:cacheprovider",
        *arguments,
    ]
    # What a worker of pytest-xdist hands down would switch benchmarks off.
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_XDIST")}
    return forked_python.run(command, cwd=folder, env=inherited)


def test_every_operator_has_rows_of_its_own_names_and_a_small_one():
    for name, spec in specs.registry().items():
        names = [_rows.identity(row) for row in spec.benchmarks]
        assert any(_rows.is_small(row) and _rows.fits_interpreter(row) for row in spec.benchmarks), name
        assert len(spec.benchmarks) > 1, name
        assert all(row.bytes > 0 and row.flops >= 0 for row in spec.benchmarks), names


@pytest.mark.slow
def test_all_operators_have_rows_where_none_is_named(tmp_path):
    run = bench(tmp_path, str(SUITES / "test_first_call.py"), "--collect-only")
    assert run.returncode == 0, run.stdout + run.stderr
    for suite in ("test_ops", "test_first_call"):
        for op in ("abs", "mm", "softmax"):
            assert re.search(rf"{suite}\.py::\w+\[{op}\b", run.stdout), run.stdout


def test_rows_are_written_with_all_that_a_report_needs(tmp_path):
    done = bench(tmp_path, "--op", "abs", "--op", "dropout", "--benchmark-only", "--benchmark-json", "b.json")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "vs torch" in done.stdout
    (device,) = read.read_file(tmp_path / "b.json")
    assert [row.op for row in device.rows] == ["abs", "dropout"]
    for row in device.rows:
        assert row.clock == "host"
        assert len(row.seconds) >= 5
        assert row.times_as_fast("torch") > 0
        assert row.median == pytest.approx(statistics.median(row.seconds), rel=1e-4)
    assert {"torch", "triton", "ninetoothed"} <= set(device.environment)
    assert "node" not in json.loads((tmp_path / "b.json").read_text())["machine_info"]


class Model(torch.nn.Module):
    """Calls of two layers that differ in their floats, and two by masks."""

    def forward(self, mask):
        for layer in range(2):
            torch.softmax(torch.full((2, 3), float(layer)), -1)
            torch.bitwise_and(mask, mask if layer else mask.new_ones(2, 3))
        torch.mm(torch.zeros(4, 8), torch.zeros(8, 1).expand(8, 2))
        return torch.add(torch.zeros(1, 3).expand(2, 3), torch.ones(2, 3))


@pytest.fixture
def workload(tmp_path):
    model = Model()
    with torch.no_grad(), conformance.shadow(model, report=tmp_path, keep=9):
        model(torch.ones(2, 3, dtype=torch.bool).triu())
    return tmp_path / "workload"


@pytest.mark.slow
def test_saved_calls_of_a_model_are_rows(workload, tmp_path):
    rows = _workloads.rows([workload], (), (), 1000)
    assert Counter(spec.name for spec, _ in rows.values()) == {"add": 1, "bitwise_and": 2, "mm": 1, "softmax": 1}
    found = {spec.name: (row.bytes, row.flops) for spec, row in rows.values()}
    # Each element once: those of an expanded operand, too.
    assert found["add"] == (4 * (3 + 6 + 6), 0)
    assert found["mm"] == (4 * (32 + 8 + 8), 2 * 4 * 8 * 2)
    assert [*_workloads.rows([workload], ("mm",), ("float32",), 1000)] == [name for name in rows if name[:2] == "mm"]
    for arguments in ((("gelu",), (), 1000), (("mm",), ("float64",), 1000), ((), (), 8)):
        with pytest.raises(ValueError, match=r"can be timed|max-elements"):
            _workloads.rows([workload], *arguments)
    done = bench(tmp_path, "--workload", str(workload), "--op", "softmax", "--benchmark-only", "--benchmark-quiet")
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"softmax +float32 +2x3, -1 +host", done.stdout), done.stdout
    done = bench(tmp_path, "--workload", str(workload), "--sampled", "3")
    assert done.returncode == pytest.ExitCode.INTERRUPTED
    assert "choose one" in done.stdout + done.stderr


def test_work_that_was_not_done_is_an_error(tmp_path):
    (tmp_path / "lazy.py").write_text(LIBRARY)
    few = ("--op", "neg", "--op", "relu", "--benchmark-only", "--implementation", "lazy")
    done = bench(tmp_path, *few)
    assert done.returncode == 1
    assert "neg of lazy" in done.stdout
    assert "it did not compute this" in done.stdout
    assert "relu" in done.stdout
    assert "need not hold its result yet" in done.stdout


def test_a_result_is_judged_by_exact_sums_where_those_of_torch_are_rounded():
    """As torch's cumsum of half types on a GPU: each sum is rounded before the next is added."""

    def rounding(input, dim):
        sums = [input[0]]
        for term in input[1:]:
            sums.append(sums[-1] + term)
        return torch.stack(sums)

    spec = dataclasses.replace(specs.registry()["cumsum"], reference=rounding)
    terms = torch.linspace(0, 1, 4000).to(torch.bfloat16)
    exact = terms.double().cumsum(0)
    _rows.check(spec, "exact", exact.to(torch.bfloat16), (terms, 0), {})

    with pytest.raises(_rows.WrongResult, match="it did not compute this"):
        _rows.check(spec, "wrong", (exact * 1.1).to(torch.bfloat16), (terms, 0), {})
    with pytest.raises(_rows.WrongResult, match=r"torch\.float64"):
        _rows.check(spec, "wide", exact, (terms, 0), {})


def test_a_peer_that_does_not_answer_is_left_out_and_named(tmp_path):
    (tmp_path / "poor.py").write_text("import torch\n\ndef neg(input):\n    return torch.abs(input)\n")
    done = bench(tmp_path, "--op", "neg", "--benchmark-only", "--peer", "torch", "--peer", "poor")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "without poor: WrongResult: neg of poor" in done.stdout
    assert "vs torch" in done.stdout
    assert "vs poor" not in done.stdout


def test_an_unknown_peer_or_op_is_refused(tmp_path):
    assert bench(tmp_path, "--op", "nothing").returncode == 4
    done = bench(tmp_path, "--op", "abs", "--peer", "no_such_library", "--benchmark-only")
    assert done.returncode != 0
    assert "no_such_library" in done.stdout


FIRST = """
import os, pathlib, time
import torch

kept = pathlib.Path.home() / "kept"
now = 0.0
time.perf_counter = lambda: now

def abs(input, *, out=None):
    global now
    if not kept.exists():
        now += 2
        kept.touch()
    now += 0.125
    return torch.abs(input)

def neg(input, *, out=None):
    return input

def relu(input, inplace=False):
    os.abort()
"""


@pytest.fixture(scope="module")
def first_calls(tmp_path_factory):
    """The folder and what came of first calls of four ops, the last two of which go wrong."""
    folder = tmp_path_factory.mktemp("first")
    (folder / "slow.py").write_text(FIRST)
    ops = [part for op in ("abs", "gelu", "neg", "relu") for part in ("--op", op)]
    few = ("--benchmark-only", "--benchmark-quiet", "--implementation", "slow", "--benchmark-json", "b.json")
    return folder, bench(folder, *ops, *few, suite="test_first_call.py")


@pytest.mark.slow
def test_the_first_call_is_that_of_a_process_of_its_own(first_calls):
    folder, done = first_calls
    (device,) = read.read_file(folder / "b.json")
    (row,) = device.rows
    assert (row.op, row.clock, len(row.seconds)) == ("abs", "first call", PROCESSES)
    assert set(row.seconds) == {0.125}
    (ever,) = re.findall(r"^(\d+) ms with nothing on disk$", row.note)
    assert int(ever) == pytest.approx(2125, abs=1)
    assert f"abs {row.label}: {row.note}" in done.stdout
    assert "1 passed, 1 skipped" in done.stdout  # It has no gelu.


def test_what_the_first_call_of_a_process_does_wrong_is_said(first_calls):
    _, done = first_calls
    assert done.returncode == pytest.ExitCode.TESTS_FAILED
    assert "2 failed" in done.stdout
    assert "it did not compute this" in done.stdout
    assert "relu[bfloat16 1024] in a process of its own: exit code -6" in done.stdout


def test_a_process_apart_finds_nothing_that_was_kept(monkeypatch, tmp_path):
    for name in ("TRITON_CACHE_DIR", "NTOPS_CACHE_DIR", "XDG_CACHE_HOME", "CUDA_CACHE_PATH", "TRITON_HOME"):
        monkeypatch.setenv(name, "/somewhere")

    environment = apart(tmp_path)
    assert environment["HOME"] == str(tmp_path)
    assert [value for name, value in environment.items() if "CACHE" in name] == [str(tmp_path / "inductor")]
    assert "TRITON_HOME" not in environment
    assert environment["PATH"] == os.environ["PATH"]
