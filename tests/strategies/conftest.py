from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis.strategies import SearchStrategy


@pytest.fixture
def examples() -> Callable[..., list[Any]]:
    """What a strategy draws in a bounded number of examples, the same on every run of the same set of modules
    (Hypothesis tries the constants that it finds in them), so thresholds must leave room."""

    def collect(strategy: SearchStrategy, count: int = 300) -> list[Any]:
        found: list[Any] = []

        @settings(max_examples=count, database=None, derandomize=True, suppress_health_check=list(HealthCheck))
        @given(strategy)
        def run(example: Any) -> None:
            found.append(example)

        run()
        return found

    return collect
