"""Keep Triton's hash of its own files on disk.

Triton names a compiled kernel by its source and by a hash of the compiler. For the hash each process reads 440 MB again
before its first launch, even if every kernel is in its cache (0.37 s on the host of an H200, of 0.4 s for the first
call; 0.9 s on a core of CI's machine). So this module keeps the hash in the same cache.
"""

import contextlib
import functools
import pathlib

import triton
from triton.runtime import cache

from ntops.launch import file_changes

_NAME = "triton_key.txt"
_HASHED = ("_C", "backends", "compiler", "language", "runtime")
"""The folders of the files that Triton hashes; which of their files it hashes depends on its version."""


def keep() -> None:
    """Make this process look for Triton's hash in Triton's cache before it reads Triton's files."""
    # A Triton version without this function hashes in another way, and is left alone.
    if hashed := getattr(cache, "triton_key", None):
        cache.triton_key = functools.cache(lambda: _kept(hashed))


def _folders():
    root = pathlib.Path(triton.__file__).parent
    return [root / name for name in _HASHED]


def _kept(hashed):
    try:
        manager = cache.get_cache_manager(file_changes.state(_folders()))
        file = manager.get_file(_NAME)
        # The entry contains its own digest: a truncated one would name the kernels of two compilers alike.
        digest, _, found = pathlib.Path(file).read_text(errors="replace").partition(" ") if file else ("", "", "")
    except OSError:
        return hashed()

    if digest != file_changes.digest(found):
        found = hashed()

        # A read-only cache still serves kernels.
        with contextlib.suppress(OSError):
            manager.put(f"{file_changes.digest(found)} {found}", _NAME)

    return found
