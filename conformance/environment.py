"""Versions of all that decides what a run gives, and the names of processor and GPU."""

from __future__ import annotations

import datetime
import functools
import platform
from importlib import metadata
from typing import Any

import torch

PACKAGES = ("torch", "triton", "ninetoothed", "numpy", "hypothesis", "ntops")


@functools.cache
def version(package: str) -> str | None:
    """The version of an installed package; None where it is none."""
    try:
        return metadata.version(package)
    # A name that no package can have is a ValueError.
    except (metadata.PackageNotFoundError, ValueError):
        return None


def environment() -> dict[str, Any]:
    """Versions of all that decides what a run gives, and the names of processor and GPU."""
    return {
        "versions": {"python": platform.python_version(), **{package: version(package) for package in PACKAGES}},
        "platform": platform.platform(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }


def line(implementation: str, device_name: str) -> str:
    """Where and when a failure was found, in one line. ``device_name``: that of the GPU, or "cpu"."""
    package = implementation.partition(":")[0].partition(".")[0]
    packages = dict.fromkeys(("torch", "triton", package))
    versions = [f"{name} {found}" for name in packages if (found := version(name))]
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    where = device_name if device_name != "cpu" else f"CPU ({platform.machine()}), no GPU"
    return f"found {today} on {where} with {', '.join(versions)}, Python {platform.python_version()}"
