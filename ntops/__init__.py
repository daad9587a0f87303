"""Operators for large-language-model work on GPUs, with PyTorch's signatures: kernels in NineToothed, Triton, Gluon."""

from ntops import _runtime  # noqa: I001  (it chooses compiled or interpreted before Triton is imported)
from ntops import kernels, torch
from ntops.host import compiler_hash

__all__ = ["kernels", "torch"]
__version__ = "0.1.0"

if not _runtime.INTERPRETED:
    compiler_hash.keep()
