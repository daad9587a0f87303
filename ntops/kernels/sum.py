"""The sum over dims."""

import ninetoothed.language as ntl

from ntops.kernels import constants, dim_reduction

arrangement = dim_reduction.arrangement


def application(output, input, compute_dtype):
    # Each lane adds up its own elements, so that few roundings follow each other.
    total = ntl.cast(input[0], compute_dtype)

    for i in range(1, input.shape[0]):
        total += ntl.cast(input[i], compute_dtype)

    output = ntl.cast(ntl.sum(total, axis=1), output.dtype)


def premake(
    ndim,
    kept=1,
    dtype=None,
    output_dtype=None,
    compute_dtype=None,
    block_rows=None,
    block_columns=None,
    steps=-1,
):
    """Return the arrangement, application and tensors of ``sum``; see :func:`dim_reduction.bind`."""
    output_dtype = output_dtype or constants.summed(dtype)
    compute_dtype = compute_dtype or constants.accumulated(output_dtype)
    tensors = dim_reduction.tensors(ndim, kept, dtype, output_dtype)

    return dim_reduction.bind(application, tensors, compute_dtype, kept, block_rows, block_columns, steps)
