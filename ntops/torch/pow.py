import math
import numbers

import torch

from ntops.host.arguments import check_fits, check_operands, check_tensor
from ntops.host.dim_order import contiguous_strides
from ntops.host.elementwise import elementwise
from ntops.host.output import check_inference, resize_out
from ntops.host.promotion import accumulate_dtype, result_dtype, rounded
from ntops.kernels.pow import premake
from ntops.launch.recorder import repeatable


@repeatable
def pow(input, exponent, *, out=None):
    """Compute ``input ** exponent`` elementwise, as :func:`torch.pow` does.

    :param input: A tensor of any shape, or a number.
    :param exponent: A tensor that broadcasts with ``input``, or a number; one of the two is a tensor.
    :param out: Where the result is written, under torch's rules of resizing, casting and overlap.
    :return: A tensor of the broadcast shape and the promoted dtype; powers of integers wrap.
    :raises TypeError: An argument has the wrong type, or both are numbers.
    :raises RuntimeError: Shapes, devices or ``out`` do not fit; a negative number as the exponent of integers.
    :raises NotImplementedError: Bools; complex, sparse, quantized or nested operands.
    """
    check_operands(input=input, exponent=exponent)

    if not isinstance(input, torch.Tensor) and not isinstance(exponent, torch.Tensor):
        raise TypeError("arguments 'input' and 'exponent' are numbers; make one of them a tensor")

    dtype = result_dtype(input, exponent)
    integer = not dtype.is_floating_point

    if not isinstance(exponent, torch.Tensor):
        if integer and exponent < 0:
            raise RuntimeError(f"argument 'exponent' is {exponent}; integers have no negative integer powers")

        check_fits(exponent, dtype, "exponent", accumulated=False)

    if dtype is torch.bool and not isinstance(exponent, bool):
        raise NotImplementedError("arguments 'input' and 'exponent' are bool, of which powers are not defined")

    # True is not 1 to torch here.
    if out is not None and isinstance(input, numbers.Real) and not isinstance(input, bool) and input == 1:
        return _ones(exponent, out)

    operands = {"input": input, "exponent": exponent}

    if not isinstance(exponent, torch.Tensor) and exponent == 2:
        kind, compute_dtype = "square", accumulate_dtype(dtype)
    elif integer:
        # Powers wrap in 64 bits as they do in fewer.
        kind, compute_dtype = "integer", torch.int64
    else:
        operands = {name: _rounded(value, dtype) for name, value in operands.items()}
        power = operands["exponent"]
        ordinary = not isinstance(power, torch.Tensor) and math.isfinite(power) and power != 0
        kind, compute_dtype = "ordinary" if ordinary else None, accumulate_dtype(dtype)

    return elementwise(
        premake,
        operands,
        dtype,
        out=out,
        # torch does the same for numbers to the power of tensors.
        contiguous=not isinstance(input, torch.Tensor),
        compute_dtype=compute_dtype,
        kind=kind,
    )


def _ones(exponent, out):
    """Return the powers of 1 in ``out``: torch reads nothing for them, and accepts any dtype and any overlap."""
    check_tensor(out, "out")

    if out.device != exponent.device:
        raise RuntimeError(f"argument 'out' is on {out.device}, but argument 'exponent' is on {exponent.device}")

    check_inference(out, "out")
    resize_out(out, exponent.shape, contiguous_strides(exponent.shape))
    return out.fill_(1)


def _rounded(operand, dtype):
    """Return the operand as torch uses it in a floating-point power: a number is first rounded to the dtype."""
    if isinstance(operand, torch.Tensor):
        return operand

    return rounded(operand, dtype)
