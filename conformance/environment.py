"""The versions that decide what a run gives, and the names of processor and GPU."""

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
    """Return the version of an installed package; None where it is not installed."""
    try:
        return metadata.version(package)
    # A name that no package can have is a ValueError.
    except (metadata.PackageNotFoundError, ValueError):
        return None


def environment() -> dict[str, Any]:
    """Return the versions that decide what a run gives, the platform, and the name of the GPU."""
    return {
        "versions": {"python": platform.python_version(), **{package: version(package) for package in PACKAGES}},
        "platform": platform.platform(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }


def line(implementation: str, device_name: str) -> str:
    """Return one line about where and when a failure was found. ``device_name``: the GPU's, or "cpu"."""
    package = implementation.partition(":")[0].partition(".")[0]
    packages = dict.fromkeys(("torch", "triton", package))
    versions = [f"{name} {found}" for name in packages if (found := version(name))]
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    where = device_name if device_name != "cpu" else f"CPU ({platform.machine()}), no GPU"
    return f"found {today} on {where} with {', '.join(versions)}, Python {platform.python_version()}"
