"""Triton's hash of its own files, kept on disk.

Triton names a compiled kernel by its source and by a hash of the compiler, 440 MB that each process reads again before
its first launch, also where every kernel is in its cache (0.37 s on the host of an H200, of 0.4 s that the first call
took; 0.9 s on a core of CI's machine). So what Triton found stays in that same cache.
"""

import contextlib
import functools
import pathlib

import triton
from triton.runtime import cache

from ntops.host import files

_NAME = "triton_key.txt"
_HASHED = ("_C", "backends", "compiler", "language", "runtime")
"""The folders of what Triton hashes; what is hashed of them differs between its versions, and is less than all."""


def keep() -> None:
    """From now on this process asks Triton's cache for Triton's hash before it reads Triton's files."""
    # A version of Triton without this function hashes in another way, and is left alone.
    if hashed := getattr(cache, "triton_key", None):
        cache.triton_key = functools.cache(lambda: _kept(hashed))


def _folders():
    root = pathlib.Path(triton.__file__).parent
    return [root / name for name in _HASHED]


def _kept(hashed):
    try:
        manager = cache.get_cache_manager(files.state(_folders()))
        file = manager.get_file(_NAME)
        # With its own digest, since a file that lost its end would name the kernels of two compilers alike.
        digest, _, found = pathlib.Path(file).read_text(errors="replace").partition(" ") if file else ("", "", "")
    except OSError:
        return hashed()

    if digest != files.digest(found):
        found = hashed()

        # A cache that cannot be written is still one to read kernels from.
        with contextlib.suppress(OSError):
            manager.put(f"{files.digest(found)} {found}", _NAME)

    return found
