"""The how-tos are followed word for word, in a copy of the sources."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from conformance import case_files, cases

ROOT = Path(__file__).parents[1]
FILE = re.compile(r"^`([\w/]+\.py)`:\n\n```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINE = re.compile(r"^In `(\w+)` of `([\w/]+\.py)`:\n\n```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.fixture
def copy(tmp_path) -> Path:
    # With the bytecode, which is as new as the copy of its source.
    ignore = shutil.ignore_patterns("results")
    for package in ("ntops", "strategies", "conformance"):
        shutil.copytree(ROOT / package, tmp_path / package, ignore=ignore)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def write_files(page: str, root: Path) -> list[str]:
    files = FILE.findall((ROOT / "docs" / page).read_text())
    for name, text in files:
        assert not (root / name).exists(), f"{page} says to write {name}, which exists"
        (root / name).write_text(text)
    return [name for name, _ in files]


def write_lines(page: str, root: Path) -> int:
    """Put the lines that a page shows at the head of the tables that it names, and return how many there are."""
    lines = LINE.findall((ROOT / "docs" / page).read_text())
    for table, name, text in lines:
        before, head, after = (root / name).read_text().partition(f"\n{table} = {{\n")
        assert head, f"{page} names {table}, which is not in {name}"
        (root / name).write_text(before + head + text + after)
    return len(lines)


def conformance(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "conformance", "-p", "no:cacheprovider", *arguments]
    # One seed, so that these tests say the same every time: they test the pages, not the operators.
    command += ["--hypothesis-seed", "0"]
    return subprocess.run(command, cwd=root, capture_output=True, text=True)


@pytest.mark.slow
def test_an_operator_is_added_by_three_files(copy):
    files = write_files("adding-an-op.md", copy)
    assert [Path(name).parent.as_posix() for name in files] == ["ntops/kernels", "ntops/torch", "conformance/ops"] * 3
    assert write_lines("adding-an-op.md", copy) == 3
    few = ("--dtype", "float16", "--dtype", "int8", "--max-examples", "10")
    ops = ("log", "leaky_relu", "fmax")
    for implementation in ("torch", "ntops.torch"):
        done = conformance(copy, *(f"--op={op}" for op in ops), "--implementation", implementation, *few)
        assert done.returncode == 0, done.stdout + done.stderr
        for op in ops:
            assert re.search(rf"^{op} +\d+", done.stdout, re.MULTILINE)


@pytest.mark.slow
def test_another_library_is_judged_by_naming_it(copy):
    assert write_files("adding-an-implementation.md", copy) == ["demo_library.py"]
    only = ("--op", "add", "--op", "relu", "--op", "mm", "--dtype", "float32", "--max-examples", "50")
    done = conformance(copy, "--implementation", "demo_library", *only)
    assert done.returncode == 1, done.stdout + done.stderr
    rows = re.findall(r"^(\w+) +\d+ +(\d+) +(\d+) +\d+ +\d+ +(\d+) ", done.stdout, re.MULTILINE)
    table = {op: [int(count) for count in counts] for op, *counts in rows}
    passed, failed, lacking = table["mm"]
    assert passed == failed == 0 < lacking
    for op in ("add", "relu"):
        assert table[op][1] > 0, f"the mistake in {op} was not found"
        (case, *_) = sorted((copy / "failures").glob(f"{op}-*.json"))
        assert (copy / "failures" / f"repro_{case.stem}.py").exists()


@pytest.mark.parametrize("page", ["other-libraries", "versus"])
def test_cases_that_pages_name_are_there_and_can_be_read(page):
    folder = ROOT / "docs" / page
    named = set(re.findall(r"`(\w+-[0-9a-f]{10})`", (ROOT / "docs" / f"{page}.md").read_text()))
    kept = {path.stem: path for path in folder.rglob("*.json")}
    assert named == kept.keys()
    for name, path in kept.items():
        assert cases.case_id(case_files.read(path)) == name
