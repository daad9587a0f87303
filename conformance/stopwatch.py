"""A stopwatch that one process starts and stops, and another one reads."""

from __future__ import annotations

import contextlib
import mmap
import time
from collections.abc import Generator
from typing import IO

_SIZE = 16


def prepare(file: IO[bytes]) -> None:
    """Make an empty file one that stopwatches can share."""
    file.truncate(_SIZE)


class Stopwatch:
    """The seconds in which it ran, shared by all stopwatches of a file."""

    def __init__(self, descriptor: int) -> None:
        # The seconds of what is over, and the time at which the present one began, or 0. Each is written at once, which
        # struct does not do: it writes zeros first, and whoever reads those takes all that was before for new.
        self._numbers = memoryview(mmap.mmap(descriptor, _SIZE)).cast("d")

    @contextlib.contextmanager
    def running(self) -> Generator[None]:
        begin = self._numbers[1] = time.monotonic()
        try:
            yield
        finally:
            # In this order: for a moment too little is read, and never too much.
            self._numbers[1] = 0.0
            self._numbers[0] += time.monotonic() - begin

    def is_running(self) -> bool:
        return self._numbers[1] > 0

    def seconds(self) -> float:
        before, begin = self._numbers
        # The clock is the machine's, not the process's.
        return before + (time.monotonic() - begin if begin else 0.0)
