"""``input @ other`` of tensors of any dims, which the host has arranged as a batch of matrices."""

from ntops.kernels import mm
from ntops.kernels.mm import application, arrangement

__all__ = ["application", "arrangement", "premake"]


def premake(
    batch=0,
    dtype=None,
    compute_dtype=None,
    input_precision=None,
    block_size_m=None,
    block_size_n=None,
    block_size_k=None,
):
    """Return the arrangement, application and tensors of ``matmul``: those of ``mm`` with ``batch`` batch dims."""
    return mm.premake(batch, dtype, compute_dtype, input_precision, block_size_m, block_size_n, block_size_k)
