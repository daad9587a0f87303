import torch

from ntops.host.arguments import check_real
from ntops.host.norms import has_rows, norm, normalized
from ntops.kernels import long_rows
from ntops.kernels.layer_norm import premake
from ntops.launch.recorder import repeatable


@repeatable
def layer_norm(input, normalized_shape, weight=None, bias=None, eps=1e-5):
    """Compute ``(input - mean) / sqrt(variance + eps) * weight + bias`` over the last dims.

    The function is :func:`torch.nn.functional.layer_norm`; Ba, Kiros and Hinton, arXiv:1607.06450. The variance is the
    biased one, from two passes. Half types are computed in float32.

    :param input: A floating-point tensor, (*, *normalized_shape).
    :param normalized_shape: The sizes of the dims that are normalized together, a tuple of ints; an int for the last
        dim alone, which torch's function does not take.
    :param weight: A tensor of ``normalized_shape``, or ``None``.
    :param bias: A tensor of ``normalized_shape``, or ``None``.
    :param eps: A number, added to the variance.
    :return: A contiguous tensor of the shape and dtype of ``input``.
    :raises TypeError: An argument has the wrong type.
    :raises RuntimeError: Shapes, dtypes or devices do not fit.
    :raises NotImplementedError: An integer or bool ``input``, unless it has no rows; complex, sparse, quantized or
        nested operands.
    """
    shape = normalized(input, normalized_shape, {"weight": weight, "bias": bias})
    eps = check_real(eps, "eps")

    if not has_rows(input, shape):
        return torch.empty(input.shape, dtype=input.dtype, device=input.device)

    if not input.dtype.is_floating_point:
        raise NotImplementedError(
            f"argument 'input' has dtype {input.dtype}; layer_norm is defined for floating-point only"
        )

    for name, parameter in (("weight", weight), ("bias", bias)):
        if parameter is not None and parameter.dtype is not input.dtype:
            raise RuntimeError(f"argument '{name}' must have the dtype {input.dtype} of 'input', not {parameter.dtype}")

    affine = {"weight": 1.0 if weight is None else weight, "bias": 0.0 if bias is None else bias}
    return norm(premake, long_rows.layer_norm, input, shape, affine, eps)
