"""``result * (gradient - sum(gradient * result))`` over the last dim: the gradient of ``softmax``."""

import ninetoothed.language as ntl
from ninetoothed import Tensor

from ntops.kernels import constants, reduction

arrangement = reduction.arrangement


def application(output, gradient, result, compute_dtype):
    slopes = ntl.cast(gradient, compute_dtype)
    values = ntl.cast(result, compute_dtype)
    mean = ntl.sum(slopes * values, axis=1)
    output = ntl.cast(values * (slopes - mean[:, None]), output.dtype)


def application_looped(output, gradient, result, compute_dtype):
    products = ntl.cast(gradient[0], compute_dtype) * ntl.cast(result[0], compute_dtype)

    for i in range(1, gradient.shape[0]):
        products += ntl.cast(gradient[i], compute_dtype) * ntl.cast(result[i], compute_dtype)

    mean = ntl.sum(products, axis=1)

    for i in range(output.shape[0]):
        slopes = ntl.cast(gradient[i], compute_dtype) - mean[:, None]
        output[i] = ntl.cast(ntl.cast(result[i], compute_dtype) * slopes, output.dtype.dtype)


def premake(ndim, dtype=None, output_dtype=None, compute_dtype=None, looped=False, block_rows=None, block_columns=None):
    """Return the arrangement, application and tensors of ``softmax_backward``; ``looped`` where a row is longer than a
    tile."""
    compute_dtype = compute_dtype or constants.accumulated(dtype)
    output = Tensor(ndim, dtype=output_dtype or dtype, name="output")
    operands = (Tensor(shape=output.shape, dtype=dtype, other=0, name=name) for name in ("gradient", "result"))
    variant = application_looped if looped else application

    return reduction.bind(variant, (output, *operands), compute_dtype, looped, block_rows, block_columns)
