"""A time limit for one case, for as long as cases run in the process that judges them."""

from __future__ import annotations

import contextlib
import faulthandler
import signal
import threading
from collections.abc import Generator
from typing import Any

GRACE = 10.0
"""Seconds after which a case that did not end at its limit (it hangs in native code) ends the process."""


class CaseTimeout(BaseException):
    """A case ran past its limit. Not an Exception, so that the code that is judged does not catch it by accident."""


@contextlib.contextmanager
def limit(seconds: float, log: int | None = None) -> Generator[None]:
    """Raise CaseTimeout in the block after ``seconds``; 0 is no limit. Only in a main thread, by SIGALRM.

    A signal reaches Python code only. Where the block hangs in native code, the stacks of all threads are written to
    the file descriptor ``log`` after ``GRACE`` seconds more and the process exits with 1: pytest-xdist then reports
    the worker as crashed and carries on with another.
    """
    if not seconds or threading.current_thread() is not threading.main_thread():
        yield
        return

    def expire(*_: Any) -> None:
        raise CaseTimeout(f"no result after {seconds:g} s")

    previous = signal.signal(signal.SIGALRM, expire)
    # Repeated, since an exception raised in a destructor or a callback of C code is swallowed.
    signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)
    if log is not None:
        faulthandler.dump_traceback_later(seconds + GRACE, exit=True, file=log)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
        if log is not None:
            faulthandler.cancel_dump_traceback_later()
