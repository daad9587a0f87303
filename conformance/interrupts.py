"""Take Ctrl-C once: a key pressed twice does not lose what the first press has the run write."""

from __future__ import annotations

import signal
import threading
import time
from types import FrameType

PATIENCE = 3.0
"""Seconds from the first SIGINT in which others are ignored: by then pytest knows of it, and the suite holds others
until the table and the metrics are written."""


class Once:
    """A handler of SIGINT that raises KeyboardInterrupt, and ignores signals within ``PATIENCE`` after that."""

    def __init__(self) -> None:
        self._last = -PATIENCE
        self._held, self._came = False, False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if now - self._last >= PATIENCE:
            self._last = now
            self._came = True
            self._raise()

    def hold(self) -> None:
        self._held = True

    def release(self) -> None:
        self._held = False
        self._raise()

    def _raise(self) -> None:
        if self._came and not self._held:
            self._came = False
            raise KeyboardInterrupt


def hold() -> None:
    """Raise nothing before ``release``: what was found is on its way from one place to another, and in neither."""
    if isinstance(handler := signal.getsignal(signal.SIGINT), Once):
        handler.hold()


def release() -> None:
    """End ``hold``. Raises KeyboardInterrupt if a signal came meanwhile."""
    if isinstance(handler := signal.getsignal(signal.SIGINT), Once):
        handler.release()


def came() -> bool:
    """End ``hold``. Tell whether a signal came meanwhile, and raise nothing for it."""
    try:
        release()
    except KeyboardInterrupt:
        return True
    return False


def install() -> None:
    """Handle SIGINT by ``Once``, where Python's own handler would."""
    own = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if own and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, Once())


def remove() -> None:
    """Give SIGINT back to Python's own handler."""
    if isinstance(signal.getsignal(signal.SIGINT), Once):
        signal.signal(signal.SIGINT, signal.default_int_handler)
