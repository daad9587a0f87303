"""Which files they are, without reading them."""

import hashlib
import os
from collections.abc import Iterable, Iterator


def state(folders: Iterable[str | os.PathLike]) -> str:
    """A digest of the names, sizes and times of change of :func:`importable` files: by these make knows a file, and
    ccache a compiler."""
    found = [(path, (status := os.stat(path)).st_size, status.st_mtime_ns) for path in importable(folders)]
    return digest(repr(sorted(found)))


def importable(folders: Iterable[str | os.PathLike]) -> Iterator[str]:
    """The Python files and shared objects in these folders and in those inside them."""
    for root in folders:
        # An installation that can be edited has links to folders.
        for folder, _, names in os.walk(root, followlinks=True):
            yield from (os.path.join(folder, name) for name in names if name.endswith(".py") or ".so" in name)


def digest(text: str) -> str:
    """A text's SHA-256, in hexadecimal digits."""
    return hashlib.sha256(text.encode()).hexdigest()
