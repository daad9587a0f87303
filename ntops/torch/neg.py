import torch

from ntops.host.arguments import check_tensor
from ntops.host.elementwise import elementwise
from ntops.kernels.neg import premake
from ntops.launch.recorder import repeatable


@repeatable
def neg(input, *, out=None):
    """Compute ``-input`` elementwise, as :func:`torch.neg` does.

    :param input: A tensor of any shape.
    :param out: Where the result is written; it has the very dtype of ``input``.
    :return: A tensor of the shape and dtype of ``input``.
    :raises RuntimeError: ``input`` is bool.
    :raises TypeError: An argument has the wrong type.
    :raises RuntimeError: The device or ``out`` does not fit.
    :raises NotImplementedError: A complex, sparse, quantized or nested ``input``.
    """
    check_tensor(input, "input")

    if input.dtype is torch.bool:
        raise RuntimeError("argument 'input' is bool, which has no negative; use bitwise_not")

    return elementwise(
        premake, {"input": input}, input.dtype, out=out, exact_out=True, floating=input.dtype.is_floating_point
    )
