"""Bring OpSpecs by the names that ``--specs`` takes: modules, files ``*.py``, definitions of FlashInfer Trace."""

from __future__ import annotations

from collections.abc import Sequence

from conformance import spec as specs


def bring(names: Sequence[str]) -> list[str]:
    """Add the OpSpecs of these to the registry of this process, as ``spec.bring`` does. Raises SpecError."""
    return specs.bring(names, _defined)


def _defined(path: str) -> specs.OpSpec:
    # What derives bounds takes a while to import, and most processes need none of it.
    from conformance import flashinfer_trace

    return flashinfer_trace.operator(path)
