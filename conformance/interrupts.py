"""Take Ctrl-C once: a key pressed twice does not lose what the first press has the run write."""

from __future__ import annotations

import signal
import threading
import time
from types import FrameType

PATIENCE = 3.0
"""Seconds from the first SIGINT in which others are ignored: by then the table and the metrics are written."""


class Once:
    """A handler of SIGINT that raises KeyboardInterrupt, and ignores signals within ``PATIENCE`` after that."""

    def __init__(self) -> None:
        self._last = -PATIENCE

    def __call__(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if now - self._last >= PATIENCE:
            self._last = now
            raise KeyboardInterrupt


def install() -> None:
    """Handle SIGINT by ``Once``, where Python's own handler would."""
    own = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if own and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, Once())


def remove() -> None:
    """Give SIGINT back to Python's own handler."""
    if isinstance(signal.getsignal(signal.SIGINT), Once):
        signal.signal(signal.SIGINT, signal.default_int_handler)
