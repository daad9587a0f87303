"""``exp(input - max) / sum(exp(input - max))`` over the last dim."""

import ninetoothed.language as ntl
from ninetoothed import Tensor
from ninetoothed.language import libdevice

from ntops.kernels import constants, reduction

arrangement = reduction.arrangement


def application(output, input, compute_dtype):
    # A dtype= argument casts first, so the input is rounded to the output's dtype before anything is computed.
    values = ntl.cast(ntl.cast(input, output.dtype), compute_dtype)
    # NaN propagates: a NaN in a row makes its sum NaN, +inf gives inf - inf, and a row of -inf gives -inf - -inf.
    #
    # Triton's own exp of float32 rounds the product with log2(e): tens of ulps far below the maximum. A sum does not
    # show it, a result does.
    powers = libdevice.exp(values - ntl.max(values, axis=1)[:, None])
    output = ntl.cast(powers * (1 / ntl.sum(powers, axis=1))[:, None], output.dtype)


def application_looped(output, input, compute_dtype):
    # Online softmax: the running sum is rescaled whenever the running maximum grows.
    first = ntl.cast(ntl.cast(input[0], output.dtype.dtype), compute_dtype)
    maximum = ntl.max(first, axis=1)
    # A block of -inf at the front adds nothing, and -inf - -inf must not make it NaN.
    reference = ntl.where(maximum == float("-inf"), 0, maximum)
    total = ntl.sum(ntl.exp(first - reference[:, None]), axis=1)

    for i in range(1, input.shape[0]):
        values = ntl.cast(ntl.cast(input[i], output.dtype.dtype), compute_dtype)
        new_maximum = ntl.maximum(maximum, ntl.max(values, axis=1))
        reference = ntl.where(new_maximum == float("-inf"), 0, new_maximum)
        total = total * ntl.exp(maximum - reference) + ntl.sum(ntl.exp(values - reference[:, None]), axis=1)
        maximum = new_maximum

    scale = 1 / total

    for i in range(output.shape[0]):
        values = ntl.cast(ntl.cast(input[i], output.dtype.dtype), compute_dtype)
        powers = libdevice.exp(values - reference[:, None])
        output[i] = ntl.cast(powers * scale[:, None], output.dtype.dtype)


def premake(ndim, dtype=None, output_dtype=None, compute_dtype=None, looped=False, block_rows=None, block_columns=None):
    """Return the arrangement, application and tensors of ``softmax``; ``looped`` where a row is longer than a tile."""
    output_dtype = output_dtype or dtype
    compute_dtype = compute_dtype or constants.accumulated(output_dtype)
    output = Tensor(ndim, dtype=output_dtype, name="output")
    tensors = (output, Tensor(shape=output.shape, dtype=dtype, other=float("-inf"), name="input"))
    variant = application_looped if looped else application

    return reduction.bind(variant, tensors, compute_dtype, looped, block_rows, block_columns)
