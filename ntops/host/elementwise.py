"""Elementwise functions: broadcasting, ``out=``, output strides, and the launch."""

import dataclasses
import functools

import torch

from ntops.host import iteration, measuring, output, repetition
from ntops.host.arguments import check_operands, check_tensor, common_device
from ntops.host.configuration import heuristic
from ntops.host.launch import on_device
from ntops.host.promotion import TRITON_DTYPES, accumulate_dtype, promote, result_dtype, scalar_type
from ntops.kernels.element_wise import Tile
from ntops.torch.utils import Config, make

# Sixteen elements a thread of up to two bytes each: tanh of 64M bfloat16 takes 66.7 us on an H200, with eight 72.1, a
# copy 63.7. Eight of more: add of 32M float32 takes 94.1 us, with sixteen 95.8. And eight of two bytes where next to
# nothing is computed of one operand: abs, neg and relu take 64.9 us, with sixteen 66.0.
FLAT = 2048
# The side of a square tile: 64 elements of a half type fill a line of 128 bytes.
SIDE = 64


def elementwise(
    premake,
    operands,
    dtype,
    *,
    out=None,
    inplace=False,
    exact_out=False,
    contiguous=False,
    promoted=None,
    compute_dtype=None,
    numbers=None,
    **arguments,
):
    """Run an elementwise kernel over broadcast operands.

    :param premake: The kernel's ``premake``.
    :param operands: Tensors and Python numbers, already checked, by the name of the argument; one is a tensor.
    :param dtype: The dtype of the result.
    :param out: The caller's ``out=``, not yet checked, or ``None``.
    :param inplace: Whether the result is written over the first operand, which has its dtype.
    :param exact_out: Whether torch wants ``out`` to have the very dtype of the result.
    :param contiguous: Whether torch makes the result contiguous whatever the strides of the operands.
    :param promoted: The dtype to which torch promotes the operands, if it is not ``dtype``.
    :param compute_dtype: The dtype in which the kernel computes, for kernels that are told.
    :param numbers: Arguments of the kernel that are always Python numbers, by name.
    :param arguments: Further arguments of ``premake``.
    :return: The result: ``out`` where it is given.
    """
    check_any_tensor(operands, out)
    tensors = {name: value for name, value in operands.items() if isinstance(value, torch.Tensor)}
    device = common_device(tensors)

    if inplace:
        name, out = next(iter(tensors.items()))
        output.check_written(out, name)

    for name, tensor in list(tensors.items()):
        if tensor.device != device:
            operands = operands | {name: tensor.item()}
            del tensors[name]

    shape = _broadcast_shape(tensors)
    like = [] if contiguous else list(tensors.values())
    strides = functools.partial(iteration.result_strides, shape, like, len(tensors) < len(operands))
    result = _result(shape, strides, tensors, dtype, device, out, exact_out)

    if result.numel():
        operands = {"output": result} | promote(operands, promoted or dtype, compute_dtype) | (numbers or {})
        launch(premake, shape, operands, compute_dtype, **arguments)

    return output.given(out, result)


def check_any_tensor(operands, out):
    """Refuse operands that are all numbers.

    :raises RuntimeError: There is an ``out``: of a GPU, into which torch writes nothing that it has of the CPU alone.
    :raises NotImplementedError: There is none. torch computes on the CPU then; no argument says which device is meant.
    """
    if any(isinstance(value, torch.Tensor) for value in operands.values()):
        return

    names = " and ".join(f"'{name}'" for name in operands)

    if out is None:
        raise NotImplementedError(f"arguments {names} are numbers; make one of them a tensor")

    check_tensor(out, "out")
    raise RuntimeError(f"arguments {names} are numbers, from which nothing goes into an 'out'; make one a tensor")


def _broadcast_shape(tensors):
    shapes = [tensor.shape for tensor in tensors.values()]

    if all(shape == shapes[0] for shape in shapes):
        return shapes[0]

    try:
        # torch.broadcast_shapes imports half a second of torch first.
        return functools.reduce(torch._C._infer_size, shapes)
    except RuntimeError:
        sizes = " and ".join(f"'{name}' {tuple(tensor.shape)}" for name, tensor in tensors.items())
        raise RuntimeError(f"the shapes of arguments {sizes} do not broadcast together") from None


