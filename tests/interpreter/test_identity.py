"""Many programs at once give bit for bit what one after the other gives, and what Triton's own interpreter gives."""

import os
import subprocess
import sys
from pathlib import Path

import kernels
import pytest
import torch
import triton
import triton.language as tl

from ntops.interpreter import launch

HERE = Path(__file__).parent
LAUNCHES = 100
STOCK_LAUNCHES = 25


def bits(tensor):
    return tensor.contiguous().view(-1).view(torch.uint8)


def same(results, expected):
    return all(torch.equal(bits(a), bits(b)) for a, b in zip(results, expected, strict=True))


def run_at_once(given, chunk=4096):
    """One launch with so many programs together, whatever was learnt about the kernel before."""
    launch.kernel_of(given[0]).is_sequential = False
    before, launch.CHUNK = launch.CHUNK, chunk

    try:
        return kernels.run(given)
    finally:
        launch.CHUNK = before


@pytest.mark.parametrize("name", kernels.FAMILIES)
def test_at_once_is_one_after_the_other(name):
    for number, given in enumerate(kernels.launches(name, LAUNCHES)):
        expected = run_at_once(given, chunk=1)

        assert same(run_at_once(given), expected), f"launch {number}"
        assert same(run_at_once(given, chunk=3), expected), f"launch {number}, in chunks of 3"


@pytest.fixture(scope="module")
def stock(tmp_path_factory):
    path = tmp_path_factory.mktemp("stock") / "results.pt"
    environment = {**os.environ, "PYTHONWARNINGS": "ignore"}
    command = [sys.executable, HERE / "outcomes.py", "stock", str(STOCK_LAUNCHES), path]
    subprocess.run(command, check=True, env=environment, cwd=HERE)

    return torch.load(path)


@pytest.mark.parametrize("name", [name for name in kernels.FAMILIES if name not in kernels.NOT_LIKE_STOCK])
def test_tritons_own_interpreter_agrees(name, stock):
    refused = [expected for expected in stock[name] if isinstance(expected, str)]

    # Triton 3.6 with a recent NumPy cannot take a tensor as the limit of a range.
    assert all("0-dimensional arrays" in message for message in refused)

    for number, given in enumerate(kernels.launches(name, STOCK_LAUNCHES)):
        if not isinstance(stock[name][number], str):
            assert same(run_at_once(given), stock[name][number]), f"launch {number}"


def test_the_launches_are_thousands_of_cases():
    assert LAUNCHES * len(kernels.FAMILIES) > 2000


@pytest.mark.parametrize("name", ["branches", "inplace", "data_dependent_loops", "grids", "float_arithmetic"])
def test_programs_really_run_together(name, monkeypatch):
    sizes = []
    execute = launch._Chunk._execute

    def spy(self, programs, *rest):
        sizes.append(len(programs))

        return execute(self, programs, *rest)

    monkeypatch.setattr(launch._Chunk, "_execute", spy)
    given = max(kernels.launches(name, 20), key=lambda given: given[1])
    run_at_once(given)

    assert max(sizes) > 1
    assert not launch.kernel_of(given[0]).is_sequential


@triton.jit
def count_down(out, log, n):
    p = tl.program_id(0)
    rest = p
    while rest > 0:
        rest -= 1
        tl.store(out + p, tl.load(out + p) + rest)
    if p % 7 == 3:
        tl.atomic_add(log, p)


def test_programs_that_part_too_often_go_alone():
    n = 300
    expected = torch.tensor([p * (p - 1) // 2 for p in range(n)], dtype=torch.int32)
    out, log = torch.zeros(n, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    count_down[(n,)](out, log, n)

    assert torch.equal(out, expected)
    assert log.item() == sum(range(3, n, 7))


@triton.jit
def talk(out):
    p = tl.program_id(0)
    tl.store(out + p, tl.load(out + p) + 1)
    if p != 1:
        print("program", p)


def test_programs_speak_in_their_order(capsys):
    out = torch.zeros(3)
    talk[(3,)](out)

    assert capsys.readouterr().out.split() == ["program", "[0]", "program", "[2]"]
    assert out.tolist() == [1, 1, 1]
