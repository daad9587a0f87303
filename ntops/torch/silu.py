from ntops.host.elementwise import activation
from ntops.kernels.silu import premake
from ntops.launch.recorder import repeatable


@repeatable
def silu(input, inplace=False):
    """Compute ``input * sigmoid(input)`` elementwise, as :func:`torch.nn.functional.silu` does.

    :param input: A floating-point tensor of any shape.
    :param inplace: Whether ``input`` itself is written and returned.
    :return: A tensor of the shape and dtype of ``input``.
    :raises TypeError: ``input`` is not a tensor.
    :raises RuntimeError: ``input`` is expanded and to be written.
    :raises NotImplementedError: An integer, bool, complex, sparse, quantized or nested ``input``.
    """
    return activation(premake, input, "silu", inplace)
