import torch

from ntops.host.arguments import check_real
from ntops.host.norms import has_rows, norm, normalized
from ntops.host.repetition import repeatable
from ntops.kernels import walked_rows
from ntops.kernels.layer_norm import premake


@repeatable
def layer_norm(input, normalized_shape, weight=None, bias=None, eps=1e-5):
    """``(input - mean) / sqrt(variance + eps) * weight + bias`` over the last dims, as torch's of that name.

    :func:`torch.nn.functional.layer_norm`; Ba, Kiros and Hinton, arXiv:1607.06450. The variance is the biased one,
    from two passes. Computed in float32 for half types.

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
        nested operands, or one that requires grad.
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
    return norm(premake, walked_rows.layer_norm, input, shape, affine, eps)
