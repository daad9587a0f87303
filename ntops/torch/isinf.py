import torch

from ntops.host.arguments import check_tensor
from ntops.host.elementwise import elementwise
from ntops.host.repetition import repeatable
from ntops.kernels.isinf import premake


@repeatable
def isinf(input):
    """Whether ``input`` is infinite, elementwise, as :func:`torch.isinf`; no integer is.

    :param input: A tensor of any shape and dtype.
    :return: A bool tensor of the shape of ``input``.
    :raises TypeError: ``input`` is no tensor.
    :raises NotImplementedError: A complex, sparse, quantized or nested ``input``, or one that requires grad.
    """
    check_tensor(input, "input")
    # No integer is infinite in float32.
    compute_dtype = torch.float64 if input.dtype is torch.float64 else torch.float32

    return elementwise(premake, {"input": input}, torch.bool, promoted=input.dtype, compute_dtype=compute_dtype)
