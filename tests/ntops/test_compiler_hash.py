"""Triton's hash of its own files is read from its cache."""

import os
import subprocess
import sys

import pytest
from triton.runtime import cache

from ntops.launch import compiler_hash, file_changes

FOUND = "3.0.0-of-the-compiler"


def _run(code, interpreted):
    environment = os.environ | {"TRITON_INTERPRET": interpreted}
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    ).stdout


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Triton's cache, of the test's own."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "kernels"))
    return tmp_path / "kernels"


@pytest.mark.slow
@pytest.mark.parametrize("interpreted", ["0", "1"])
def test_only_the_first_process_reads_the_compiler(folder, interpreted):
    code = (
        "import sys, triton.runtime.cache as cache; own = cache.triton_key; import ntops.torch; opened = []; "
        "sys.addaudithook(lambda event, given: opened.append(str(given[0])) if event == 'open' else None); "
        "key = cache.triton_key(); read = sum('libtriton' in name for name in opened); "
        "print(read, key == own(), cache.triton_key is own)"
    )
    seen = [_run(code, interpreted) for _ in range(2)]
    assert seen == (["1 True False\n", "0 True False\n"] if interpreted == "0" else ["1 True True\n"] * 2)


def _kept():
    asked = []
    return compiler_hash._kept(lambda: asked.append(1) or FOUND), len(asked)


def test_kept(folder):
    assert _kept() == (FOUND, 1)
    assert _kept() == (FOUND, 0)


@pytest.mark.parametrize("damage", [lambda text: b"", lambda text: text[:-1], lambda text: text[:-1] + b"\xff"])
def test_a_damaged_file_is_written_again(folder, damage):
    _kept()
    (file,) = folder.rglob(compiler_hash._NAME)
    file.write_bytes(damage(file.read_bytes()))
    assert _kept() == (FOUND, 1)
    assert _kept() == (FOUND, 0)


def test_a_cache_that_cannot_be_used_is_done_without(folder):
    folder.write_text("no folder")
    assert _kept() == (FOUND, 1)
    assert _kept() == (FOUND, 1)


def test_a_cache_that_is_full_is_done_without(folder, monkeypatch):
    def put(self, data, name, binary=True):
        raise OSError("no space left on device")

    monkeypatch.setattr(cache.FileCacheManager, "put", put)
    assert _kept() == (FOUND, 1)
    assert _kept() == (FOUND, 1)


def test_every_file_that_triton_hashes_is_looked_at():
    code = (
        "import sys, triton.runtime.cache as cache; "
        "sys.addaudithook(lambda event, given: print(given[0]) if event == 'open' else None); cache.triton_key()"
    )
    opened = _run(code, "0").splitlines()
    looked_at = set(file_changes.importable(compiler_hash._folders()))
    hashed = [file for file in opened if file.endswith(".py") or "libtriton" in file]
    assert len(hashed) > 20
    assert set(hashed) <= looked_at
