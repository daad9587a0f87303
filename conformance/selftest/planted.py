"""The planted defects as implementations: ``--implementation conformance.selftest.planted:<name>``; what they are
built on is ``conformance.selftest.planted:right``, and right kernels are ``conformance.selftest.planted:kernels``."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from conformance.selftest import bank, families, sound


def __getattr__(name: str) -> Any:
    if name == "right":
        return SimpleNamespace(**{op: sound.right(op) for op in families.ALL})
    if name == "kernels":
        from conformance.selftest.kernels import RIGHT

        return SimpleNamespace(**RIGHT)
    found = None if name.startswith("__") else bank.bank().get(name)
    if found is None:
        raise AttributeError(name)
    return found.implementation.provider
