from ntops.host.elementwise import unary_float
from ntops.kernels.sin import premake
from ntops.launch.recorder import repeatable


@repeatable
def sin(input, *, out=None):
    """Compute ``sin(input)``, in radians, elementwise, as :func:`torch.sin` does.

    :param input: A tensor of any shape and dtype.
    :param out: Where the result is written, under torch's rules of resizing, casting and overlap.
    :return: A tensor of the shape of ``input``; of the default dtype where ``input`` is not floating-point.
    :raises TypeError: An argument has the wrong type.
    :raises RuntimeError: The device or ``out`` does not fit.
    :raises NotImplementedError: A complex, sparse, quantized or nested ``input``.
    """
    return unary_float(premake, input, out)
