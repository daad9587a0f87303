"""Run the benchmarks N times, each in a process of its own: ``python -m conformance.benchmarks.repeat N FOLDER ARGS``.

ARGS are pytest's. The runs are ``FOLDER/run-00.json`` and so on. Processes are forked from one that has imported torch
and touched no GPU, which saves most of their start.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
import torch  # noqa: F401


def main(arguments: list[str]) -> int:
    if len(arguments) < 2 or not arguments[0].isdecimal():
        print(__doc__, file=sys.stderr)
        return 2
    folder = Path(arguments[1])
    folder.mkdir(parents=True, exist_ok=True)
    suite = str(Path(__file__).with_name("test_ops.py"))
    for number in range(int(arguments[0])):
        path = folder / f"run-{number:02d}.json"
        process = os.fork()
        if not process:
            fixed = ["--benchmark-only", "--benchmark-quiet", "-q", f"--benchmark-json={path}"]
            os._exit(pytest.main([suite, *fixed, *arguments[2:]]))
        if code := os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]):
            print(f"run {number} ended with exit code {code}", file=sys.stderr)
            return 1
        print(f"wrote {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
