"""Sum up the elements along one dim, as ``cumsum`` does: the configuration and the launch.

As in :mod:`ntops.host.reductions`, the other dims are ordered by strides, and nothing is copied. If there are few rows
of many elements each, they are split into parts: the sums of all parts come first, and each part then starts at the sum
of those before it, always in the same order.
"""

import dataclasses

from ntops.host import output, reductions
from ntops.host.dim_order import contiguous_strides, specialize
from ntops.host.promotion import TRITON_DTYPES, accumulate_dtype
from ntops.host.reduction_arguments import dim_of, result_of
from ntops.host.reductions import PROGRAMS, SHORTEST, Options, Rows
from ntops.kernels import sum as sum_kernel
from ntops.launch import boundary, recorder
from ntops.launch.configuration import heuristic
from ntops.launch.devices import next_power_of_2, on_device
from ntops.launch.kernel_sources import Config, make
from ntops.launch.recorder import repeatable

# Rows are split up only into so many parts or more: the input is read once more for their sums.
FEWEST = 4
# The sums of parts that a program adds up are few beside its elements, whatever configuration is fixed.
MOST = 2 * PROGRAMS


@dataclasses.dataclass(frozen=True)
class Problem(reductions.Problem):
    """``outer`` times ``rows`` rows of ``columns`` elements each, all of which are results."""

    def rule(self, device):
        return config(*self._arguments())

    def space(self, device):
        return config.alternatives(*self._arguments())

    def allows(self, options):
        return is_fast(options, self.outer, self.rows, self.columns)

    def resources(self, options):
        # A thread holds its elements, and the sums up to each of them.
        found = super().resources(options)
        elements = options.block_rows * options.block_columns // found.threads
        more = elements * self.compute_dtype.itemsize // 4

        return dataclasses.replace(found, registers=found.registers + more)


def is_fast(options, outer, rows, columns):
    """Tell whether rows have so few parts that their sums cost little."""
    return -(-columns // (options.block_columns * options.steps)) <= MOST


@heuristic(("outer", "rows", "columns"), reductions.POINTS, is_fast)
def config(outer, rows, columns, across, itemsize, compute_itemsize):
    """Choose the tile, and in how many parts rows are summed; the arguments are those of :func:`reductions.config`."""
    block_rows, block_columns = reductions.tile_of(outer, rows, columns, across, itemsize, compute_itemsize)
    parts = max(PROGRAMS // (outer * -(-rows // block_rows)), 1)
    tiles = -(-columns // block_columns)
    steps = max(next_power_of_2(-(-tiles // parts)), SHORTEST)

    if -(-tiles // steps) < FEWEST:
        steps = max(next_power_of_2(tiles), SHORTEST)

    return Options(block_rows, block_columns, steps, max(min(block_rows * block_columns // 512, 8), 1))


def cumulate(premake, input, dim, dtype, out):
    """Run the kernel of a cumulative sum.

    :param premake: The kernel's ``premake``.
    :param input: A checked tensor; its elements are cast to ``dtype`` first.
    :param dim: The caller's ``dim``, not yet checked.
    :param dtype: The dtype of the result.
    :param out: The caller's ``out``, not yet checked.
    :return: A contiguous tensor of the shape of ``input``; ``out`` if it is given.
    :raises TypeError: An argument has the wrong type.
    :raises IndexError: ``dim`` is out of range.
    :raises RuntimeError: The device or ``out`` does not fit.
    :raises NotImplementedError: A complex, sparse, quantized or nested ``input``.
    """
    dim = dim_of(dim, input.ndim)
    written, result = result_of(input, (), False, dtype, out)

    if boundary.has_work(result):
        launch(premake, written, reductions.cast_first(input, dtype), dim)

    return output.given(out, result)


@repeatable
def reversed_sums(premake, input, dim, dtype):
    """Return for each element the sum of those from it on along ``dim``: the gradient of a cumulative sum.

    :param dtype: The dtype of the result, to which elements of ``input`` are cast first.
    :return: A contiguous tensor of the shape of ``input``.
    """
    result = recorder.empty(input.shape, contiguous_strides(input.shape), dtype, input.device)

    if result.numel():
        launch(premake, result, reductions.cast_first(input, dtype), dim % max(input.ndim, 1), reverse=True)

    return result


def launch(premake, output, input, dim, reverse=False, chosen=None):
    """Launch the kernel for a tensor that is not empty.

    :param output: The tensor to write, of the shape of ``input``.
    :param dim: The dim along which elements are summed, from 0.
    :param reverse: Whether sums begin at the last element.
    :param chosen: The configuration; ``None``: :func:`config` chooses.
    """
    output, input = (tensor if tensor.ndim else tensor.view(1) for tensor in (output, input))
    compute_dtype = accumulate_dtype(output.dtype)
    rows = Rows.of(output.select(dim, 0), input, [dim], compute_dtype)
    stride = output.stride(dim)
    # Neighbours in either tensor may belong to different rows; a tile of rows serves both.
    across = rows.problem.across or 0 < rows.output.stride(-2) < stride
    problem = rows.problem
    problem = Problem(problem.outer, problem.rows, problem.columns, across, input.dtype, compute_dtype)
    rows = dataclasses.replace(rows, problem=problem)

    if chosen is None:

        def run(scratch, chosen):
            launch(premake, scratch, input, dim, reverse, chosen)

        chosen = rows.choose(premake, run, output)

    whole = rows.output.as_strided(rows.input.shape, (*rows.output.stride()[:-1], stride))
    views = {"output": whole, "input": rows.input}
    specialization = specialize(views)
    count = rows.parts(chosen)
    arguments = {"ndim": whole.ndim, "parts": count > 1, "reverse": reverse}
    blocks = {"block_rows": chosen.block_rows, "block_columns": chosen.block_columns}

    if count > 1:
        sums = rows.empty(count, compute_dtype)
        rows.launch(sum_kernel.premake, {"output": sums}, {"input": rows.input}, {}, chosen, compute_dtype)
        views["sums"] = sums
        together = max(reductions.TILE // chosen.block_rows, 1)
        blocks |= {"block_parts": min(next_power_of_2(count), together), "steps": chosen.steps}
        unit_strides = (*specialization.unit_strides, *specialize({"sums": sums}).unit_strides)
        specialization = dataclasses.replace(specialization, unit_strides=unit_strides)

    with on_device(output.device):
        kernel = make(premake, arguments, Config((*blocks.items(),), chosen.num_warps), specialization)
        kernel(*views.values(), TRITON_DTYPES[compute_dtype])
