from ntops.host.arguments import check_tensor
from ntops.host.elementwise import elementwise
from ntops.host.repetition import repeatable
from ntops.kernels.abs import premake


@repeatable
def abs(input, *, out=None):
    """``abs(input)``, elementwise, as :func:`torch.abs`.

    :param input: A tensor of any shape.
    :param out: Where the result is written; it has the very dtype of ``input``.
    :return: A tensor of the shape and dtype of ``input``.
    :raises TypeError: An argument has the wrong type.
    :raises RuntimeError: The device or ``out`` does not fit.
    :raises NotImplementedError: A complex, sparse, quantized or nested ``input``, or one that requires grad.
    """
    check_tensor(input, "input")

    return elementwise(premake, {"input": input}, input.dtype, out=out, exact_out=True)
