"""Helpers that all norms use: normalized dims, affine parameters, and the launch."""

import math
import numbers
import operator

import torch

from ntops.host import rows
from ntops.host.arguments import check_tensor, common_device
from ntops.host.dim_order import contiguous_strides
from ntops.launch import boundary, recorder


def normalized(input, normalized_shape, parameters, few_dims=RuntimeError):
    """Check the arguments of a norm, and return ``normalized_shape``, a tuple of ints or one int, as a tuple.

    :param parameters: The affine parameters by argument name, each a tensor or ``None``.
    :param few_dims: The error to raise if ``input`` has fewer dims than ``normalized_shape``.
    :raises TypeError: An argument has the wrong type.
    :raises RuntimeError: Shapes or devices do not fit.
    """
    check_tensor(input, "input")

    if isinstance(normalized_shape, numbers.Integral) and not isinstance(normalized_shape, bool):
        normalized_shape = (normalized_shape,)

    if not isinstance(normalized_shape, (tuple, list)):
        kind = type(normalized_shape).__name__
        raise TypeError(f"argument 'normalized_shape' must be a tuple of ints, or an int, not {kind}")

    try:
        # Symbolic sizes stay symbolic.
        shape = tuple(s if isinstance(s, torch.SymInt) else operator.index(s) for s in normalized_shape)
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


def has_rows(input, shape):
    """Tell whether there is anything to normalize over the last ``len(shape)`` dims; if not, torch on CUDA needs no
    kernel of the dtype. Rows may be empty."""
    return math.prod(input.shape[: input.ndim - len(shape)]) > 0


def walkable(tensor, first=0):
    """Return the tensor, or a copy, whose rows are loaded and summed like those of a contiguous tensor.

    Rows are the dims from ``first`` on. torch copies tensors that are not contiguous, too.
    """
    row = tensor.shape[first:]
    contiguous = tensor.stride()[first:] == contiguous_strides(row)
    # The order of a sum depends on how many elements are loaded together: ``dim_order.common_unit``.
    unit = math.gcd(math.prod(row), 16)
    aligned = tensor.data_ptr() % 16 == 0 and all(stride % unit == 0 for stride in tensor.stride()[:first])
    return tensor if contiguous and (aligned or unit == 1) else tensor.clone(memory_format=torch.contiguous_format)


def norm(premake, walk, input, shape, parameters, eps):
    """Run a norm over the last ``len(shape)`` dims of ``input``.

    :param walk: The norm's kernel of :mod:`ntops.kernels.long_rows`.
    :param parameters: The affine parameters by name, each a tensor of ``shape`` or a number.
    :return: A contiguous tensor of the shape and dtype of ``input``.
    """
    output = recorder.empty(input.shape, contiguous_strides(input.shape), input.dtype, input.device)

    if not boundary.has_work(output):
        return output

    first = input.ndim - len(shape)
    tensors = {"input": walkable(input, first)} | {
        name: walkable(value)
        if isinstance(value, torch.Tensor)
        else recorder.constant(value, input.device).expand(shape)
        for name, value in parameters.items()
    }
    matrices = {"output": output} | tensors
    matrices = {
        name: (tensor if tensor.ndim > len(shape) else tensor.expand(input.shape)).flatten(first)
        for name, tensor in matrices.items()
    }
    columns = matrices["output"].shape[-1]
    rows.launch(premake, matrices, numbers={"count": columns, "eps": eps}, walk=walk)

    return output
