"""Rotation of pairs of elements by the angles whose sines and cosines are given."""

import functools

import ninetoothed.language as ntl

from ntops.kernels import element_wise


def application(output, second_output, first, second, sin, cos, compute_dtype):
    x0 = ntl.cast(first, compute_dtype)
    x1 = ntl.cast(second, compute_dtype)
    sine = ntl.cast(sin, compute_dtype)
    cosine = ntl.cast(cos, compute_dtype)
    # In place, both are read before either is written.
    output = ntl.cast(x0 * cosine - x1 * sine, output.dtype)
    second_output = ntl.cast(x0 * sine + x1 * cosine, output.dtype)


def premake(ndim, dtype=None, compute_dtype=None, block_size=None):
    """Arrangement, application and tensors of ``rotary_position_embedding``: the halves of the pairs are apart."""
    tensors = (
        *element_wise.tensors(ndim, "second_output", "first", "second", "sin", "cos", dtype=dtype),
        element_wise.constant("compute_dtype", compute_dtype),
    )

    return functools.partial(element_wise.arrangement, block_size=block_size), application, tensors
