"""Searches that end early, for tests of what comes of the first failure."""

from __future__ import annotations

from typing import Any

from conformance.search_state import Search
from conformance.session import Run


class UntilOneFails(Run):
    """A run whose searches draw nothing more once a check has failed: what is drawn after that only shows others."""

    def _round(self, draws: Any, seed: str, settings: Any, search: Search, **how: Any) -> bool:
        return not search.failing and super()._round(draws, seed, settings, search, **how)
