from ntops.host.elementwise import activation
from ntops.host.repetition import repeatable
from ntops.kernels.silu import premake


@repeatable
def silu(input, inplace=False):
    """``input * sigmoid(input)``, elementwise, as :func:`torch.nn.functional.silu`.

    :param input: A floating-point tensor of any shape.
    :param inplace: Whether ``input`` itself is written and returned.
    :return: A tensor of the shape and dtype of ``input``.
    :raises TypeError: ``input`` is no tensor.
    :raises RuntimeError: ``input`` is expanded and to be written.
    :raises NotImplementedError: An integer, bool, complex, sparse, quantized or nested ``input``, or one that
        requires grad.
    """
    return activation(premake, input, "silu", inplace)
