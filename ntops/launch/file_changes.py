"""Detect changes of files by their size and time of modification."""

import hashlib
import os
import pathlib
from collections.abc import Iterable, Iterator


def state(folders: Iterable[str | os.PathLike]) -> str:
    """Return a digest of the names, sizes and modification times of :func:`importable` files, without reading them, as
    make detects changes.

    :raises OSError: A path is not a folder, or cannot be read.
    """
    found = [(path, status.st_size, status.st_mtime_ns) for path, status in _importable(folders)]
    return digest(repr(sorted(found)))


def contents(folders: Iterable[str | os.PathLike]) -> str:
    """Return a digest of the text of :func:`importable` files, independent of where the folders are and when they were
    written.

    :raises OSError: A path is not a folder, or cannot be read.
    """
    found = [
        (os.path.relpath(path, folder), hashlib.sha256(pathlib.Path(path).read_bytes()).hexdigest())
        for folder in folders
        for path in importable([folder])
    ]
    return digest(repr(sorted(found)))


def importable(folders: Iterable[str | os.PathLike]) -> Iterator[str]:
    """Return the Python files and shared objects in these folders and their subfolders.

    :raises OSError: A path is not a folder, or cannot be read.
    """
    return (path for path, _ in _importable(folders))


def _importable(folders: Iterable[str | os.PathLike]) -> Iterator[tuple[str, os.stat_result]]:
    """Yield these files, each with its status. Editable installations contain links to folders."""
    for folder in folders:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_dir():
                    yield from _importable([entry.path])
                elif entry.name.endswith((".py", ".so")) and entry.is_file():
                    # An editor's lock file is a dangling link.
                    yield entry.path, entry.stat()


def digest(text: str) -> str:
    """Return a text's SHA-256 in hexadecimal digits."""
    return hashlib.sha256(text.encode()).hexdigest()
