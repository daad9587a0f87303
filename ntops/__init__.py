"""Operators for large-language-model work on GPUs, with PyTorch's signatures, written in NineToothed on Triton."""

from ntops import _runtime  # noqa: I001  (before anything that imports Triton: it chooses compiled or interpreted)
from ntops import kernels, torch

__all__ = ["kernels", "torch"]
__version__ = "0.1.0"
