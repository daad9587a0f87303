from ntops.host.elementwise import bitwise
from ntops.kernels.bitwise_and import premake
from ntops.launch.recorder import repeatable


@repeatable
def bitwise_and(input, other, *, out=None):
    """Compute ``input & other`` elementwise, logical on bools, as :func:`torch.bitwise_and` does.

    :param input: An integer or bool tensor of any shape, or a number.
    :param other: A tensor that broadcasts with ``input``, or a number; one of the two is a tensor.
    :param out: Where the result is written, under torch's rules of resizing, casting and overlap.
    :return: A tensor of the broadcast shape and the promoted dtype.
    :raises TypeError: An argument has the wrong type.
    :raises RuntimeError: Shapes, devices or ``out`` do not fit.
    :raises NotImplementedError: Floating-point, complex, sparse, quantized or nested operands; a
        floating-point ``out``.
    """
    return bitwise(premake, input, other, out)
