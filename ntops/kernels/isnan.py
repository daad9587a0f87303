"""``isnan(input)``, elementwise."""

import functools

from ntops.kernels import element_wise
from ntops.kernels.element_wise import arrangement


def application(output, input):
    output = input != input


def premake(ndim, dtype=None, output_dtype=None, block_size=None):
    """Return the arrangement, application and tensors of ``isnan``."""
    output_dtype = output_dtype or (dtype and "i1")
    tensors = element_wise.tensors(ndim, "input", dtype=dtype, output_dtype=output_dtype)

    return functools.partial(arrangement, block_size=block_size), application, tensors
