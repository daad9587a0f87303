"""``--shard I/N``: the parts of a run, which machines judge without talk, are the whole run."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import forked_python
import pytest

from conformance.options import Shard
from reports import read
from reports.__main__ import main

WITHOUT_CI = {name: value for name, value in os.environ.items() if name != "CI"}
COUNTS = ("cases", "passed", "failed", "refused", "not_provided")


def run(folder: Path, name: str, *options: str) -> Path:
    command = [sys.executable, "-m", "conformance", "run", "-q", "-p", "no:cacheprovider", "--rootdir", str(folder)]
    few = ("--op", "abs", "--op", "silu", "--dtype", "float32", "--implementation", "torch", "--max-examples", "4")
    few += ("--hypothesis-seed", "5", "-k", "legal or refused or saved", "--check", "values")
    path = folder / f"{name}.json"
    done = forked_python.run([*command, *few, *options, "--metrics", path], cwd=folder, env=WITHOUT_CI)
    assert done.returncode == 0, done.stdout + done.stderr
    return path


def counted(path: Path) -> dict[tuple[str, str], list[int]]:
    records = json.loads(path.read_text())["records"]
    return {(one["op"], one["dtype"]): [one[name] for name in COUNTS] for one in records}


@pytest.mark.slow
def test_two_shards_are_the_whole_run(tmp_path):
    whole, parts = run(tmp_path, "whole"), [run(tmp_path, f"part{n}", "--shard", f"{n}/2") for n in (1, 2)]
    assert json.loads(parts[0].read_text())["shard"] == "1/2"
    added: dict[tuple[str, str], list[int]] = {}
    for part in map(counted, parts):
        assert part
        for key, counts in part.items():
            added[key] = [sum(pair) for pair in zip(counts, added.get(key, [0] * len(COUNTS)), strict=True)]
    assert added == counted(whole)

    assert main(["merge", *map(str, parts), "--out", str(tmp_path / "merged")]) == 0
    (merged,), _ = read.read([tmp_path / "merged" / "report.json"])
    (one,), _ = read.read([whole])
    assert [(r.op, r.dtype, r.cases, r.passed) for r in merged.records] == [
        (r.op, r.dtype, r.cases, r.passed) for r in one.records
    ]


def test_a_shard_needs_a_seed(tmp_path):
    command = [sys.executable, "-m", "conformance", "run", "--hypothesis-profile", "smoke", "--shard", "1/2"]
    done = forked_python.run(command, cwd=tmp_path, env=WITHOUT_CI)
    assert done.returncode == 4
    assert "--hypothesis-seed, the same on every machine" in done.stderr


@pytest.mark.parametrize("text", ["3/2", "0/2", "1", "a/b", "1/"])
def test_a_shard_is_one_of_several(text):
    with pytest.raises(ValueError):  # noqa: PT011 - int says what is no number
        Shard.parsed(text)
    assert Shard.parsed("2/2") == Shard(2, 2)
