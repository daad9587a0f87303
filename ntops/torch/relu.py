import torch

from ntops.host.arguments import check_tensor
from ntops.host.elementwise import elementwise
from ntops.kernels.relu import premake
from ntops.launch.recorder import repeatable


@repeatable
def relu(input, inplace=False):
    """Compute ``max(input, 0)`` elementwise, keeping NaN, as :func:`torch.nn.functional.relu` does.

    :param input: A tensor of any shape, not of bool.
    :param inplace: Whether ``input`` itself is written and returned.
    :return: A tensor of the shape and dtype of ``input``.
    :raises TypeError: ``input`` is not a tensor.
    :raises RuntimeError: ``input`` is bool, or expanded and to be written.
    :raises NotImplementedError: A complex, sparse, quantized or nested ``input``.
    """
    check_tensor(input, "input")

    if input.dtype is torch.bool:
        raise RuntimeError("argument 'input' is bool, of which relu is not defined")

    return elementwise(premake, {"input": input}, input.dtype, inplace=inplace)
