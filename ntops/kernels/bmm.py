"""``input @ mat2`` for each pair of matrices of a batch."""

from ntops.kernels import mm
from ntops.kernels.mm import application, arrangement

__all__ = ["application", "arrangement", "premake"]


def premake(
    batch=1,
    dtype=None,
    compute_dtype=None,
    input_precision=None,
    block_size_m=None,
    block_size_n=None,
    block_size_k=None,
):
    """Return the arrangement, application and tensors of ``bmm``: those of ``mm`` with ``batch`` batch dims."""
    return mm.premake(batch, dtype, compute_dtype, input_precision, block_size_m, block_size_n, block_size_k)
