import torch

from ntops.host.arguments import check_tensor
from ntops.host.elementwise import elementwise
from ntops.host.repetition import repeatable
from ntops.kernels.isnan import premake


@repeatable
def isnan(input):
    """Whether ``input`` is NaN, elementwise, as :func:`torch.isnan`; no integer is.

    :param input: A tensor of any shape and dtype.
    :return: A bool tensor of the shape of ``input``.
    :raises TypeError: ``input`` is no tensor.
    :raises NotImplementedError: A complex, sparse, quantized or nested ``input``, or one that requires grad.
    """
    check_tensor(input, "input")

    return elementwise(premake, {"input": input}, torch.bool, promoted=input.dtype)
