"""Draw with Hypothesis: the same for a seed on every machine, whatever else is loaded."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TypeVar

import hypothesis
from hypothesis import HealthCheck, Phase, Verbosity
from hypothesis.internal.cache import LRUCache
from hypothesis.internal.conjecture import providers
from hypothesis.strategies import SearchStrategy

T = TypeVar("T")


def settings(examples: int) -> hypothesis.settings:
    """Hypothesis's settings for one round of drawing."""
    return hypothesis.settings(
        backend="hypothesis",
        max_examples=examples,
        # The seed makes a run repeatable, saved cases are replayed from their own files, and cases have their own
        # time limit.
        database=None,
        derandomize=False,
        deadline=None,
        print_blob=False,
        report_multiple_bugs=True,
        phases=(Phase.generate, Phase.shrink),
        verbosity=Verbosity.quiet,
        # Judging runs inside of the draw's test, and an interpreted kernel is slow by nature.
        suppress_health_check=(HealthCheck.too_slow,),
    )


def run(test: Callable[[T], None], draws: SearchStrategy[T], seed: object, settings: hypothesis.settings) -> None:
    """Call ``test`` with what is drawn, and raise what Hypothesis raises of its failures."""
    with _independent():
        # The settings last: a seed takes the database out of those before it.
        settings(hypothesis.seed(seed)(hypothesis.given(draws)(test)))()


def drawn(draws: SearchStrategy[T], seed: object, examples: int) -> list[T]:
    """Draw one round, and return it."""
    found: list[T] = []

    def collect(one: T) -> None:
        found.append(one)

    run(collect, draws, seed, settings(examples))
    return found


@contextmanager
def _independent() -> Generator[None]:
    """Draw without the constants of modules: Hypothesis takes one draw in forty from the source of those that are
    loaded and not installed. A gate would judge other cases in a checkout than in an installation, and after any edit.

    A provider of ours takes the place of Hypothesis's own, since it searches differently with any other.
    """
    if _Provider is None:
        yield
        return
    own, cache = providers.AVAILABLE_PROVIDERS["hypothesis"], providers.CONSTANTS_CACHE
    providers.AVAILABLE_PROVIDERS["hypothesis"], providers.CONSTANTS_CACHE = _Provider, _permitted
    try:
        yield
    finally:
        providers.AVAILABLE_PROVIDERS["hypothesis"], providers.CONSTANTS_CACHE = own, cache


def _without_modules() -> type[providers.PrimitiveProvider] | None:
    """A provider that knows no constants of modules; None for versions of Hypothesis that read none, or otherwise."""
    if not hasattr(providers, "Constants") or not hasattr(providers, "CONSTANTS_CACHE"):
        return None
    return type("Provider", (providers.HypothesisProvider,), {"_local_constants": providers.Constants()})


_Provider = _without_modules()
_permitted = LRUCache(1024)
"""Constants by what is drawn."""
