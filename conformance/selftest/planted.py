"""The planted defects as implementations: ``--implementation conformance.selftest.planted:<name>``; what they are
built on is ``conformance.selftest.planted:right``, and right kernels are ``conformance.selftest.planted:kernels``."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from conformance.selftest import correct, defect_registry, families


def __getattr__(name: str) -> Any:
    if name == "right":
        return SimpleNamespace(**{op: correct.right(op) for op in families.ALL})
    if name == "kernels":
        from conformance.selftest.kernels import RIGHT

        return SimpleNamespace(**RIGHT)
    found = None if name.startswith("__") else defect_registry.bank().get(name)
    if found is None:
        raise AttributeError(name)
    return found.implementation.provider
