"""What the norms share: the dims that are normalized, the affine parameters, and the launch."""

import operator

import torch

from ntops.host import rows
from ntops.host.arguments import check_tensor, common_device


def normalized(input, normalized_shape, parameters, few_dims=RuntimeError):
    """Check the arguments of a norm, and return ``normalized_shape`` as a tuple.

    :param parameters: The affine parameters by argument name, each a tensor or ``None``.
    :param few_dims: What is raised where ``input`` has fewer dims than ``normalized_shape``.
    :raises TypeError: An argument has the wrong type.
    :raises RuntimeError: Shapes or devices do not fit.
    """
    check_tensor(input, "input")

    if not isinstance(normalized_shape, (tuple, list)):
        kind = type(normalized_shape).__name__
        raise TypeError(f"argument 'normalized_shape' must be a tuple of ints, not {kind}")

    try:
        shape = tuple(operator.index(size) for size in normalized_shape)
    except TypeError:
        raise TypeError(f"argument 'normalized_shape' must be a tuple of ints, not {normalized_shape!r}") from None

    if not shape:
        raise RuntimeError("argument 'normalized_shape' is empty; it needs at least one dim")

    present = {name: parameter for name, parameter in parameters.items() if parameter is not None}

    for name, parameter in present.items():
        check_tensor(parameter, name)

        if parameter.shape != shape:
            raise RuntimeError(
                f"argument '{name}' must have the shape {shape} of 'normalized_shape', not {tuple(parameter.shape)}"
            )

    if input.ndim < len(shape):
        raise few_dims(f"argument 'input' must have at least {len(shape)} dims, not {input.ndim}")

    if input.shape[input.ndim - len(shape) :] != shape:
        raise RuntimeError(
            f"argument 'normalized_shape' {shape} must be the last dims of 'input', which has {tuple(input.shape)}"
        )

    common_device({"input": input} | present)
    return shape


def norm(premake, input, shape, parameters, eps):
    """Run a norm over the last ``len(shape)`` dims of ``input``.

    :param parameters: The affine parameters by name, each a tensor of ``shape`` or a number.
    :return: A contiguous tensor of the shape and dtype of ``input``.
    """
    output = torch.empty(input.shape, dtype=input.dtype, device=input.device)

    if not output.numel():
        return output

    first = input.ndim - len(shape)
    tensors = {"input": input} | {
        name: value if isinstance(value, torch.Tensor) else torch.full((1,), value, device=input.device).expand(shape)
        for name, value in parameters.items()
    }
    # Dims that cannot be walked as one are copied; torch copies every input that is not contiguous.
    matrices = {"output": output} | tensors
    matrices = {
        name: (tensor if tensor.ndim > len(shape) else tensor.expand(input.shape)).flatten(first)
        for name, tensor in matrices.items()
    }
    columns = matrices["output"].shape[-1]
    # Four operands of 16384 columns spill; three do not.
    longest_tile = rows.LONGEST_TILE if len(matrices) < 4 else rows.LONGEST_TILE // 2
    rows.launch(premake, matrices, numbers={"count": columns, "eps": eps}, longest_tile=longest_tile)

    return output
