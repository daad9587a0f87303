"""Reduce dims away, as ``sum`` does: the order of dims, the configuration and the launch.

Dims are merged and ordered by the input's strides, so that a program reads adjacent elements of any layout and nothing
is copied. If there are few results of many elements each, programs reduce parts, and the same kernel reduces these:
always in the same order.
"""

import dataclasses
import math

import torch

from ntops.host import output
from ntops.host.arguments import check_tensor
from ntops.host.dim_order import collapse, contiguous_strides, specialize
from ntops.host.promotion import TRITON_DTYPES, accumulate_dtype
from ntops.host.reduction_arguments import check_elements, dim_of, dims_of, limits, result_of
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
POINTS = tuple((1, rows, columns) for rows in _ROWS for columns in _COLUMNS)


@heuristic(("outer", "rows", "columns"), POINTS)
def config(outer, rows, columns, across, itemsize, compute_itemsize):
    """Choose the tile, and in how many parts rows are reduced.

    :param outer: The number of results along all dims that stay but the last one.
    :param rows: The number of results along the last dim that stays.
    :param columns: The number of elements of each result.
    :param across: Whether neighbours in memory belong to different results.
    :param itemsize: Bytes of an element of the input.
    :param compute_itemsize: Bytes of an element in registers.
    """
    block_rows, block_columns = tile_of(outer, rows, columns, across, itemsize, compute_itemsize)
    tiles = -(-columns // block_columns)
    parts = max(PROGRAMS // (outer * -(-rows // block_rows)), 1)
    steps = min(max(next_power_of_2(-(-tiles // parts)), SHORTEST), LONGEST)

    return Options(block_rows, block_columns, steps, max(min(block_rows * block_columns // 512, 8), 1))


def tile_of(outer, rows, columns, across, itemsize, compute_itemsize):
    """Return the rows and the columns of a tile; see :func:`config`."""
    tile = TILE * 4 // max(compute_itemsize, 4)
    # Where there is one dim of results, few rows are few programs, and a kernel for each power of 2 gains nothing.
    fitting = next_power_of_2(rows) if outer > 1 else 8 ** -(-(rows - 1).bit_length() // 3)

    if across:
        block_rows = min(fitting, LINE // itemsize)
        return block_rows, min(next_power_of_2(columns), tile // block_rows)

    block_columns = min(next_power_of_2(columns), tile)
    return min(fitting, tile // block_columns), block_columns


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
            numbers = {count: float(input.numel() // result.numel())} if count else {}
            partial = parts.premake if parts else None
            launch(premake, written, cast_first(input, dtype), dims, numbers, partial, **arguments)

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


def of_exponentials(premake, input, dim, keepdim, out):
    """Run the kernel of ``logsumexp``; ``out`` has any floating-point dtype, to which the result is cast.

    :raises TypeError: ``dim`` is ``None``. See also :func:`reduce`.
    :raises RuntimeError: ``dim`` is empty, which torch takes for no elements or dims only, or ``out`` does not fit.
    """
    check_tensor(input, "input")
    dtype = input.dtype if input.is_floating_point() else torch.get_default_dtype()

    if dim is None:
        raise TypeError("argument 'dim' must be an int or ints, not None")

    if dim in ((), []) and input.ndim and input.numel():
        raise RuntimeError("argument 'dim' names no dim")

    if out is not None:
        output.check_out(out, out.dtype if isinstance(out, torch.Tensor) else dtype, input.device)
        output.check_written(out, "out")

        if not out.is_floating_point():
            raise RuntimeError(f"argument 'out' has dtype {out.dtype}, but the result is floating-point")

    # Padding is -inf, which integers do not have.
    input = input if input.is_floating_point() else input.to(dtype)
    result = reduce(premake, input, dim, keepdim, dtype, None, empty=-math.inf, padding=-math.inf)

    if out is not None:
        output.resize_out(out, result.shape, result.stride())

    return output.given(out, result)


def place(premake, input, dim, keepdim, out, side):
    """Run the kernel of the index of the greatest element (``side`` 0) or the least one (1), of the first of equals.

    :param dim: The dim; ``None``: all, and the index counts the elements in their order, whatever the strides.
    :raises TypeError: An argument has the wrong type.
    :raises IndexError: The dim is out of range, or there are no elements.
    :raises RuntimeError: The input is bool; the device or ``out`` does not fit.
    :raises NotImplementedError: A complex, sparse, quantized or nested ``input``.
    """
    check_tensor(input, "input")
    dims = [*range(input.ndim)] if dim is None else [dim_of(dim, input.ndim)]

    if input.dtype is torch.bool:
        raise RuntimeError("argument 'input' is bool, of which there is no largest or smallest element")

    check_elements(input, dim, IndexError)
    written, result = result_of(input, dims, keepdim, torch.int64, out)

    if boundary.has_work(result):
        launch_place(premake, written, input, dims, padding=limits(input.dtype)[side])

    return output.given(out, result)


def launch_place(premake, output, input, dims, chosen=None, **arguments):
    """Launch a kernel that returns indices and their elements, for each part, then for the results of the parts.

    :param output: The indices, of the shape of ``input`` without ``dims``.
    :param chosen: The configuration; ``None``: :func:`config` chooses.
    """
    compute_dtype = accumulate_dtype(input.dtype)
    rows = Rows.of(output, input, dims, compute_dtype, in_order=True)
    inputs, numbers = {"input": rows.input}, {}

    def run(scratch, chosen):
        launch_place(premake, scratch, input, dims, chosen, **arguments)

    options = chosen or rows.choose(premake, run, output)

    while True:
        count = rows.parts(options)
        indices = rows.output if count == 1 else rows.empty(count, torch.int64)
        outputs = {"output": indices, "value": rows.empty(count, compute_dtype)}
        rows.launch(premake, outputs, inputs, numbers, options, compute_dtype, parts=bool(numbers), **arguments)

        if count == 1:
            return

        numbers = {"scale": numbers.get("scale", 1) * options.steps * options.block_columns}
        rows = Rows.of(rows.output.squeeze(-1), outputs["value"], [indices.ndim - 1], compute_dtype, in_order=True)
        inputs = {"input": rows.input, "places": indices.view(rows.input.shape)}
        options = chosen or rows.choose(premake)


def cast_first(input, dtype):
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
    compute_dtype = accumulate_dtype(output.dtype)
    rows = Rows.of(output, input, dims, compute_dtype)

    if chosen is None:

        def run(scratch, chosen):
            launch(premake, scratch, input, dims, numbers, parts, chosen, **arguments)

        chosen = rows.choose(premake, run, output)

    count = rows.parts(chosen)
    last = count == 1
    result = rows.output if last else rows.empty(count, compute_dtype)
    kernel, given = (premake, numbers or {}) if last or not parts else (parts, {})
    rows.launch(kernel, {"output": result}, {"input": rows.input}, given, chosen, compute_dtype, **arguments)

    if not last:
        launch(premake, rows.output.squeeze(-1), result, [result.ndim - 1], numbers, parts, **arguments)


@dataclasses.dataclass(frozen=True)
class Rows:
    """Hold what a kernel gets: results of a number of elements each, with dims merged."""

    output: torch.Tensor
    """The result, (*shape, 1)."""
    input: torch.Tensor
    """The elements, (*shape, *reduced dims)."""
    problem: Problem

    @classmethod
    def of(cls, output, input, dims, compute_dtype, in_order=False):
        """Merge dims, and order them by the strides of the input.

        :param output: The result, of the shape of ``input`` without ``dims``.
        :param in_order: Whether elements that are reduced keep their order.
        """
        input, dims = (input, dims) if input.ndim else (input.view(1), [0])
        kept = [dim for dim in range(input.ndim) if dim not in dims]
        shape, (input_strides, output_strides) = collapse(
            [input.shape[dim] for dim in kept], [[input.stride(dim) for dim in kept], output.stride()]
        )
        sizes, strides = [input.shape[dim] for dim in dims], [input.stride(dim) for dim in dims]
        reduced, (steps,) = collapse(sizes, [strides], in_order)
        # A single row has no next one: a stride of 1 to it would keep its elements from being loaded together.
        input_strides = [stride if size > 1 else 0 for size, stride in zip(shape, input_strides, strict=True)]
        # An expanded dim has no neighbours.
        across = (input_strides[-1] or math.inf) < (steps[-1] or math.inf)
        problem = Problem(math.prod(shape[:-1]), shape[-1], math.prod(reduced), across, input.dtype, compute_dtype)

        return cls(
            output.as_strided((*shape, 1), (*output_strides, 1)),
            input.as_strided((*shape, *reduced), (*input_strides, *steps)),
            problem,
        )

    def choose(self, premake, run=None, output=None):
        """Choose the configuration; see :func:`config_selection.choose`."""
        name = premake.__module__.rpartition(".")[2]
        return config_selection.choose(name, self.problem, self.input.device.index or 0, run, output)

    def parts(self, chosen):
        """Return the number of parts in which each result is computed."""
        return -(-self.problem.columns // (chosen.block_columns * chosen.steps))

    def empty(self, parts, dtype):
        """Return a tensor for the results of the parts."""
        sizes = (*self.output.shape[:-1], parts)
        return recorder.empty(sizes, contiguous_strides(sizes), dtype, self.output.device)

    def launch(self, premake, outputs, inputs, numbers, chosen, compute_dtype, **arguments):
        """Launch a kernel.

        :param outputs: The tensors that it writes, by name, (*shape, parts).
        :param inputs: The tensors that it reads, by name, of the shape of :attr:`input`.
        :param numbers: Its Python numbers by name; ints are int64 there, floats float64.
        """
        (first, *_), (parts, *_) = inputs.values(), outputs.values()
        written, read = specialize(outputs), specialize(inputs)
        specialization = Specialization(
            written.unit_strides + read.unit_strides, read.unit, read.vectors, written.wide or read.wide
        )
        arguments = {"ndim": first.ndim, "kept": parts.ndim - 1} | arguments

        if numbers:
            types = {float: "fp64", int: "i64"}
            arguments["scalars"] = tuple((name, types[type(number)]) for name, number in numbers.items())

        steps = -1 if parts.shape[-1] == 1 else chosen.steps
        blocks = (("block_rows", chosen.block_rows), ("block_columns", chosen.block_columns), ("steps", steps))

        with on_device(parts.device):
            kernel = make(premake, arguments, Config(blocks, chosen.num_warps), specialization)
            kernel(*outputs.values(), *inputs.values(), *numbers.values(), TRITON_DTYPES[compute_dtype])
