"""``~input``, elementwise; logical on bools."""

import functools

from ntops.kernels import element_wise
from ntops.kernels.element_wise import arrangement


def application(output, input):
    output = ~input


def premake(ndim, dtype=None, block_size=None):
    """Return the arrangement, application and tensors of ``bitwise_not``."""
    tensors = element_wise.tensors(ndim, "input", dtype=dtype)

    return functools.partial(arrangement, block_size=block_size), application, tensors
