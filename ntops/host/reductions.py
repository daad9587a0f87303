"""Reduce dims away, as ``sum`` does: arguments, ``out=``, the order of dims, and the launch.

Dims are merged and ordered by the input's strides, so that a program reads adjacent elements of any layout and nothing
is copied. If there are few results of many elements each, programs reduce parts, and the same kernel reduces these:
always in the same order.
"""

import dataclasses
import functools
import inspect
import math
import operator
from typing import Any

import torch

from ntops.host import output
from ntops.host.arguments import DTYPES, check_tensor, common_device
from ntops.host.dim_order import collapse, contiguous_strides, specialize
from ntops.host.promotion import TRITON_DTYPES, accumulate_dtype, scalar_type
from ntops.launch import boundary, config_selection, recorder
from ntops.launch.configuration import heuristic
from ntops.launch.devices import next_power_of_2, on_device
from ntops.launch.kernel_sources import Config, Specialization, make

# The float32 elements of a tile, and the adjacent bytes that a program takes if the results are adjacent in memory.
TILE, LINE = 4096, 128
# Rows are split up for this many programs, by sizes alone, so that every device computes the same bits. A part has so
# many tiles at least, and at most: each lane rounds once a tile.
PROGRAMS, SHORTEST, LONGEST = 1024, 4, 64
_HALF = (torch.float16, torch.bfloat16)
# torch's names for the sake of NumPy.
_ALIASES = {"axis": "dim", "keepdims": "keepdim"}


@dataclasses.dataclass(frozen=True)
class Options:
    """The configuration of a reduction: a tile, the tiles of a part, and the warps of a program."""

    block_rows: int
    block_columns: int
    steps: int
    num_warps: int


@dataclasses.dataclass(frozen=True)
class Problem(config_selection.Problem):
    """``outer`` times ``rows`` results of ``columns`` elements each."""

    OPTIONS = Options
    SIZES = ("outer", "rows", "columns")

    outer: int
    rows: int
    columns: int
    across: bool
    """Whether neighbours in memory belong to different results."""
    dtype: torch.dtype
    compute_dtype: torch.dtype

    def rule(self, device):
        return config(*self._arguments())

    def space(self, device):
        return config.alternatives(*self._arguments())

    def _arguments(self):
        return self.outer, self.rows, self.columns, self.across, self.dtype.itemsize, self.compute_dtype.itemsize

    def resources(self, options):
        threads = 32 * options.num_warps
        elements = options.block_rows * options.block_columns // threads
        parts = (self.dtype.itemsize + self.compute_dtype.itemsize) / 4
        return config_selection.Resources(
            self.compute_dtype.itemsize * options.num_warps * options.block_rows, 24 + int(elements * parts), threads
        )


_ROWS, _COLUMNS = (1, 8, 1 << 13), (1, 16, 1 << 10, 1 << 13, 1 << 17, 1 << 27)
_POINTS = tuple((1, rows, columns) for rows in _ROWS for columns in _COLUMNS)


