"""``input / sqrt(mean(input^2) + eps) * weight`` over the last dim."""

import ninetoothed.language as ntl
from ninetoothed import Tensor

from ntops.kernels import constants, reduction

arrangement = reduction.arrangement


def application(output, input, weight, count, eps, compute_dtype):
    values = ntl.cast(input, compute_dtype)
    mean = ntl.sum(values * values, axis=1) / ntl.cast(count, compute_dtype)
    scale = 1 / ntl.sqrt(mean + ntl.cast(eps, compute_dtype))
    output = ntl.cast(values * scale[:, None] * ntl.cast(weight, compute_dtype), output.dtype)


def application_looped(output, input, weight, count, eps, compute_dtype, far):
    first = ntl.cast(input[0], compute_dtype)
    squares = first * first
    lost = first * 0

    for i in range(1, input.shape[0]):
        values = ntl.cast(input[i], compute_dtype)
        square = values * values
        grown = squares + square

        if far:
            # A lane adds up thousands of numbers, so it compensates for rounding (W. Kahan, CACM 8(1), 1965).
            lost += square - (grown - squares)

        squares = grown

    if far:
        # An infinite sum has no rounding error.
        squares = ntl.where(squares < float("inf"), squares + lost, squares)

    mean = ntl.sum(squares, axis=1) / ntl.cast(count, compute_dtype)
    scale = 1 / ntl.sqrt(mean + ntl.cast(eps, compute_dtype))

    for i in range(output.shape[0]):
        values = ntl.cast(input[i], compute_dtype) * scale[:, None]
        output[i] = ntl.cast(values * ntl.cast(weight[i], compute_dtype), output.dtype.dtype)


def premake(
    ndim,
    dtype=None,
    weight_dtype=None,
    compute_dtype=None,
    scalars=None,
    looped=False,
    far=True,
    block_rows=None,
    block_columns=None,
):
    """Return the arrangement, application and tensors of ``rms_norm``; ``looped`` where a row is longer than a tile.

    ``far`` is whether a row may have many tiles, so that sums compensate for rounding. ``count`` is the number of
    elements that are reduced.
    """
    compute_dtype = compute_dtype or constants.accumulated(dtype)
    scalars = scalars or constants.numbers(dtype, "count", "eps")
    output = Tensor(ndim, dtype=dtype, name="output")
    tensors = (
        output,
        Tensor(shape=output.shape, dtype=dtype, other=0, name="input"),
        Tensor(shape=output.shape, dtype=weight_dtype or dtype, other=0, name="weight"),
        Tensor(0, dtype=scalars.get("count"), name="count"),
        Tensor(0, dtype=scalars.get("eps"), name="eps"),
    )
    variant = application_looped if looped else application
    literals = {"far": far} if looped else {}

    # The caller of an ahead-of-time kernel says which rows the parameters have.
    parameters = () if dtype else ("weight",)

    return reduction.bind(variant, tensors, compute_dtype, looped, block_rows, block_columns, parameters, **literals)
