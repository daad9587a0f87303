"""Run Triton kernels on CPU tensors without a GPU, correct where Triton's interpreter is wrong, and check every access.

``install()`` makes any Triton kernel, NineToothed or raw ``@triton.jit``, run here. Nothing of Triton or NineToothed is
imported earlier, since Triton reads ``TRITON_INTERPRET`` while it is imported.
"""

import os

from ntops.interpreter.errors import MemoryFault
from ntops.interpreter.ninetoothed_files import prepare_ninetoothed

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

    from ntops.interpreter import installation

    installation.install()
    prepare_ninetoothed()
    _installed = True

    if os.environ.get("NTOPS_CHECK_MEMORY", "0") not in ("", "0"):
        from ntops.interpreter.watching import watch_from_here

        watch_from_here()


def installed() -> bool:
    """Tell whether Triton kernels run on CPU tensors in this process."""
    return _installed


def watch(inputs=(), writable=()):
    """Return a context that checks every load and store of its kernels; see
    :func:`ntops.interpreter.watching.watch`."""
    from ntops.interpreter import watching

    return watching.watch(inputs, writable)
