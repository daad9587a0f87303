"""``input @ mat2`` of each two matrices of a batch."""

from ntops.kernels import mm
from ntops.kernels.mm import application, arrangement

__all__ = ["application", "arrangement", "premake"]


def premake(batch=1, **arguments):
    """Arrangement, application and tensors of ``bmm``: those of ``mm`` with ``batch`` batch dims."""
    return mm.premake(batch=batch, **arguments)
