"""A timer that gives pytest-benchmark times that another clock measured."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pytest_benchmark.fixture import BenchmarkFixture


class Replay:
    """A clock that advances by the measured times; it is a benchmark's ``timer``."""

    def __init__(self) -> None:
        self.now = 0.0
        self._pending: Iterator[float] = iter(())

    def __call__(self) -> float:
        return self.now

    def step(self) -> None:
        self.now += next(self._pending)

    def keep(self, benchmark: BenchmarkFixture, seconds: Iterable[float]) -> None:
        """Make these seconds the rounds of a benchmark whose timer this clock is."""
        found = list(seconds)
        self._pending = iter(found)
        benchmark.pedantic(self.step, rounds=len(found))
