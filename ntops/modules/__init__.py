"""Modules over the operators; exported from ``ntops.torch``."""

from ntops.modules.fp8_linear import FP8Linear

__all__ = ["FP8Linear"]
