"""Time the first call of an op in a new process: ``nox -s bench -- first_call``.

The smallest row of each op runs in one new process after another: once with nothing on disk, for the row's note, then
``PROCESSES`` times with what the first process left there, for its figure. ``first_call.py`` is the process.
"""

from __future__ import annotations

import os
import site
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from conformance import cases
from conformance.benchmarks import _rows, first_call
from conformance.benchmarks._replay import Replay
from conformance.spec import Benchmark
from ntops import timing

PROCESSES = 5
LONGEST = 600
"""Seconds that a process may take."""
ELSEWHERE = ("CACHE_DIR", "CACHE_HOME", "TRITON_HOME", "CUDA_CACHE_PATH")
"""The ends of the names of variables that say where caches are."""
CLOCK = Replay()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    option = metafunc.config.getoption
    found: dict[str, Benchmark] = {}
    for spec, row in _rows.selected(option("--op") or (), option("--dtype") or ()).values():
        found[spec.name] = min(found.get(spec.name, row), row, key=lambda one: (one.bytes, one.flops))
    metafunc.parametrize("row", found.values(), ids=found)


def apart(folder: Path) -> dict[str, str]:
    """Return the environment of a process that keeps and finds below ``folder`` what compilers and libraries write to
    disk."""
    kept = {name: value for name, value in os.environ.items() if not name.endswith(ELSEWHERE)}
    # HOME also leads to the packages that were installed for this user only.
    user = {"PYTHONUSERBASE": site.getuserbase()}
    return user | kept | {"HOME": str(folder), "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor")}


def in_new_process(row: Benchmark, about: dict[str, Any], folder: Path) -> float:
    """Return the seconds of the first call in a new process."""
    name = _rows.identity(row)
    command = [sys.executable, "-m", first_call.__name__, name, about["implementation"], about["device"]]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=apart(folder), timeout=LONGEST)
    except subprocess.TimeoutExpired:
        pytest.fail(f"{name} in a process of its own: no end after {LONGEST} s", pytrace=False)
    if done.returncode == first_call.NOT_PROVIDED:
        pytest.skip(f"not provided by {about['implementation']}: {row.case.op}")
    if done.returncode:
        pytest.fail(
            f"{name} in a process of its own: exit code {done.returncode}\n{done.stderr[-3000:]}", pytrace=False
        )
    return float(done.stdout.split()[-1])


@pytest.mark.benchmark(timer=CLOCK, group="first call")
def test_first_call(
    row: Benchmark, about: dict[str, Any], rows: list[dict[str, Any]], benchmark: BenchmarkFixture, tmp_path: Path
) -> None:
    """Measure the wall-clock time of the implementation's first call, until the device is idle again; no peers."""
    if about["device"] == "cpu" and not _rows.fits_interpreter(row):
        pytest.skip("takes too long under the interpreter")
    first = in_new_process(row, about, tmp_path)
    if not benchmark.enabled:
        benchmark.pedantic(in_new_process, (row, about, tmp_path))
        return
    seconds = [in_new_process(row, about, tmp_path) for _ in range(PROCESSES)]
    CLOCK.keep(benchmark, seconds)
    info = {
        **about,
        "op": row.case.op,
        "dtype": cases.dtype_of(row.case),
        "label": f"{_rows.label(row.case)}, in a new process",
        "clock": "first call",
        "median": statistics.median(seconds),
        "interval": timing.median_interval(seconds),
        "note": f"{first * 1e3:.0f} ms with nothing on disk",
        "share": None,
        "peers": {},
    }
    benchmark.extra_info |= info
    rows.append(info)
