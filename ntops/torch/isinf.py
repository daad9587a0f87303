import torch

from ntops.host.arguments import check_tensor
from ntops.host.elementwise import elementwise
from ntops.kernels.isinf import premake
from ntops.launch.recorder import repeatable


@repeatable
def isinf(input):
    """Tell whether ``input`` is infinite, elementwise, as :func:`torch.isinf` does; integers never are.

    :param input: A tensor of any shape and dtype.
    :return: A bool tensor of the shape of ``input``.
    :raises TypeError: ``input`` is not a tensor.
    :raises NotImplementedError: A complex, sparse, quantized or nested ``input``.
    """
    check_tensor(input, "input")
    # No integer is infinite in float32.
    compute_dtype = torch.float64 if input.dtype is torch.float64 else torch.float32

    return elementwise(premake, {"input": input}, torch.bool, promoted=input.dtype, compute_dtype=compute_dtype)