@heuristic(("outer", "rows", "columns"), _POINTS)
def config(outer, rows, columns, across, itemsize, compute_itemsize):
    """Choose the tile, and in how many parts rows are reduced.

    :param outer: The number of results along all dims that stay but the last one.
    :param rows: The number of results along the last dim that stays.
    :param columns: The number of elements of each result.
    :param across: Whether neighbours in memory belong to different results.
    :param itemsize: Bytes of an element of the input.
    :param compute_itemsize: Bytes of an element in registers.
    """
    tile = TILE * 4 // max(compute_itemsize, 4)

    if across:
        block_rows = min(next_power_of_2(rows), LINE // itemsize)
        block_columns = min(next_power_of_2(columns), tile // block_rows)
    else:
        block_columns = min(next_power_of_2(columns), tile)
        block_rows = min(next_power_of_2(rows), tile // block_columns)

    tiles = -(-columns // block_columns)
    parts = max(PROGRAMS // (outer * -(-rows // block_rows)), 1)
    steps = min(max(next_power_of_2(-(-tiles // parts)), SHORTEST), LONGEST)

    return Options(block_rows, block_columns, steps, max(min(block_rows * block_columns // 512, 8), 1))


def called_as_in_torch(*beside_dim):
    """Return a decorator of a function with ``dim``: calls may name it ``axis``, and ``keepdim`` ``keepdims``.

    The result has the function's signature, and its attribute ``decorate`` does the same for another function.

    :param beside_dim: The arguments that torch takes only if ``dim`` is given.
    """

    def decorate(function):
        def call(*args, **kwargs):
            for alias, name in _ALIASES.items():
                if alias in kwargs:
                    if name in kwargs:
                        raise TypeError(f"argument '{name}' is given twice, also as '{alias}'")

                    kwargs[name] = kwargs.pop(alias)

            for name in beside_dim:
                # The dispatcher leaves out a dim of None.
                if name in kwargs and len(args) < 2 and "dim" not in kwargs and not boundary.is_inside():
                    raise TypeError(f"argument 'dim' must be given with '{name}'; None means all dims")

            return function(*args, **kwargs)

        return call

    def decorated(function):
        call: Any = functools.update_wrapper(decorate(function), function)
        # For inspect.unwrap the function is this one.
        del call.__wrapped__
        call.__signature__ = inspect.signature(function)
        call.decorate = decorate
        return call

    return decorated


def dims_of(dim, ndim):
    """Return the dims that are reduced, in ascending order; ``None`` and no dims mean all.

    :raises TypeError: ``dim`` is no int, and no tuple or list of ints.
    :raises IndexError: A dim is out of range.
    :raises RuntimeError: A dim is named twice.
    """
    dims = [*dim] if isinstance(dim, (tuple, list)) else [] if dim is None else [dim]
    found = [dim_of(one, ndim) for one in dims]

    if twice := [one for one in found if found.count(one) > 1]:
        raise RuntimeError(f"argument 'dim' names dim {twice[0]} twice")

    return sorted(found) if found else [*range(ndim)]


def dim_of(dim, ndim):
    """Return one dim as a number from 0; a 0-d tensor has a dim 0.

    :raises TypeError: It is no int.
    :raises IndexError: It is out of range.
    """
    try:
        place = operator.index(dim)
    except TypeError:
        place = None

    if place is None or isinstance(dim, bool):
        raise TypeError(f"argument 'dim' must be an int or ints, not {type(dim).__name__}")

    bound = max(ndim, 1)

    if not -bound <= place < bound:
        raise IndexError(f"argument 'dim' must be from {-bound} to {bound - 1} for a {ndim}-d tensor, not {place}")

    return place % bound


def result_of(input, dims, keepdim, dtype, out):
    """Return the tensor that a kernel writes, without the reduced dims, and what the call returns after it was written.

    :param dims: The reduced dims.
    :param dtype: The dtype of the result, which ``out`` must have.
    :param out: The caller's ``out=``, not yet checked, or ``None``.
    :raises TypeError: ``keepdim`` is no bool.
    """
    if not isinstance(keepdim, bool):
        raise TypeError(f"argument 'keepdim' must be a bool, not {type(keepdim).__name__}")

    device = common_device({"input": input})
    kept = [size for dim, size in enumerate(input.shape) if dim not in dims]
    shape = torch.Size([1 if dim in dims else size for dim, size in enumerate(input.shape)] if keepdim else kept)

    if out is None:
        result = recorder.empty(shape, contiguous_strides(shape), dtype, device)
    else:
        output.check_out(out, dtype, device, exact_dtype=True)
        output.check_written(out, "out")
        output.resize_out(out, shape, contiguous_strides(shape))
        # The input is read until all of the result is written.
        result = torch.empty(shape, dtype=dtype, device=device) if output.shares_memory(out, input) else out

    strides = [stride for dim, stride in enumerate(result.stride()) if not keepdim or dim not in dims]
    return (result.as_strided(kept, strides) if keepdim else result), result


def result_dtype(dtype, out, default):
    """Return the dtype of a result: the one named, else that of ``out``, else ``default``.

    :raises TypeError: ``dtype`` is none.
    :raises NotImplementedError: It is a dtype without kernels.
    """
    if dtype is not None and not isinstance(dtype, torch.dtype):
        raise TypeError(f"argument 'dtype' must be a torch.dtype or None, not {type(dtype).__name__}")

    if dtype is None and out is not None:
        check_tensor(out, "out")

    dtype = dtype or (default if out is None else out.dtype)

    if dtype not in DTYPES:
        raise NotImplementedError(f"argument 'dtype' is {dtype}, which this operator leaves out")

    return dtype


def floating_dtype(name, dtype, out, default):
    """Return the dtype of a result that must be floating-point; see :func:`result_dtype`.

    :raises RuntimeError: It is not.
    """
    dtype = result_dtype(dtype, out, default)

    if not dtype.is_floating_point:
        raise RuntimeError(f"{name} of {dtype} is not defined; give a floating-point 'dtype' to cast to")

    return dtype


def reduce(premake, input, dim, keepdim, dtype, out, *, empty, count=None, parts=None, **arguments):
    """Run a kernel that reduces dims.

    :param premake: The kernel's ``premake``.
    :param input: A checked tensor; its elements are cast to ``dtype`` first.
    :param dim: The caller's ``dim``, ``keepdim`` and ``out``, not yet checked.
    :param dtype: The dtype of the result.
    :param empty: The result of no elements; ``None``: the caller refuses these.
    :param count: The name of the kernel's number that is the number of reduced elements, if it has one.
    :param parts: The module of the kernel that reduces parts of rows; ``None``: the same.
    :param arguments: Further arguments of ``premake``.
    :return: The result, contiguous; ``out`` if it is given.
    :raises TypeError: An argument has the wrong type.
    :raises IndexError: A dim is out of range.
    :raises RuntimeError: A dim is named twice, or the device or ``out`` does not fit.
    """
    dims = dims_of(dim, input.ndim)
    written, result = result_of(input, dims, keepdim, dtype, out)

    if boundary.has_work(result):
        if not input.numel():
            result.fill_(empty)
        else:
            numbers = {count: input.numel() // result.numel()} if count else {}
            partial = parts.premake if parts else None
            launch(premake, written, _cast(input, dtype), dims, numbers, partial, **arguments)

    return output.given(out, result)


def extreme(premake, input, dim, keepdim, out, side):
    """Run the kernel of the greatest element (``side`` 0) or the least one (1).

    :raises IndexError: A dim without elements is reduced.
    :raises RuntimeError: All dims are reduced, and there are no elements. See also :func:`reduce`.
    :raises NotImplementedError: A complex, sparse, quantized or nested ``input``.
    """
    check_tensor(input, "input")
    check_elements(input, dim)

    return reduce(premake, input, dim, keepdim, input.dtype, out, empty=None, padding=limits(input.dtype)[side])


def check_elements(input, dim, error=RuntimeError):
    """Refuse to reduce no elements.

    :param error: The class of the error if no dim is named.
    """
    if input.numel():
        return

    if dim is None or dim == () or dim == []:
        raise error("argument 'input' has no elements, of which there is no result; name a 'dim' that has some")

    for one in dims_of(dim, input.ndim):
        if not input.shape[one]:
            raise IndexError(f"argument 'dim' names dim {one}, which has no elements, and these have no result")


def limits(dtype):
    """Return the least and the greatest element of a dtype."""
    if dtype is torch.bool:
        return 0, 1

    info = None if dtype.is_floating_point else torch.iinfo(dtype)
    return (info.min, info.max) if info else (-math.inf, math.inf)


def _cast(input, dtype):
    """Return the input cast to the dtype of the result where the kernel's cast to its compute dtype loses less."""
    rounds = dtype in _HALF and input.dtype is not dtype
    return input.to(dtype) if rounds or (dtype is torch.bool and input.dtype is not dtype) else input


def launch(premake, output, input, dims, numbers=None, parts=None, chosen=None, **arguments):
    """Launch a kernel that reduces ``dims`` of a tensor that is not empty.

    :param output: The tensor to write, of the shape of ``input`` without these dims.
    :param numbers: The Python numbers of the kernel by name, in the order of the application.
    :param parts: The ``premake`` of the kernel that reduces parts of rows; ``None``: the same.
    :param chosen: The configuration; ``None``: :func:`config` chooses.
    :param arguments: Further arguments of ``premake``.
    """
    input, dims = (input, dims) if input.ndim else (input.view(1), [0])
    kept = [dim for dim in range(input.ndim) if dim not in dims]
    shape, (input_strides, output_strides) = collapse(
        [input.shape[dim] for dim in kept], [[input.stride(dim) for dim in kept], output.stride()]
    )
    reduced, (steps,) = collapse([input.shape[dim] for dim in dims], [[input.stride(dim) for dim in dims]])
    columns = math.prod(reduced)
    compute_dtype = accumulate_dtype(output.dtype)

    if chosen is None:
        # An expanded dim has no neighbours.
        across = (input_strides[-1] or math.inf) < (steps[-1] or math.inf)
        problem = Problem(math.prod(shape[:-1]), shape[-1], columns, across, input.dtype, compute_dtype)

        def run(scratch, chosen):
            launch(premake, scratch, input, dims, numbers, parts, chosen, **arguments)

        name = premake.__module__.rpartition(".")[2]
        chosen = config_selection.choose(name, problem, output.device.index or 0, run, output)

    tiles = -(-columns // chosen.block_columns)
    count = -(-tiles // chosen.steps)
    view = input.as_strided((*shape, *reduced), (*input_strides, *steps))

    if count == 1:
        _launch(premake, output.as_strided((*shape, 1), (*output_strides, 1)), view, numbers, -1, chosen, arguments)
        return

    sizes = (*shape, count)
    partial = recorder.empty(sizes, contiguous_strides(sizes), compute_dtype, output.device)
    _launch(parts or premake, partial, view, None if parts else numbers, chosen.steps, chosen, arguments)
    launch(premake, output.as_strided(shape, output_strides), partial, [len(shape)], numbers, parts, **arguments)


def _launch(premake, output, input, numbers, steps, chosen, arguments):
    compute_dtype = accumulate_dtype(output.dtype)
    both, read = specialize({"output": output}), specialize({"input": input})
    specialization = Specialization(both.unit_strides + read.unit_strides, read.aligned, both.wide or read.wide)
    arguments = {"ndim": input.ndim, "kept": output.ndim - 1} | arguments

    if numbers:
        arguments["scalars"] = tuple((name, scalar_type(compute_dtype)) for name in numbers)

    blocks = (("block_rows", chosen.block_rows), ("block_columns", chosen.block_columns), ("steps", steps))

    with on_device(output.device):
        kernel = make(premake, arguments, Config(blocks, chosen.num_warps), specialization)
        kernel(output, input, *map(float, (numbers or {}).values()), TRITON_DTYPES[compute_dtype])
