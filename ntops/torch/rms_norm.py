import torch

from ntops.host.arguments import check_real
from ntops.host.dim_order import channels_last
from ntops.host.norms import has_rows, norm, normalized
from ntops.host.promotion import accumulate_dtype
from ntops.kernels import long_rows
from ntops.kernels.rms_norm import premake
from ntops.launch.recorder import repeatable


@repeatable
def rms_norm(input, normalized_shape, weight=None, eps=None):
    """Compute ``input / sqrt(mean(input^2) + eps) * weight`` over the last dims.

    The function is :func:`torch.nn.functional.rms_norm`; Zhang and Sennrich, arXiv:1910.07467. Half types are computed
    in float32.

    :param input: A floating-point tensor, (*, *normalized_shape).
    :param normalized_shape: The sizes of the dims that are normalized together, a tuple of ints; an int for the last
        dim alone, which torch's function does not take.
    :param weight: A tensor of ``normalized_shape``, or ``None``.
    :param eps: A number; ``None``: the epsilon of the compute dtype.
    :return: A tensor of the shape and dtype of ``input``, channels-last where ``input`` is, else contiguous.
    :raises TypeError: An argument has the wrong type.
    :raises ValueError: ``input`` has fewer dims than ``normalized_shape``.
    :raises RuntimeError: Shapes or devices do not fit.
    :raises NotImplementedError: An integer or bool ``input``, unless it has no rows; complex, sparse, quantized or
        nested operands.
    """
    shape = normalized(input, normalized_shape, {"weight": weight}, few_dims=ValueError)
    eps = None if eps is None else check_real(eps, "eps")

    if not has_rows(input, shape) and (weight is None or weight.dtype is input.dtype):
        return torch.empty(input.shape, dtype=input.dtype, device=input.device)

    if not input.dtype.is_floating_point:
        raise NotImplementedError(
            f"argument 'input' has dtype {input.dtype}; rms_norm is defined for floating-point only"
        )

    if eps is None:
        eps = torch.finfo(accumulate_dtype(input.dtype)).eps

    output = norm(premake, long_rows.rms_norm, input, shape, {"weight": 1.0 if weight is None else weight}, eps)
    memory_format = channels_last(input)

    return output if memory_format is None else output.contiguous(memory_format=memory_format)
