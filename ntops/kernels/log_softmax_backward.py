"""``gradient - exp(result) * sum(gradient)`` over the last dim: the gradient of ``log_softmax``."""

import ninetoothed.language as ntl
from ninetoothed import Tensor
from ninetoothed.language import libdevice

from ntops.kernels import constants, reduction

arrangement = reduction.arrangement


def application(output, gradient, result, compute_dtype):
    slopes = ntl.cast(gradient, compute_dtype)
    powers = libdevice.exp(ntl.cast(result, compute_dtype))
    output = ntl.cast(slopes - powers * ntl.sum(slopes, axis=1)[:, None], output.dtype)


def application_looped(output, gradient, result, compute_dtype):
    slopes = ntl.cast(gradient[0], compute_dtype)

    for i in range(1, gradient.shape[0]):
        slopes += ntl.cast(gradient[i], compute_dtype)

    total = ntl.sum(slopes, axis=1)

    for i in range(output.shape[0]):
        powers = libdevice.exp(ntl.cast(result[i], compute_dtype))
        output[i] = ntl.cast(ntl.cast(gradient[i], compute_dtype) - powers * total[:, None], output.dtype.dtype)


def premake(ndim, dtype=None, output_dtype=None, compute_dtype=None, looped=False, block_rows=None, block_columns=None):
    """Return the arrangement, application and tensors of ``log_softmax_backward``; ``looped`` where a row is longer
    than a tile."""
    compute_dtype = compute_dtype or constants.accumulated(dtype)
    output = Tensor(ndim, dtype=output_dtype or dtype, name="output")
    operands = (Tensor(shape=output.shape, dtype=dtype, other=0, name=name) for name in ("gradient", "result"))
    variant = application_looped if looped else application

    return reduction.bind(variant, (output, *operands), compute_dtype, looped, block_rows, block_columns)
