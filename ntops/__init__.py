"""Operators for large-language-model work on GPUs, with PyTorch's signatures: kernels in NineToothed, Triton, Gluon."""

import importlib
from typing import TYPE_CHECKING

from ntops import _runtime  # noqa: F401  (it chooses compiled or interpreted before Triton is imported)
from ntops._version import __version__

if TYPE_CHECKING:
    from ntops import kernels, library, torch

__all__ = ["__version__", "kernels", "library", "torch"]


def __getattr__(name):
    """Import a package on first access."""
    if name in ("kernels", "library", "torch"):
        return importlib.import_module(f"{__name__}.{name}")

    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__():
    return sorted({*globals(), *__all__})
