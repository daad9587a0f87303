from ntops.host.arguments import check_operands
from ntops.host.elementwise import elementwise
from ntops.host.promotion import accumulate_dtype, result_dtype
from ntops.kernels.mul import premake
from ntops.launch.recorder import repeatable


@repeatable
def mul(input, other, *, out=None):
    """Compute ``input * other`` elementwise, as :func:`torch.mul` does.

    :param input: A tensor of any shape, or a number.
    :param other: A tensor that broadcasts with ``input``, or a number; one of the two is a tensor.
    :param out: Where the result is written, under torch's rules of resizing, casting and overlap.
    :return: A tensor of the broadcast shape and the promoted dtype.
    :raises TypeError: An argument has the wrong type.
    :raises RuntimeError: Shapes, devices or ``out`` do not fit.
    :raises NotImplementedError: Complex, sparse, quantized or nested operands.
    """
    check_operands(input=input, other=other)
    dtype = result_dtype(input, other)
    return elementwise(premake, {"input": input, "other": other}, dtype, out=out, compute_dtype=accumulate_dtype(dtype))
