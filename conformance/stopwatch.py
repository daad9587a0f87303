"""A stopwatch that one process starts and stops, and another one reads."""

from __future__ import annotations

import contextlib
import mmap
import struct
import time
from collections.abc import Generator
from typing import IO

_FORM = struct.Struct("dd")


def prepare(file: IO[bytes]) -> None:
    """Make an empty file one that stopwatches can share."""
    file.truncate(_FORM.size)


class Stopwatch:
    """The seconds in which it ran, shared by all stopwatches of a file."""

    def __init__(self, descriptor: int) -> None:
        self._memory = mmap.mmap(descriptor, _FORM.size)

    @contextlib.contextmanager
    def running(self) -> Generator[None]:
        before, _ = _FORM.unpack_from(self._memory)
        begin = time.monotonic()
        _FORM.pack_into(self._memory, 0, before, begin)
        try:
            yield
        finally:
            _FORM.pack_into(self._memory, 0, before + time.monotonic() - begin, 0.0)

    def is_running(self) -> bool:
        return _FORM.unpack_from(self._memory)[1] > 0

    def seconds(self) -> float:
        before, begin = _FORM.unpack_from(self._memory)
        # The clock is the machine's, not the process's.
        return before + (time.monotonic() - begin if begin else 0.0)
