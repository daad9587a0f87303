"""The mean over dims: the sum divided by the number of elements."""

import ninetoothed.language as ntl
from ninetoothed import Tensor

from ntops.kernels import constants, dim_reduction

arrangement = dim_reduction.arrangement


def application(output, input, count, compute_dtype):
    total = ntl.cast(input[0], compute_dtype)

    for i in range(1, input.shape[0]):
        total += ntl.cast(input[i], compute_dtype)

    output = ntl.cast(ntl.sum(total, axis=1) / ntl.cast(count, compute_dtype), output.dtype)


def premake(
    ndim,
    kept=1,
    dtype=None,
    output_dtype=None,
    compute_dtype=None,
    scalars=None,
    block_rows=None,
    block_columns=None,
    steps=-1,
):
    """Return the arrangement, application and tensors of ``mean``; see :func:`dim_reduction.bind`."""
    output_dtype = output_dtype or constants.floating(dtype)
    compute_dtype = compute_dtype or constants.accumulated(output_dtype)
    scalars = scalars or constants.numbers(output_dtype, "count")
    tensors = dim_reduction.tensors(ndim, kept, dtype, output_dtype)
    tensors += (Tensor(0, dtype=scalars.get("count"), name="count"),)

    return dim_reduction.bind(application, tensors, compute_dtype, kept, block_rows, block_columns, steps)
