"""``input @ other`` of tensors of any dims, once the host has made a batch of matrices of them."""

from ntops.kernels import mm
from ntops.kernels.mm import application, arrangement

__all__ = ["application", "arrangement", "premake"]


def premake(batch=0, **arguments):
    """Arrangement, application and tensors of ``matmul``: those of ``mm`` with ``batch`` batch dims."""
    return mm.premake(batch=batch, **arguments)
