"""``input - max - log(sum(exp(input - max)))`` over the last dim."""

import ninetoothed.language as ntl
from ninetoothed import Tensor
from ninetoothed.language import libdevice

from ntops.kernels import constants, reduction

arrangement = reduction.arrangement


def application(output, input, compute_dtype):
    # A dtype= argument casts first.
    values = ntl.cast(ntl.cast(input, output.dtype), compute_dtype)
    # NaN propagates as in softmax: +inf gives inf - inf, and a row of -inf gives -inf - -inf.
    below = values - ntl.max(values, axis=1)[:, None]
    logarithm = libdevice.log(ntl.sum(ntl.exp(below), axis=1))
    output = ntl.cast(below - logarithm[:, None], output.dtype)


def application_looped(output, input, compute_dtype):
    # The running sum is rescaled whenever the running maximum grows; -inf - -inf must not make it NaN.
    first = ntl.cast(ntl.cast(input[0], output.dtype.dtype), compute_dtype)
    maximum = ntl.max(first, axis=1)
    reference = ntl.where(maximum == float("-inf"), 0, maximum)
    total = ntl.sum(ntl.exp(first - reference[:, None]), axis=1)

    for i in range(1, input.shape[0]):
        values = ntl.cast(ntl.cast(input[i], output.dtype.dtype), compute_dtype)
        new_maximum = ntl.maximum(maximum, ntl.max(values, axis=1))
        reference = ntl.where(new_maximum == float("-inf"), 0, new_maximum)
        total = total * ntl.exp(maximum - reference) + ntl.sum(ntl.exp(values - reference[:, None]), axis=1)
        maximum = new_maximum

    logarithm = libdevice.log(total)

    for i in range(output.shape[0]):
        below = ntl.cast(ntl.cast(input[i], output.dtype.dtype), compute_dtype) - reference[:, None]
        output[i] = ntl.cast(below - logarithm[:, None], output.dtype.dtype)


def premake(ndim, dtype=None, output_dtype=None, compute_dtype=None, looped=False, block_rows=None, block_columns=None):
    """Return the arrangement, application and tensors of ``log_softmax``; ``looped`` where a row is longer than a
    tile."""
    output_dtype = output_dtype or dtype
    compute_dtype = compute_dtype or constants.accumulated(output_dtype)
    output = Tensor(ndim, dtype=output_dtype, name="output")
    tensors = (output, Tensor(shape=output.shape, dtype=dtype, other=float("-inf"), name="input"))
    variant = application_looped if looped else application

    return reduction.bind(variant, tensors, compute_dtype, looped, block_rows, block_columns)
