"""Triton kernels without a GPU: run on CPU tensors, mended where Triton's interpreter lies, every access watched.

``install()`` makes any Triton kernel, NineToothed or raw ``@triton.jit``, run here. Nothing of Triton or NineToothed
is imported before that, since Triton reads ``TRITON_INTERPRET`` while it is imported.
"""

import os

from ntops.interpreter.faults import MemoryFault
from ntops.interpreter.nine import prepare_ninetoothed

__all__ = ["MemoryFault", "install", "installed", "prepare_ninetoothed", "watch"]

_installed = False


def install() -> None:
    """Make Triton kernels run on CPU tensors in this process; a second call does nothing.

    :raises ImportError: ``TRITON_INTERPRET=1`` was not set before Triton was imported, or this version of Triton is
        not one of those that the interpreter was tested with.
    """
    global _installed

    if _installed:
        return

    from ntops.interpreter import _triton

    _triton.install()
    prepare_ninetoothed()
    _installed = True

    if os.environ.get("NTOPS_CHECK_MEMORY", "0") not in ("", "0"):
        from ntops.interpreter.watching import watch_from_here

        watch_from_here()


def installed() -> bool:
    """Whether Triton kernels run on CPU tensors in this process."""
    return _installed


def watch(inputs=(), writable=()):
    """Check every load and store of the kernels that run inside; see :func:`ntops.interpreter.watching.watch`."""
    from ntops.interpreter import watching

    return watching.watch(inputs, writable)
