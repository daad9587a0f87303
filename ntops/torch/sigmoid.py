from ntops.host.elementwise import unary_float
from ntops.kernels.sigmoid import premake
from ntops.launch.recorder import repeatable


@repeatable
def sigmoid(input, *, out=None):
    """Compute ``1 / (1 + exp(-input))`` elementwise, as :func:`torch.sigmoid` does.

    :param input: A tensor of any shape and dtype.
    :param out: Where the result is written, under torch's rules of resizing, casting and overlap.
    :return: A tensor of the shape of ``input``; of the default dtype where ``input`` is not floating-point.
    :raises TypeError: An argument has the wrong type.
    :raises RuntimeError: The device or ``out`` does not fit.
    :raises NotImplementedError: A complex, sparse, quantized or nested ``input``.
    """
    return unary_float(premake, input, out)
