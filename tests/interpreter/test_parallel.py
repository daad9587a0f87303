"""Many processes make kernels at once, from one cache of sources."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ntops import interpreter
from ntops.interpreter import nine

ROOT = Path(__file__).parents[2]
PROCESSES = 8
MAKES = 500

# The application is a file, since NineToothed reads its source.
APPLICATION = """
import ninetoothed.language as ntl

def application(x, y):
    y = ntl.abs(x)
"""
# What all processes make at the same time, so that they get in each other's way as much as they can.
MAKER = """
import sys, time
from ntops import interpreter

interpreter.install()
import ninetoothed, torch
from ninetoothed import Tensor

sys.path.insert(0, sys.argv[1])
import application as module

print("ready", flush=True)
sys.stdin.readline()

for number in range(int(sys.argv[2])):
    # A source that all the others write now, too.
    kernel = ninetoothed.make(
        lambda x, y: (x.tile((4,)), y.tile((4,))),
        module.application,
        (Tensor(1, name="x"), Tensor(1, name="y")),
        kernel_name=f"kernel_{number}",
        num_warps=1,
        num_stages=1,
    )

    if number % 50 == 0:
        out = torch.empty(5)
        kernel(-torch.ones(5), out)
        assert out.tolist() == [1.0] * 5
"""


def test_many_processes_make_kernels_at_once(tmp_path):
    (tmp_path / "application.py").write_text(APPLICATION)
    (tmp_path / "maker.py").write_text(MAKER)
    cache = tmp_path / "cache"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "NTOPS_CACHE_DIR": str(cache), "OMP_NUM_THREADS": "1"}
    environment.pop("PYTEST_XDIST_WORKER", None)
    makers = [
        subprocess.Popen(
            [sys.executable, tmp_path / "maker.py", tmp_path, str(MAKES)],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(PROCESSES)
    ]

    try:
        for maker in makers:
            assert maker.stdout.readline() == "ready\n", maker.stderr.read()

        for maker in makers:
            maker.stdin.write("go\n")
            maker.stdin.flush()

        for maker in makers:
            _, errors = maker.communicate(timeout=600)
            assert maker.returncode == 0, errors
    finally:
        for maker in makers:
            maker.kill()

    assert len(list(cache.glob("*.py"))) == MAKES
    assert list(cache.glob("*.tmp")) == []


def test_each_worker_has_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setenv("NTOPS_CACHE_DIR", str(tmp_path / "here"))
    monkeypatch.setenv("PYTEST_XDIST_WORKER", "gw3")

    assert nine._folder(None) == tmp_path / "here" / "gw3"
    assert (tmp_path / "here" / "gw3").is_dir()


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
        worker = os.environ.get("PYTEST_XDIST_WORKER", "")
        assert interpreter.prepare_ninetoothed(tmp_path) == tmp_path / worker == generation.CACHE_DIR
    finally:
        generation.CACHE_DIR = before
