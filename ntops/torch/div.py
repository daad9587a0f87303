import torch

from ntops.host.arguments import check_operands
from ntops.host.elementwise import check_any_tensor, elementwise
from ntops.host.promotion import accumulate_dtype, result_dtype, rounded
from ntops.kernels.div import premake
from ntops.launch.recorder import repeatable


@repeatable
def div(input, other, *, rounding_mode=None, out=None):
    """Compute ``input / other`` elementwise, as :func:`torch.div` does.

    :param input: A tensor of any shape, or a number.
    :param other: A tensor that broadcasts with ``input``, or a number; one of the two is a tensor.
    :param rounding_mode: ``None`` (true division, of integers too), ``"trunc"`` (towards zero) or ``"floor"``.
    :param out: Where the result is written, under torch's rules of resizing, casting and overlap.
    :return: A tensor of the broadcast shape and the promoted dtype; the default dtype for integers without rounding.
    :raises TypeError: An argument has the wrong type.
    :raises RuntimeError: Shapes, devices, ``rounding_mode`` or ``out`` do not fit.
    :raises NotImplementedError: Bools with rounding; complex, sparse, quantized or nested operands.
    """
    check_operands(input=input, other=other)

    if rounding_mode is not None and not isinstance(rounding_mode, str):
        raise TypeError(f"argument 'rounding_mode' must be a str or None, not {type(rounding_mode).__name__}")

    if rounding_mode not in (None, "trunc", "floor"):
        raise RuntimeError(f"argument 'rounding_mode' must be None, 'trunc' or 'floor', not {rounding_mode!r}")

    dtype = result_dtype(input, other)

    if rounding_mode is None and not dtype.is_floating_point:
        dtype = torch.get_default_dtype()

    check_any_tensor({"input": input, "other": other}, out)

    if rounding_mode is not None and dtype is torch.bool:
        raise NotImplementedError("arguments 'input' and 'other' are bool, which division with rounding leaves out")

    if not isinstance(input, torch.Tensor) and dtype.is_floating_point:
        # For half types, torch keeps a divisor that is a number in float32, but rounds a dividend.
        input = rounded(input, dtype)

    compute_dtype = accumulate_dtype(dtype)

    if dtype in (torch.int8, torch.int16, torch.uint8):
        compute_dtype = torch.int32  # in which no quotient overflows, and -1 can be told from 255
    elif rounding_mode == "floor" and dtype.is_floating_point:
        compute_dtype = torch.float64  # libdevice's remainder of float32 takes subnormal numbers for zeros

        if not isinstance(other, torch.Tensor):
            other = rounded(other, accumulate_dtype(dtype))

    return elementwise(
        premake,
        {"input": input, "other": other},
        dtype,
        out=out,
        compute_dtype=compute_dtype,
        rounding_mode=rounding_mode,
        integer=not dtype.is_floating_point,
    )
