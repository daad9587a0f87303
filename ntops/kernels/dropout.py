"""``input * mask / (1 - p)``, elementwise, with a mask that only the element's index and a seed determine."""

import functools

import ninetoothed.language as ntl

from ntops.kernels import constants, element_wise
from ntops.kernels.element_wise import arrangement


def application(output, input, index, seed, threshold, scale, compute_dtype):
    # In a contiguous tensor of this shape, an element's offset is its index, whatever the layout and the tile.
    number = ntl.cast(index.offsets(), ntl.int64)
    low = ntl.cast(number >> 2, ntl.uint32)
    high = ntl.cast(number >> 34, ntl.uint32)
    first, second, third, fourth = ntl.philox(seed, low, high, low * 0, low * 0, 7)
    even = ntl.where((number & 2) == 0, first, third)
    odd = ntl.where((number & 2) == 0, second, fourth)
    random = ntl.where((number & 1) == 0, even, odd)
    # A threshold of 2^32, which drops all, is cut to 2^32 - 1; the scale of 0 drops the one number left over. Dropped
    # elements are multiplied by 0, so that NaN and infinities become NaN as in torch.
    limit = ntl.cast(ntl.minimum(threshold, 4294967295), ntl.uint32)
    factor = ntl.where(random >= limit, ntl.cast(scale, compute_dtype), 0)
    output = ntl.cast(ntl.cast(input, compute_dtype) * factor, output.dtype)


def application_contiguous(output, input, index, seed, threshold, scale, compute_dtype):
    # Four elements in a row share a counter, and each takes one of its four numbers. Use the index of the first of the
    # four, and likewise its seed unless all share a single one: the last of the four may be past the end.
    number = ntl.cast(index.offsets(), ntl.int64)
    evens, _ = ntl.split(ntl.reshape(number, (number.shape[0] // 4, 2, 2)))
    start, _ = ntl.split(evens)

    if seed.shape[0] == 1:
        key = seed
    else:
        even_seeds, _ = ntl.split(ntl.reshape(seed, (number.shape[0] // 4, 2, 2)))
        key, _ = ntl.split(even_seeds)

    low = ntl.cast(start >> 2, ntl.uint32)
    high = ntl.cast(start >> 34, ntl.uint32)
    first, second, third, fourth = ntl.philox(key, low, high, low * 0, low * 0, 7)
    random = ntl.reshape(ntl.join(ntl.join(first, third), ntl.join(second, fourth)), number.shape)
    limit = ntl.cast(ntl.minimum(threshold, 4294967295), ntl.uint32)
    factor = ntl.where(random >= limit, ntl.cast(scale, compute_dtype), 0)
    output = ntl.cast(ntl.cast(input, compute_dtype) * factor, output.dtype)


def premake(ndim, contiguous=False, dtype=None, compute_dtype=None, scalars=None, block_size=None):
    """Return the arrangement, application and tensors of ``dropout``.

    ``index`` is any tensor with the output's shape and the strides of a contiguous one; it is not read. With
    ``contiguous``, all three tensors are contiguous, which makes the same mask from a quarter of the random numbers.
    Elements are dropped if their 32 random bits are below ``threshold``, 2^32 times the probability (ahead of time,
    NineToothed puts C in place of every "p" of a launch, if that is an argument's name); ``scale`` is 1 / (1 - p).
    """
    compute_dtype = compute_dtype or constants.accumulated(dtype)
    scalars = scalars or ({"seed": "i64", "threshold": "i64", "scale": "fp64"} if dtype else None)
    tensors = element_wise.tensors(ndim, "input", "index", "seed", "threshold", "scale", dtype=dtype, scalars=scalars)
    arranged = functools.partial(arrangement, block_size=block_size)
    variant = application_contiguous if contiguous else application

    return arranged, *constants.bind(variant, tensors, compute_dtype=compute_dtype)
