"""Which files they are, and whether they changed."""

import hashlib
import os
import pathlib
from collections.abc import Iterable, Iterator


def state(folders: Iterable[str | os.PathLike]) -> str:
    """A digest of the names, sizes and times of change of :func:`importable` files, which are not read: by these make
    knows a file, and ccache a compiler.

    :raises OSError: A folder is none, or cannot be read.
    """
    found = [(path, status.st_size, status.st_mtime_ns) for path, status in _importable(folders)]
    return digest(repr(sorted(found)))


def contents(folders: Iterable[str | os.PathLike]) -> str:
    """A digest of the text of :func:`importable` files, wherever the folders are and whenever it was written.

    :raises OSError: A folder is none, or cannot be read.
    """
    found = [
        (os.path.relpath(path, folder), hashlib.sha256(pathlib.Path(path).read_bytes()).hexdigest())
        for folder in folders
        for path in importable([folder])
    ]
    return digest(repr(sorted(found)))


def importable(folders: Iterable[str | os.PathLike]) -> Iterator[str]:
    """The Python files and shared objects in these folders and in those inside them.

    :raises OSError: A folder is none, or cannot be read.
    """
    return (path for path, _ in _importable(folders))


def _importable(folders: Iterable[str | os.PathLike]) -> Iterator[tuple[str, os.stat_result]]:
    """The same, each with its status. An installation that can be edited has links to folders."""
    for folder in folders:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_dir():
                    yield from _importable([entry.path])
                elif entry.name.endswith((".py", ".so")) and entry.is_file():
                    # An editor's lock is a link to nothing.
                    yield entry.path, entry.stat()


def digest(text: str) -> str:
    """A text's SHA-256, in hexadecimal digits."""
    return hashlib.sha256(text.encode()).hexdigest()
