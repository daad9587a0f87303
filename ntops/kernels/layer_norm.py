"""``(input - mean) / sqrt(variance + eps) * weight + bias`` over the last dim."""

import ninetoothed.language as ntl
from ninetoothed import Tensor

from ntops.kernels import constants, reduction

arrangement = reduction.arrangement


def application(output, input, weight, bias, count, eps, compute_dtype):
    values = ntl.cast(input, compute_dtype)
    number = ntl.cast(count, compute_dtype)
    mean = ntl.sum(values, axis=1) / number
    # Two passes over registers: subtracting the squared mean from the mean of squares would cancel for large means.
    centered = ntl.where(input.offsets(-1) < input.source.shape[-1], values - mean[:, None], 0)
    variance = ntl.sum(centered * centered, axis=1) / number
    scale = 1 / ntl.sqrt(variance + ntl.cast(eps, compute_dtype))
    scaled = centered * scale[:, None] * ntl.cast(weight, compute_dtype)
    output = ntl.cast(scaled + ntl.cast(bias, compute_dtype), output.dtype)


def application_looped(output, input, weight, bias, count, eps, compute_dtype, far):
    number = ntl.cast(count, compute_dtype)
    # Each lane keeps the mean of its elements and the squares about it (B. P. Welford, Technometrics 4, 1962): memory
    # is read once for both. With possibly thousands of steps it compensates for rounding (W. Kahan, CACM 8, 1965).
    mean = ntl.cast(input[0], compute_dtype)
    squares = mean * 0
    lost = mean * 0
    lost_squares = mean * 0
    seen = number * 0 + 1
    inside = input[0].offsets(-1) < input.source.shape[-1]

    for i in range(1, input.shape[0]):
        values = ntl.cast(input[i], compute_dtype)
        seen += 1
        inside = input[i].offsets(-1) < input.source.shape[-1]
        step = ntl.where(inside, values - mean - lost, 0)
        change = step * (1 / seen)
        grown = mean + change

        if far:
            lost += change - (grown - mean)

        mean = grown
        change = step * (values - mean)
        grown = squares + change

        if far:
            lost_squares += change - (grown - squares)

        squares = grown

    if far:
        mean += lost
        squares += lost_squares

    # The last tile has no elements for some lanes.
    weights = ntl.where(inside, seen, seen - 1)
    lanes = mean
    mean = ntl.sum(lanes * weights, axis=1) / number
    apart = lanes - mean[:, None]
    squares += apart * apart * weights
    variance = ntl.sum(squares, axis=1) / number
    scale = 1 / ntl.sqrt(variance + ntl.cast(eps, compute_dtype))

    for i in range(output.shape[0]):
        centered = ntl.cast(input[i], compute_dtype) - mean[:, None]
        scaled = centered * scale[:, None] * ntl.cast(weight[i], compute_dtype)
        output[i] = ntl.cast(scaled + ntl.cast(bias[i], compute_dtype), output.dtype.dtype)


def premake(
    ndim,
    dtype=None,
    weight_dtype=None,
    bias_dtype=None,
    compute_dtype=None,
    scalars=None,
    looped=False,
    far=True,
    block_rows=None,
    block_columns=None,
):
    """Return the arrangement, application and tensors of ``layer_norm``; ``looped`` where a row is longer than a tile.

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
        Tensor(shape=output.shape, dtype=bias_dtype or dtype, other=0, name="bias"),
        Tensor(0, dtype=scalars.get("count"), name="count"),
        Tensor(0, dtype=scalars.get("eps"), name="eps"),
    )
    variant = application_looped if looped else application
    literals = {"far": far} if looped else {}

    # The caller of an ahead-of-time kernel says which rows the parameters have.
    parameters = () if dtype else ("weight", "bias")

    return reduction.bind(variant, tensors, compute_dtype, looped, block_rows, block_columns, parameters, **literals)
