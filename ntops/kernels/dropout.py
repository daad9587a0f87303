"""``input * mask / (1 - p)``, elementwise, with a mask that the element's index and a seed alone decide."""

import functools

import ninetoothed.language as ntl

from ntops.kernels import constants, element_wise


def application(output, input, index, seed, rate, scale, compute_dtype):
    # The offset of an element of a contiguous tensor of this shape is its number, whatever the layout and the tile.
    number = ntl.cast(index.offsets(), ntl.int64)
    low = ntl.cast(number, ntl.uint32)
    high = ntl.cast(number >> 32, ntl.uint32)
    random, _, _, _ = ntl.philox(seed, low, high, low * 0, low * 0)
    kept = ntl.uint_to_uniform_float(random) >= rate
    # What is dropped is multiplied by 0, so that NaN and infinities become NaN as in torch.
    factor = ntl.where(kept, ntl.cast(scale, compute_dtype), 0)
    output = ntl.cast(ntl.cast(input, compute_dtype) * factor, output.dtype)


def premake(ndim, dtype=None, compute_dtype=None, scalars=None, block_size=None):
    """Arrangement, application and tensors of ``dropout``.

    ``index`` is any tensor of the shape of the output and with the strides of a contiguous one; it is not read.
    ``rate`` is the probability to be dropped (ahead of time, NineToothed puts C in place of every "p" of a launch, if
    that is an argument's name), ``scale`` 1 / (1 - rate).
    """
    compute_dtype = compute_dtype or constants.accumulated(dtype)
    scalars = scalars or ({"seed": "i64", "rate": "fp64", "scale": "fp64"} if dtype else None)
    tensors = element_wise.tensors(ndim, "input", "index", "seed", "rate", "scale", dtype=dtype, scalars=scalars)
    arrangement = functools.partial(element_wise.arrangement, block_size=block_size)

    return arrangement, *constants.bind(application, tensors, compute_dtype=compute_dtype)
