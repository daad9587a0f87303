from ntops.host.elementwise import comparison
from ntops.kernels.gt import premake
from ntops.launch.recorder import repeatable


@repeatable
def gt(input, other, *, out=None):
    """Compute ``input > other`` elementwise, as :func:`torch.gt` does.

    :param input: A tensor of any shape.
    :param other: A tensor that broadcasts with ``input``, or a number, which is first wrapped to the dtype to which
        both are promoted.
    :param out: Where the result is written, under torch's rules of resizing, casting and overlap.
    :return: A bool tensor of the broadcast shape.
    :raises TypeError: An argument has the wrong type.
    :raises RuntimeError: Shapes, devices or ``out`` do not fit.
    :raises NotImplementedError: Complex, sparse, quantized or nested operands.
    """
    return comparison(premake, input, other, out)
