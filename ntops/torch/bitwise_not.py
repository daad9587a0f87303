from ntops.host.arguments import check_tensor
from ntops.host.elementwise import elementwise
from ntops.kernels.bitwise_not import premake
from ntops.launch.recorder import repeatable


@repeatable
def bitwise_not(input, *, out=None):
    """Compute ``~input`` elementwise, as :func:`torch.bitwise_not` does.

    :param input: A tensor of any shape.
    :param out: Where the result is written; it has the very dtype of ``input``.
    :return: A tensor of the shape and dtype of ``input``.
    :raises NotImplementedError: ``input`` is floating-point.
    :raises TypeError: An argument has the wrong type.
    :raises RuntimeError: The device or ``out`` does not fit.
    :raises NotImplementedError: A complex, sparse, quantized or nested ``input``.
    """
    check_tensor(input, "input")

    if input.dtype.is_floating_point:
        raise NotImplementedError(
            f"argument 'input' has dtype {input.dtype}; bitwise functions take integers and bools"
        )

    return elementwise(premake, {"input": input}, input.dtype, out=out, exact_out=True)
