"""Rotation of pairs of elements by the angles whose sines and cosines are given."""

import functools

import ninetoothed.language as ntl

from ntops.kernels import constants, element_wise


def application(output, rotated, first, second, sin, cos, compute_dtype):
    x0 = ntl.cast(first, compute_dtype)
    x1 = ntl.cast(second, compute_dtype)
    sine = ntl.cast(sin, compute_dtype)
    cosine = ntl.cast(cos, compute_dtype)
    # In place, both are read before either is written.
    output = ntl.cast(x0 * cosine - x1 * sine, output.dtype)
    rotated = ntl.cast(x0 * sine + x1 * cosine, output.dtype)


def premake(ndim, dtype=None, compute_dtype=None, block_size=None):
    """Arrangement, application and tensors of ``rotary_position_embedding``: the halves of the pairs are apart."""
    compute_dtype = compute_dtype or constants.accumulated(dtype)
    tensors = element_wise.tensors(ndim, "rotated", "first", "second", "sin", "cos", dtype=dtype)
    arrangement = functools.partial(element_wise.arrangement, block_size=block_size)

    return arrangement, *constants.bind(application, tensors, compute_dtype=compute_dtype)