def _result(shape, strides, tensors, dtype, device, out, exact_out):
    """The tensor that the kernel writes: ``out`` where it can, else a new one with what ``strides()`` gives."""
    if out is None:
        return repetition.empty(shape, strides(), dtype, device)

    output.check_out(out, dtype, device, exact_out)
    output.check_written(out, "out")
    output.check_overlap(out, tensors)

    if out.shape != shape:
        output.resize_out(out, shape, strides())

    # The kernel rounds to the result's dtype; a cast to another one comes after.
    return out if out.dtype is dtype else torch.empty(shape, dtype=dtype, device=device)


def launch(premake, shape, operands, compute_dtype=None, *, chosen=None, **arguments):
    """Launch an elementwise kernel, over as few dims as the strides allow.

    :param premake: The kernel's ``premake``.
    :param shape: The shape to which all the tensors broadcast; it has no empty dim.
    :param operands: The arguments of the application by name and in its order, the output first: tensors of one
        device, and Python numbers.
    :param compute_dtype: The dtype in which the kernel computes, for kernels that are told; it comes last.
    :param chosen: The configuration; ``None``: it is chosen here.
    :param arguments: Further arguments of ``premake``.
    """
    whole, further = shape, arguments
    views = {name: value for name, value in operands.items() if isinstance(value, torch.Tensor)}

    if all(view.shape == shape and view.is_contiguous() for view in views.values()):
        views = {name: view.view(-1) for name, view in views.items()}
    else:
        strides = [iteration.broadcast_strides(view, shape) for view in views.values()]
        shape, strides = iteration.collapse(shape, strides)
        views = {name: view.as_strided(shape, own) for (name, view), own in zip(views.items(), strides, strict=True)}

    first = next(iter(views.values()))
    number_type = scalar_type(compute_dtype) if compute_dtype else None
    scalars = tuple((name, number_type) for name in operands if name not in views)

    if scalars:
        arguments = arguments | {"scalars": scalars}

    specialization = iteration.specialize(views)
    last = first.ndim - 1
    # An operand that is expanded along the last dim is read once for each row either way.
    across = [dim for name, dim in specialization.unit_strides if dim != last and views[name].stride(last)]
    other = across[0] if across else None
    # What is a single element takes no room in a tile.
    itemsize = max((view.itemsize for view in views.values() if any(view.stride())), default=first.itemsize)
    light = compute_dtype is None and len(views) == 2 and all(view.itemsize == itemsize for view in views.values())

    if chosen is None:
        kind = first.ndim, other, first.shape[last], first.shape[other] if across else 0, itemsize, light

        def run(scratch, chosen):
            launch(premake, whole, operands | {"output": scratch}, compute_dtype, chosen=chosen, **further)

        chosen = measuring.fastest(
            (premake, kind), config(*kind), lambda: config.alternatives(*kind), run, operands["output"]
        )

    kernel = make(premake, {"ndim": first.ndim} | arguments, _narrowed(chosen, views), specialization)
    constants = (TRITON_DTYPES[compute_dtype],) if compute_dtype else ()

    with on_device(first.device):
        kernel(*(_argument(views.get(name, value), number_type) for name, value in operands.items()), *constants)


