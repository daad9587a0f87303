"""Show progress with a bar if rich is installed, else with a line of text now and then."""

import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import Protocol


class Step(Protocol):
    def __call__(self, done: str) -> None:
        """Count one more as done; ``done`` describes it."""


@contextmanager
def shown(title: str, total: int) -> Generator[Step]:
    """Return a context that shows on standard error how many of ``total`` are done."""
    try:
        import rich.console
        import rich.progress
    except ImportError:
        yield _Text(title, total)
        return

    console = rich.console.Console(stderr=True)

    if not console.is_terminal:
        yield _Text(title, total)
        return

    columns = (*rich.progress.Progress.get_default_columns(), "{task.completed}/{task.total}")

    with rich.progress.Progress(*columns, console=console) as bar:
        task = bar.add_task(title, total=total)

        def step(done: str) -> None:
            bar.update(task, description=f"{title}: {done}", advance=1)

        yield step


class _Text:
    """A display with a line every few seconds, and one at the end."""

    INTERVAL = 10.0

    def __init__(self, title: str, total: int) -> None:
        self.title, self.total, self.count = title, total, 0
        self.begun = self.written = time.monotonic()

    def __call__(self, done: str) -> None:
        self.count += 1
        now = time.monotonic()

        if now - self.written >= self.INTERVAL or self.count == self.total:
            self.written = now
            text = f"{self.title}: {self.count}/{self.total} after {now - self.begun:.0f} s, {done}"
            print(text, file=sys.stderr, flush=True)
