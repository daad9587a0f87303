from ntops.host.arguments import check_tensor
from ntops.host.elementwise import elementwise
from ntops.kernels.abs import premake
from ntops.launch.recorder import repeatable


@repeatable
def abs(input, *, out=None):
    """Compute ``abs(input)`` elementwise, as :func:`torch.abs` does.

    :param input: A tensor of any shape.
    :param out: Where the result is written; it has the very dtype of ``input``.
    :return: A tensor of the shape and dtype of ``input``.
    :raises TypeError: An argument has the wrong type.
    :raises RuntimeError: The device or ``out`` does not fit.
    :raises NotImplementedError: A complex, sparse, quantized or nested ``input``.
    """
    check_tensor(input, "input")

    return elementwise(premake, {"input": input}, input.dtype, out=out, exact_out=True)
