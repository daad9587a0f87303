"""Elementwise functions: broadcasting, ``out=``, output strides, and the launch."""

import torch

from ntops.host import iteration, output
from ntops.host.arguments import common_device
from ntops.host.launch import on_device
from ntops.host.promotion import TRITON_DTYPES, promote, scalar_type
from ntops.torch.utils import Config, make

# Eight elements a thread are enough loads in flight to fill an H200's memory pipes.
CONFIG = Config(blocks=(("block_size", 1024),), num_warps=4)


def elementwise(
    premake, operands, dtype, *, out=None, inplace=False, promoted=None, compute_dtype=None, numbers=None, **arguments
):
    """Run an elementwise kernel over broadcast operands.

    :param premake: The kernel's ``premake``.
    :param operands: Tensors and Python numbers, already checked, by the name of the argument; one is a tensor.
    :param dtype: The dtype of the result.
    :param out: The caller's ``out=``, not yet checked, or ``None``.
    :param inplace: Whether the result is written over the first operand, which has its dtype.
    :param promoted: The dtype to which torch promotes the operands, if it is not ``dtype``.
    :param compute_dtype: The dtype in which the kernel computes, for kernels that are told.
    :param numbers: Arguments of the kernel that are always Python numbers, by name.
    :param arguments: Further arguments of ``premake``.
    :return: The result: ``out`` where it is given.
    """
    tensors = {name: value for name, value in operands.items() if isinstance(value, torch.Tensor)}

    if not tensors:
        # torch computes numbers alone on the CPU; nothing here says which device is meant.
        names = " and ".join(f"'{name}'" for name in operands)
        raise NotImplementedError(f"arguments {names} are numbers; make one of them a tensor")

    device = common_device(tensors)

    if inplace:
        name, out = next(iter(tensors.items()))
        output.check_written(out, name)

    for name, tensor in list(tensors.items()):
        if tensor.device != device:
            operands = operands | {name: tensor.item()}
            del tensors[name]

    shape = _broadcast_shape(tensors)
    result = _result(shape, tensors, len(tensors) < len(operands), dtype, device, out)

    if result.numel():
        operands = promote(operands, promoted or dtype) | (numbers or {})
        _launch(premake, result, operands, compute_dtype, arguments)

    if out is not None and out is not result:
        out.copy_(result)

    return result if out is None else out


def _broadcast_shape(tensors):
    shapes = [tensor.shape for tensor in tensors.values()]

    if all(shape == shapes[0] for shape in shapes):
        return shapes[0]

    try:
        return torch.broadcast_shapes(*shapes)
    except RuntimeError:
        sizes = " and ".join(f"'{name}' {tuple(tensor.shape)}" for name, tensor in tensors.items())
        raise RuntimeError(f"the shapes of arguments {sizes} do not broadcast together") from None


def _result(shape, tensors, has_numbers, dtype, device, out):
    """The tensor that the kernel writes: ``out`` where it can, else a new one."""
    if out is None:
        strides = iteration.result_strides(shape, list(tensors.values()), has_numbers)
        return torch.empty_strided(shape, strides, dtype=dtype, device=device)

    output.check_out(out, dtype, device)
    output.check_written(out, "out")
    output.check_overlap(out, tensors)

    if out.shape != shape:
        output.resize_out(out, shape, iteration.result_strides(shape, list(tensors.values()), has_numbers))

    # The kernel rounds to the result's dtype; a cast to another one comes after.
    return out if out.dtype is dtype else torch.empty(shape, dtype=dtype, device=device)


def _launch(premake, result, operands, compute_dtype, arguments):
    views = {"output": result} | {name: value for name, value in operands.items() if isinstance(value, torch.Tensor)}

    if all(view.shape == result.shape and view.is_contiguous() for view in views.values()):
        views = {name: view.view(-1) for name, view in views.items()}
    else:
        strides = [iteration.broadcast_strides(view, result.shape) for view in views.values()]
        shape, strides = iteration.collapse(result.shape, strides)
        views = {name: view.as_strided(shape, own) for (name, view), own in zip(views.items(), strides, strict=True)}

    number_type = scalar_type(compute_dtype) if compute_dtype else None
    scalars = tuple((name, number_type) for name in operands if name not in views)
    ndim = views["output"].ndim

    if scalars:
        arguments = arguments | {"scalars": scalars}

    kernel = make(premake, {"ndim": ndim} | arguments, CONFIG, iteration.specialize(views))
    constants = (TRITON_DTYPES[compute_dtype],) if compute_dtype else ()

    with on_device(result.device):
        kernel(
            views["output"],
            *(_argument(views.get(name, value), number_type) for name, value in operands.items()),
            *constants,
        )


def _argument(value, number_type):
    if isinstance(value, torch.Tensor):
        return value

    return float(value) if number_type == "fp64" else int(value)
