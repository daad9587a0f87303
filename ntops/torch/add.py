import torch

from ntops.host.arguments import check_fits, check_operands, check_scale
from ntops.host.elementwise import elementwise
from ntops.host.promotion import accumulate_dtype, result_dtype
from ntops.kernels.add import premake
from ntops.launch.recorder import repeatable


@repeatable
def add(input, other, *, alpha=1, out=None):
    """Compute ``input + alpha * other`` elementwise, as :func:`torch.add` does.

    :param input: A tensor of any shape, or a number.
    :param other: A tensor that broadcasts with ``input``, or a number; one of the two is a tensor.
    :param alpha: A number; an integer where the result is one, a bool only where it is bool.
    :param out: Where the result is written, under torch's rules of resizing, casting and overlap.
    :return: A tensor of the broadcast shape and the promoted dtype.
    :raises TypeError: An argument has the wrong type.
    :raises RuntimeError: Shapes, devices, ``alpha`` or ``out`` do not fit.
    :raises NotImplementedError: Complex, sparse, quantized or nested operands.
    """
    check_operands(input=input, other=other)
    dtype = result_dtype(input, other)
    # torch on CUDA checks what out= can take.
    alpha = check_scale(alpha, out.dtype if isinstance(out, torch.Tensor) else dtype, "alpha")
    check_fits(alpha, dtype, "alpha")
    # Sums of bools are logical: 1 + 1 is 2 in the kernel, and True again in the result.
    alpha = bool(alpha) if dtype is torch.bool else alpha

    return elementwise(
        premake,
        {"input": input, "other": other},
        dtype,
        out=out,
        compute_dtype=accumulate_dtype(dtype),
        numbers={"alpha": alpha},
    )
