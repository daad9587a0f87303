import torch

from ntops.host.arguments import check_fits, check_operands, check_scale
from ntops.host.elementwise import elementwise
from ntops.host.promotion import accumulate_dtype, result_dtype
from ntops.kernels.sub import premake
from ntops.launch.recorder import repeatable


@repeatable
def sub(input, other, *, alpha=1, out=None):
    """Compute ``input - alpha * other`` elementwise, as :func:`torch.sub` does.

    :param input: A tensor of any shape, or a number.
    :param other: A tensor that broadcasts with ``input``, or a number; one of the two is a tensor.
    :param alpha: A number; an integer where the result is one.
    :param out: Where the result is written, under torch's rules of resizing, casting and overlap.
    :return: A tensor of the broadcast shape and the promoted dtype.
    :raises TypeError: An argument has the wrong type.
    :raises RuntimeError: A bool operand; shapes, devices, ``alpha`` or ``out`` do not fit.
    :raises NotImplementedError: Complex, sparse, quantized or nested operands.
    """
    check_operands(input=input, other=other)

    for name, value in (("input", input), ("other", other)):
        if isinstance(value, bool) or (isinstance(value, torch.Tensor) and value.dtype is torch.bool):
            raise RuntimeError(f"argument '{name}' is bool, which cannot be subtracted; use bitwise_not or logical_xor")

    dtype = result_dtype(input, other)
    alpha = check_scale(alpha, out.dtype if isinstance(out, torch.Tensor) else dtype, "alpha")
    # torch adds -alpha times other, so -alpha has to fit; the least int64 wraps.
    check_fits(alpha if alpha == -(2**63) else -alpha, dtype, "alpha")

    if dtype.is_floating_point:
        # For an int 0 that is 0., but multiplied and subtracted only -0. gives the same.
        alpha = -float(-alpha)

    return elementwise(
        premake,
        {"input": input, "other": other},
        dtype,
        out=out,
        compute_dtype=accumulate_dtype(dtype),
        numbers={"alpha": alpha},
    )
