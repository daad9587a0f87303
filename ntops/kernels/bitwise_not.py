"""``~input``, elementwise; logical on bools."""

import functools

from ntops.kernels import element_wise


def application(output, input):
    output = ~input


def premake(ndim, dtype=None, block_size=None):
    """Arrangement, application and tensors of ``bitwise_not``."""
    tensors = element_wise.tensors(ndim, "input", dtype=dtype)

    return functools.partial(element_wise.arrangement, block_size=block_size), application, tensors
