"""Dropout by a mask that a seed determines, the same in forward and backward."""

from ntops.host.arguments import check_real, check_tensor, common_device
from ntops.host.dim_order import contiguous_strides, result_strides
from ntops.host.elementwise import launch
from ntops.host.output import given
from ntops.host.promotion import accumulate_dtype
from ntops.kernels.dropout import premake
from ntops.launch import boundary, recorder
from ntops.launch.recorder import repeatable


@repeatable
def masked(input, seed, p):
    """Apply :func:`ntops.torch.dropout` with the mask of ``seed``: the same call gives the same result.

    :param input: A floating-point tensor of any shape.
    :param seed: An int64 tensor, 0-d, on the device of ``input``.
    :param p: The probability, from 0 to 1.
    :return: A tensor of the shape, strides and dtype that :func:`ntops.torch.dropout` gives.
    """
    p = check_real(p, "p")
    check_tensor(input, "input")
    check_tensor(seed, "seed")
    common_device({"input": input, "seed": seed})

    if not input.dtype.is_floating_point and p < 1:
        raise NotImplementedError(f"argument 'input' has dtype {input.dtype}, which can't be scaled")

    return dropped(input, p, seed)


def dropped(input, p, seed, inplace=False):
    """Apply the mask of ``seed`` to a checked ``input``, in new memory or in place.

    :param seed: As in :func:`masked`; of no account if ``p`` is 1.
    """
    if inplace:
        output = input
    else:
        strides = result_strides(input.shape, [input], has_numbers=False)
        output = recorder.empty(input.shape, strides, input.dtype, input.device)

    if not boundary.has_work(output):
        return output

    if not input.dtype.is_floating_point:
        return output.zero_()

    compute_dtype = accumulate_dtype(input.dtype)
    operands = {
        "output": output,
        "input": input,
        "index": output.as_strided(input.shape, contiguous_strides(input.shape)),
        "seed": seed,
        "threshold": round(p * 2**32),
        "scale": 1 / (1 - p) if p < 1 else 0.0,
    }
    contiguous = input.is_contiguous() and output.is_contiguous()
    launch(premake, input.shape, operands, compute_dtype, contiguous=contiguous)

    return given(input if inplace else None, output)
