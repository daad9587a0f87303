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
from hypothesis.strategies._internal import core

T = TypeVar("T")


def settings(examples: int, filtered: bool = False) -> hypothesis.settings:
    """Return Hypothesis's settings for one round of drawing. ``filtered``: as for ``drawn``."""
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
        suppress_health_check=(HealthCheck.too_slow, *((HealthCheck.filter_too_much,) if filtered else ())),
    )


def run(test: Callable[[T], None], draws: SearchStrategy[T], seed: object, settings: hypothesis.settings) -> None:
    """Call ``test`` with each drawn value, and raise what Hypothesis raises for its failures."""
    with independent():
        # The settings last: a seed takes the database out of those before it.
        settings(hypothesis.seed(seed)(hypothesis.given(draws)(test)))()


def drawn(draws: SearchStrategy[T], seed: object, examples: int, filtered: bool = False) -> list[T]:
    """Draw one round and return the drawn values.

    :param filtered: A filter may refuse most of what is drawn; without this Hypothesis raises FailedHealthCheck.
    """
    found: list[T] = []

    def collect(one: T) -> None:
        found.append(one)

    run(collect, draws, seed, settings(examples, filtered))
    return found


@contextmanager
def independent() -> Generator[None]:
    """Draw without the constants of modules: Hypothesis takes one draw in forty from the source of those that are
    loaded and not installed. A gate would judge other cases in a checkout than in an installation, and after any edit.

    Nothing that draws meanwhile sees them: what Hypothesis tries while it shrinks shares the cache.
    """
    if not all(hasattr(providers, name) for name in _REPLACED):
        yield
        return
    own = {name: getattr(providers, name) for name in _REPLACED}
    vars(providers).update(_REPLACED)
    try:
        yield
    finally:
        vars(providers).update(own)


def _no_constants() -> object:
    return providers.Constants()


_REPLACED = {"_get_local_constants": _no_constants, "CONSTANTS_CACHE": LRUCache(1024)}
"""These stand in for Hypothesis's own; versions of it that have other names read no constants, or otherwise."""


@contextmanager
def unread() -> Generator[None]:
    """Define composite strategies without reading their functions' sources. Hypothesis parses each one, to warn of a
    function that draws nothing: two thirds of the time in which a process imports all operators' strategies."""
    if not hasattr(core, _READS):
        yield
        return
    own = getattr(core, _READS)
    setattr(core, _READS, lambda function: True)
    try:
        yield
    finally:
        setattr(core, _READS, own)


_READS = "is_first_param_referenced_in_function"
"""Versions of Hypothesis in which it has another name read the sources."""
