"""Rows whose sizes are multiples of 16 are loaded and stored 16 bytes at a time; in forward passes those of multiples
of 8, too, and those of multiples of 4 by 8 bytes. Element by element a kernel that waits for memory takes up to three
times as long. Of any other number of elements in one dim, whole tiles are loaded so (``tanh``), not
the last one."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

FEW = 8
"""Loads and stores of single elements: a row's sum, a class index, a divisor."""
SUMS = {"add_up", "parameters"}
"""Kernels that read one number for each row."""


@pytest.mark.slow
@pytest.mark.parametrize(("columns", "long", "least"), [(4096, 65536, 25), (1000, 50280, 12), (1500, 30004, 12)])
def test_tiles_are_loaded_by_vectors(columns, long, least):
    script = Path(__file__).with_name("vector_loads.py")
    environment = os.environ | {"TRITON_INTERPRET": "0"}
    result = subprocess.run(
        [sys.executable, str(script), str(columns), str(long)], capture_output=True, text=True, env=environment
    )
    assert result.returncode == 0, result.stderr[-2000:]
    launches = [json.loads(line) for line in result.stdout.splitlines()]
    assert len(launches) >= least
    tiles = [one for one in launches if one["kernel"] not in SUMS]
    slow = [one for one in tiles if not one["vector"] or (one["single"] > FEW and one["kernel"] != "ntops_tanh")]
    assert slow == []
