import torch

from ntops.host.arguments import check_tensor
from ntops.host.elementwise import elementwise
from ntops.kernels.isnan import premake
from ntops.launch.recorder import repeatable


@repeatable
def isnan(input):
    """Tell whether ``input`` is NaN, elementwise, as :func:`torch.isnan` does; integers never are.

    :param input: A tensor of any shape and dtype.
    :return: A bool tensor of the shape of ``input``.
    :raises TypeError: ``input`` is not a tensor.
    :raises NotImplementedError: A complex, sparse, quantized or nested ``input``.
    """
    check_tensor(input, "input")

    return elementwise(premake, {"input": input}, torch.bool, promoted=input.dtype)