@heuristic(("row", "column"), ((1, 1), (FLAT // 2, 1), (FLAT, 1), (SIDE, SIDE)))
def config(ndim, across, row, column, itemsize, light=False):
    """The tiles of an elementwise kernel: flat ones if they can be, else ones that suit the memory.

    Where there are several dims, a flat tile divides to find each element's place, which a tile along a long last dim
    need not. And where an operand runs along another dim than the output, it takes a line of memory for each element;
    a square tile reads and writes whole lines.

    :param ndim: How many dims the kernel sees.
    :param across: The dim that an operand runs along, if that is not the last, as the output's is; or ``None``.
    :param row: The size of the last dim.
    :param column: The size of ``across``.
    :param itemsize: Of the largest elements, in bytes.
    :param light: Whether elements of one operand become ones of the same size with next to nothing computed.
    """
    last = ndim - 1
    flat = FLAT // 2 if itemsize > 2 or (itemsize == 2 and light) else FLAT

    if across is not None and min(row, column) >= SIDE // 4:
        tile = tuple(SIDE if dim in (across, last) else 1 for dim in range(ndim))
        return Config(blocks=(("block_size", tile),), num_warps=8)

    if last and row >= FLAT // 4:
        tile = flat if row >= flat else FLAT // 2
        return Config(blocks=(("block_size", (1,) * last + (tile,)),))

    return Config(blocks=(("block_size", flat),))


def _narrowed(chosen, views):
    """The configuration, with tiles of one element for operands that are expanded along the last dim."""
    ((name, tile),) = chosen.blocks
    constant = tuple(name for name, view in views.items() if not view.stride(-1))
    tile = (tile,) if next(iter(views.values())).ndim == 1 else tile

    if not isinstance(tile, tuple) or max(tile) != tile[-1] or sum(tile) != len(tile) - 1 + tile[-1] or not constant:
        return chosen

    return dataclasses.replace(chosen, blocks=((name, Tile(tile[-1], constant)),))


def _argument(value, number_type):
    if isinstance(value, torch.Tensor):
        return value

    return float(value) if number_type == "fp64" else int(value)


def unary_float(premake, input, out):
    """Run a function of one tensor whose result is floating-point: of the default dtype where ``input`` is not."""
    check_tensor(input, "input")
    dtype = input.dtype if input.dtype.is_floating_point else torch.get_default_dtype()
    return elementwise(premake, {"input": input}, dtype, out=out, compute_dtype=accumulate_dtype(dtype))


def activation(premake, input, name, inplace=False, **arguments):
    """Run a function of one floating-point tensor, in place where that is asked for.

    :raises NotImplementedError: ``input`` is not floating-point.
    """
    check_tensor(input, "input")

    if not input.dtype.is_floating_point:
        raise NotImplementedError(
            f"argument 'input' has dtype {input.dtype}; {name} is defined for floating-point only"
        )

    return elementwise(
        premake,
        {"input": input},
        input.dtype,
        inplace=inplace,
        compute_dtype=accumulate_dtype(input.dtype),
        **arguments,
    )


def comparison(premake, input, other, out):
    """Run a comparison, in the dtype to which both are promoted, whose result is bool."""
    check_tensor(input, "input")
    check_operands(other=other)
    promoted = result_dtype(input, other)
    operands = {"input": input, "other": other}
    return elementwise(premake, operands, torch.bool, out=out, promoted=promoted, compute_dtype=promoted)


def bitwise(premake, input, other, out):
    """Run a bitwise function of integers or bools, one of which is a tensor.

    :raises NotImplementedError: The promoted dtype or that of ``out`` is floating-point.
    :raises TypeError: Both are numbers, or one is neither number nor tensor.
    """
    check_operands(input=input, other=other)

    if not isinstance(input, torch.Tensor) and not isinstance(other, torch.Tensor):
        raise TypeError("arguments 'input' and 'other' are numbers; make one of them a tensor")

    if not isinstance(input, torch.Tensor) and out is not None:
        raise TypeError("argument 'input' is a number, with which there is no 'out'; make it a tensor")

    dtype = result_dtype(input, other)

    if dtype.is_floating_point:
        raise NotImplementedError(
            f"arguments 'input' and 'other' promote to {dtype}; bitwise functions take integers and bools"
        )

    if isinstance(out, torch.Tensor) and out.is_floating_point():
        raise NotImplementedError(f"argument 'out' has dtype {out.dtype}; bitwise functions give integers and bools")

    return elementwise(premake, {"input": input, "other": other}, dtype, out=out, compute_dtype=dtype)
