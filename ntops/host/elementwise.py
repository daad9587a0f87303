"""Run elementwise functions: broadcasting, ``out=``, output strides, and the launch."""

import dataclasses
import functools

import torch

from ntops.host import dim_order, output
from ntops.host.arguments import check_tensor, common_device
from ntops.host.promotion import TRITON_DTYPES, promote, scalar_type
from ntops.kernels.element_wise import Tile
from ntops.launch import autotuning, boundary, recorder
from ntops.launch.configuration import heuristic
from ntops.launch.devices import next_power_of_2, on_device
from ntops.launch.kernel_sources import Config, make

# A thread takes sixteen elements of up to two bytes: tanh of 64M bfloat16 takes 66.7 us on an H200, with eight 72.1 (a
# copy 63.7). It takes eight larger elements: add of 32M float32 takes 94.1 us, with sixteen 95.8. And it takes eight
# two-byte elements if almost nothing is computed from one operand: abs, neg and relu take 64.9 us, with sixteen 66.0.
FLAT = 2048
# The side of a square tile: 64 elements of a half type fill a line of 128 bytes.
SIDE = 64
# The shortest rows that get tiles of their own.
SHORTEST = 32


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
    :param operands: Checked tensors and Python numbers by argument name; at least one is a tensor.
    :param dtype: The dtype of the result.
    :param out: The caller's ``out=``, not yet checked, or ``None``.
    :param inplace: Whether the result overwrites the first operand, which has its dtype.
    :param exact_out: Whether torch requires ``out`` to have exactly the dtype of the result.
    :param contiguous: Whether torch makes the result contiguous for any strides of the operands.
    :param promoted: The dtype to which torch promotes the operands, if it is not ``dtype``.
    :param compute_dtype: The dtype in which the kernel computes, for kernels that take it as an argument.
    :param numbers: Arguments of the kernel that are always Python numbers, by name.
    :param arguments: Further arguments of ``premake``.
    :return: The result; ``out`` if it is given.
    """
    check_any_tensor(operands, out)
    tensors = {name: value for name, value in operands.items() if isinstance(value, torch.Tensor)}
    device = common_device(tensors)

    if inplace:
        name, out = next(iter(tensors.items()))
        output.check_written(out, name)

    for name, tensor in list(tensors.items()):
        if tensor.device != device:
            operands = operands | {name: 0 if boundary.is_abstract() else tensor.item()}
            del tensors[name]

    shape = _broadcast_shape(tensors)
    like = [] if contiguous else list(tensors.values())
    strides = functools.partial(dim_order.result_strides, shape, like, len(tensors) < len(operands))
    result = _result(shape, strides, tensors, dtype, device, out, exact_out)

    if boundary.has_work(result):
        operands = {"output": result} | promote(operands, promoted or dtype, compute_dtype) | (numbers or {})
        launch(premake, shape, operands, compute_dtype, **arguments)

    return output.given(out, result)


def check_any_tensor(operands, out):
    """Refuse a call whose operands are all numbers.

    :raises RuntimeError: ``out`` is given. torch does not write a result of CPU numbers to a GPU tensor either.
    :raises NotImplementedError: There is no ``out``. torch would compute on the CPU; no argument names a device.
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

    # Of shapes with other numbers of dims no sizes are compared, which would make a guard of a graph.
    if all(len(shape) == len(shapes[0]) and shape == shapes[0] for shape in shapes):
        return shapes[0]

    try:
        return dim_order.broadcast_shapes(*shapes)
    except RuntimeError:
        sizes = " and ".join(f"'{name}' {tuple(tensor.shape)}" for name, tensor in tensors.items())
        raise RuntimeError(f"the shapes of arguments {sizes} do not broadcast together") from None


def _result(shape, strides, tensors, dtype, device, out, exact_out):
    """Return the tensor that the kernel writes: ``out`` if possible, else a new tensor with the strides of
    ``strides()``."""
    if out is None:
        return recorder.empty(shape, strides(), dtype, device)

    output.check_out(out, dtype, device, exact_out)
    output.check_written(out, "out")
    output.check_overlap(out, tensors)

    if out.shape != shape:
        output.resize_out(out, shape, strides())

    # The kernel rounds to the result's dtype; a cast to another dtype comes afterwards.
    return out if out.dtype is dtype else torch.empty(shape, dtype=dtype, device=device)


