"""Many processes make kernels at once, from one cache of sources."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ntops import interpreter
from ntops.interpreter import ninetoothed_files

ROOT = Path(__file__).parents[2]
PROCESSES = 8
MAKES = 200

# The application is a file, since NineToothed reads its source.
APPLICATION = """
import ninetoothed.language as ntl

def application(x):
    x = ntl.abs(x)
"""
# What all processes make at the same time, so that they get in each other's way as much as they can. They are forked
# from one that has imported, which takes half of the time of the makes.
MAKER = """
import multiprocessing, sys
from ntops import interpreter

interpreter.install()
import ninetoothed, torch
from ninetoothed import Tensor

sys.path.insert(0, sys.argv[1])
import application as module

def make(start, makes):
    start.wait()

    for number in range(makes):
        # A source that all the others write now, too.
        kernel = ninetoothed.make(
            lambda x: (x.tile((4,)),),
            module.application,
            (Tensor(1, name="x"),),
            kernel_name=f"kernel_{number}",
            num_warps=1,
            num_stages=1,
        )

        if number % 50 == 0:
            tensor = -torch.ones(5)
            kernel(tensor)
            assert tensor.tolist() == [1.0] * 5

processes, makes = map(int, sys.argv[2:])
fork = multiprocessing.get_context("fork")
start = fork.Barrier(processes)
makers = [fork.Process(target=make, args=(start, makes)) for _ in range(processes)]

for maker in makers:
    maker.start()

for maker in makers:
    maker.join()

print([maker.exitcode for maker in makers])
"""


@pytest.mark.slow
def test_many_processes_make_kernels_at_once(tmp_path):
    (tmp_path / "application.py").write_text(APPLICATION)
    (tmp_path / "maker.py").write_text(MAKER)
    cache = tmp_path / "cache"
    environment = {**os.environ, "NTOPS_CACHE_DIR": str(cache), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, tmp_path / "maker.py", tmp_path, str(PROCESSES), str(MAKES)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)

    assert done.stdout == f"{[0] * PROCESSES}\n", done.stderr
    assert len(list(cache.glob("*.py"))) == MAKES
    assert list(cache.glob("*.tmp")) == []


def test_workers_share_a_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("NTOPS_CACHE_DIR", str(tmp_path / "here"))
    monkeypatch.setenv("PYTEST_XDIST_WORKER", "gw3")

    assert ninetoothed_files._folder(None) == tmp_path / "here"
    assert (tmp_path / "here").is_dir()


@pytest.fixture
def cache(tmp_path):
    from ninetoothed import generation

    before = generation.CACHE_DIR
    generation.CACHE_DIR = tmp_path / "not" / "yet"

    yield generation

    generation.CACHE_DIR = before


def test_a_source_appears_complete_or_not_at_all(cache, monkeypatch):
    def fail(*args):
        raise OSError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", fail)

        with pytest.raises(OSError, match="no space left"):
            cache.cache_source("x = 1\n")

    assert list(cache.CACHE_DIR.iterdir()) == []
    path = cache.cache_source("x = 1\n")
    assert path.read_text() == "x = 1\n"
    assert cache.cache_source("x = 1\n") == path


def test_the_folder_can_be_given(tmp_path):
    from ninetoothed import generation

    before = generation.CACHE_DIR

    try:
        assert interpreter.prepare_ninetoothed(tmp_path) == tmp_path == generation.CACHE_DIR
    finally:
        generation.CACHE_DIR = before