def launch(premake, shape, operands, compute_dtype=None, *, chosen=None, **arguments):
    """Launch an elementwise kernel, over as few dims as the strides allow.

    :param premake: The kernel's ``premake``.
    :param shape: The shape to which all the tensors broadcast; it has no empty dim.
    :param operands: The arguments of the application by name and in its order, the output first: tensors of one
        device, and Python numbers.
    :param compute_dtype: The dtype in which the kernel computes, for kernels that take it as their last argument.
    :param chosen: The configuration; ``None``: :func:`config` chooses.
    :param arguments: Further arguments of ``premake``.
    """
    whole, further = shape, arguments
    views = {name: value for name, value in operands.items() if isinstance(value, torch.Tensor)}

    if all(view.shape == shape and view.is_contiguous() for view in views.values()):
        views = {name: view.view(-1) for name, view in views.items()}
    else:
        strides = [dim_order.broadcast_strides(view, shape) for view in views.values()]
        shape, strides = dim_order.collapse(shape, strides)
        views = {name: view.as_strided(shape, own) for (name, view), own in zip(views.items(), strides, strict=True)}

    first = next(iter(views.values()))
    number_type = scalar_type(compute_dtype) if compute_dtype else None
    scalars = tuple((name, number_type) for name in operands if name not in views)

    if scalars:
        arguments = arguments | {"scalars": scalars}

    specialization = dim_order.specialize(views)
    last = first.ndim - 1
    # Either way, an operand that is expanded along the last dim is read once for each row.
    across = [dim for name, dim in specialization.unit_strides if dim != last and views[name].stride(last)]
    other = across[0] if across else None
    # Single elements take no room in a tile.
    itemsize = max((view.itemsize for view in views.values() if any(view.stride())), default=first.itemsize)
    light = compute_dtype is None and len(views) == 2 and all(view.itemsize == itemsize for view in views.values())

    if chosen is None:
        sizes = first.shape[last], first.shape[other] if across else 0, first.shape[last - 1]
        kind = first.ndim, other, *sizes, itemsize, light

        def run(scratch, chosen):
            launch(premake, whole, operands | {"output": scratch}, compute_dtype, chosen=chosen, **further)

        chosen = autotuning.fastest(
            (premake, kind), config(*kind), lambda: config.alternatives(*kind), run, operands["output"]
        )

    specialization = dim_order.with_whole_tiles(specialization, views, chosen.blocks[0][1])
    kernel = make(premake, {"ndim": first.ndim} | arguments, _narrowed(chosen, views), specialization)
    constants = (TRITON_DTYPES[compute_dtype],) if compute_dtype else ()

    with on_device(first.device):
        kernel(*(_argument(views.get(name, value), number_type) for name, value in operands.items()), *constants)


_SHORT = tuple((row, 1, rows) for row in (32, 64, 128, 256, 511) for rows in (FLAT, 512 // row or 1))


@heuristic(
    ("row", "column", "rows"), ((1, 1, 1), (FLAT // 2, 1, 1), (FLAT, 1, 1), (SIDE, SIDE, 1), (32, 1, 1), *_SHORT)
)
def config(ndim, across, row, column, rows, itemsize, light=False):
    """Choose the tiles of an elementwise kernel: flat tiles if possible, else tiles that suit the memory layout.

    With several dims, a flat tile divides to find each element's place, and loads elements one by one; a tile along a
    long last dim, or over several short dims, does neither. If an operand is contiguous along another dim than the
    output, a row tile reads a whole line of memory for each element; a square tile reads and writes whole lines.

    :param ndim: The number of dims that the kernel sees.
    :param across: The dim along which an operand is contiguous, if not the last as for the output; or ``None``.
    :param row: The size of the last dim.
    :param column: The size of ``across``.
    :param rows: The size of the dim beside the last one.
    :param itemsize: Bytes of the largest elements.
    :param light: Whether almost nothing is computed, from one operand, and elements keep their size.
    """
    last = ndim - 1
    flat = FLAT // 2 if itemsize > 2 or (itemsize == 2 and light) else FLAT

    if across is not None and min(row, column) >= SIDE // 4:
        tile = tuple(SIDE if dim in (across, last) else 1 for dim in range(ndim))
        return Config(blocks=(("block_size", tile),), num_warps=8)

    if last and row >= FLAT // 4:
        tile = flat if row >= flat else FLAT // 2
        return Config(blocks=(("block_size", (1,) * last + (tile,)),))

    if last and row >= SHORTEST:
        width = _width(row)
        most = flat // width
        # For few rows a quarter of a tile. For even fewer, more lanes would be idle than a flat tile wastes.
        taken = most if 2 * rows > most else max(most // 4, 1)

        if 8 * rows > most:
            return Config(blocks=(("block_size", (1,) * (last - 1) + (taken, width)),))

    return Config(blocks=(("block_size", flat),))


def _width(row):
    """Return the width of tiles along a short row: the widest with at most a quarter of lanes idle, else a line of
    memory."""
    whole = next_power_of_2(row)
    widths = (width for width in (whole, whole // 2, whole // 4) if -(-row // width) * width <= 1.34 * row)
    return next((width for width in widths if width >= SIDE), min(whole, SIDE))


def _narrowed(chosen, views):
    """Return the configuration with one-element tiles for operands that are expanded along the last dim."""
    ((name, tile),) = chosen.blocks
    # One element may have any stride, that of the output too.
    constant = tuple(name for name, view in views.items() if not view.stride(-1) and view.shape[-1] > 1)
    tile = (tile,) if next(iter(views.values())).ndim == 1 else tile

    if not isinstance(tile, tuple) or max(tile) != tile[-1] or sum(tile) != len(tile) - 1 + tile[-1] or not constant:
        return chosen

    return dataclasses.replace(chosen, blocks=((name, Tile(tile[-1], constant)),))


def _argument(value, number_type):
    if isinstance(value, torch.Tensor):
        return value

    return float(value) if number_type == "fp64" else int(value)
