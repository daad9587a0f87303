"""Launch functions that reduce one dim, such as softmax and the norms; a program takes whole rows of that dim."""

import dataclasses

import torch

from ntops.host.dim_order import collapse, common_unit, specialize
from ntops.host.promotion import TRITON_DTYPES, accumulate_dtype, scalar_type
from ntops.launch import config_selection, recorder
from ntops.launch.configuration import heuristic
from ntops.launch.devices import next_power_of_2, on_device
from ntops.launch.kernel_sources import Config, make
from ntops.launch.settings import get_default_num_warps

# Rows up to this length stay in registers (a float64 takes two); longer rows are walked tile by tile.
LONGEST_TILE = 16384
# A program reads a walked row twice or more, the second time from a cache, in tiles of at most this many registers.
WALKED_TILE = 8192
# Tiles narrower than the first number walk rows of at most as many tiles as the second. Over more tiles the norms
# compensate their sums for rounding: layer_norm of 4096 x 20000 bfloat16 takes 108 us on an H200, and 145 us
# compensated.
NARROWEST_WALKED, NEAR = 2048, 64
# For rows along another dim than the last, a program takes this many adjacent bytes, and walks down in tiles of this
# many elements.
WIDTH, TALLEST = 64, 256


@dataclasses.dataclass(frozen=True)
class Options:
    """The configuration of a row reduction: a tile, and the warps of a program."""

    block_rows: int
    block_columns: int
    num_warps: int


@dataclasses.dataclass(frozen=True)
class Problem(config_selection.Problem):
    """A reduction of rows of ``columns`` elements.

    The number of rows is not part of it: a row computed alone has the same bits as among others. Its bits depend on the
    order of summation, which these options decide.
    """

    OPTIONS = Options
    SIZES = ("columns",)

    columns: int
    dtype: torch.dtype
    """The dtype of the result."""
    compute_dtype: torch.dtype
    """The dtype of the elements in registers."""
    tensors: int
    """The number of tensors with a tile each, the result included."""

    def rule(self, device):
        return config(self.columns, self.dtype, self.compute_dtype, self.tensors)

    def space(self, device):
        registers = self.compute_dtype.itemsize // 4
        whole = max(next_power_of_2(self.columns), 16)
        # Whole rows if registers hold one: one at a time, or as many as fill a tile of up to 8192 registers.
        widths = [whole] if whole * registers <= LONGEST_TILE else []
        widths += [
            width for width in (8192, 4096, NARROWEST_WALKED) if width < whole and width * registers <= WALKED_TILE
        ]
        found = []

        for width in widths:
            for block_rows in (1, 2, 4, 8, 16, 32):
                if block_rows == 1 or (width == whole and block_rows * width * registers <= 8192):
                    # Between 4 and 64 elements for each thread.
                    threads = (32 * warps for warps in (1, 2, 4, 8, 16, 32))
                    found += [
                        Options(block_rows, width, count // 32)
                        for count in threads
                        if 4 <= block_rows * width * registers // count <= 64
                    ]

        return found

    def allows(self, options):
        # A tile holds a row without avoidable idle lanes, or rows are walked.
        whole = max(next_power_of_2(self.columns), 16)
        return options.block_columns <= whole and is_accurate(options, self.columns)

    def resembles(self, other, options):
        # Whole tiles are not masked, and their loop is unrolled.
        whole, others = (problem.columns % options.block_columns == 0 for problem in (self, other))
        return whole == others

    def resources(self, options):
        # A thread holds its elements of the input in the compute dtype, and part of the elements of the parameters. The
        # constants were read off kernels that Triton 3.7 compiled for sm_90.
        threads = 32 * options.num_warps
        elements = options.block_rows * options.block_columns // threads
        parts = self.compute_dtype.itemsize / 4 + (self.tensors - 2) * self.dtype.itemsize / 8

        return config_selection.Resources(
            4 * options.num_warps * options.block_rows, 24 + int(elements * parts), threads
        )


def is_accurate(options, columns):
    """Tell whether rows take few steps in narrow tiles: each lane rounds once a step. layer_norm of 5.4 million columns
    in tiles of 16 was off by 770 roundings of float32."""
    return options.block_columns >= NARROWEST_WALKED or not is_far(options, columns)


def is_far(options, columns):
    """Tell whether rows take so many steps that the rounding errors of each lane's sums count."""
    return columns > NEAR * options.block_columns


_POINTS = (*((1 << power,) for power in range(4, LONGEST_TILE.bit_length() + 3)), (LONGEST_TILE - 1,))


@heuristic(("columns",), _POINTS, is_accurate)
def config(columns, dtype, compute_dtype, tensors):
    """Choose the options for rows of ``columns`` elements; rows of more than ``block_columns`` are walked tile by tile.

    Figures are for 268 MB of bfloat16 or 537 MB of float32 in and out on an H200, where copies take 63 and 124 us.

    :param columns: The length of a row.
    :param dtype: The dtype of the result.
    :param compute_dtype: The dtype of the elements in registers.
    :param tensors: The number of tensors with a tile each, the result included.
    """
    registers = compute_dtype.itemsize // 4
    whole = max(next_power_of_2(columns), 16)
    width = whole * registers
    halves = dtype.itemsize == 2

    if tensors == 2:
        # 16384 columns of half types: 66 us (whole rows in registers 73 us, with a partial tile 78 us).
        if width > LONGEST_TILE or (halves and width == LONGEST_TILE and columns % 4096 == 0):
            return _walked(columns, registers, halves, narrow_up_to=32768)

        # A tile of about 2048 registers, or 4096 with parameters to load, keeps a program busy.
        num_warps = 4 if width <= 4096 else 8 if width <= 8192 else 16
        return Options(max(2048 // width, 1), whole, num_warps)

    if width >= LONGEST_TILE:
        # 32768 columns of float32: layer_norm 157 us (in tiles of 8192 167 us), rms_norm 147 us (in tiles of 8192 144
        # us); layer_norm of 65536 columns 181 us (in tiles of 8192 189 us), of 16384 columns 131 us (with 16 warps 135
        # us).
        return _walked(columns, registers, halves, narrow_up_to=16384 if tensors == 3 else 65536)

    # rms_norm of half types, 4096 columns: 34.8 us (with 4 warps 37.5), 8192 columns: 64.4 us (with 8 warps 70.4);
    # layer_norm of float32, 4096 columns: 67.2 us (with 4 warps 69.8).
    wide = halves and width == 8192 if tensors == 3 else not halves and width == 4096
    num_warps = 4 if width < 4096 else 16 if wide else 8
    # layer_norm of half types, 4096 columns: 35.6 us (a row at a time 36.4).
    tile = 8192 if tensors == 4 and halves and width == 4096 else 4096

    return Options(max(tile // width, 1), whole, num_warps)


def _walked(columns, registers, halves, narrow_up_to):
    """Choose the options for rows that are walked.

    :param narrow_up_to: Rows of wider types with at most this many columns take tiles of half the size.
    """
    if halves and (columns <= 16384 or (columns <= 32768 and columns % WALKED_TILE)):
        # rms_norm: 64 us (whole rows in registers 68 us); layer_norm: 69 us (whole rows 89 us).
        return Options(1, 4096, 16)

    # 32768 columns of half types: softmax 68 us (in tiles of 4096 with 16 warps 77 us), layer_norm 76 us (83), rms_norm
    # 68 us (73). softmax of float32: 32768 columns take 140 us in tiles of 4096, and 149 us in tiles of 8192; 65536
    # columns take 175 and 149 us. float64 was not measured.
    tile = WALKED_TILE // 2 if not halves and columns <= narrow_up_to else WALKED_TILE
    return Options(1, tile // registers, 32)


def launch(premake, operands, dim=-1, numbers=None, walk=None, across=None, chosen=None):
    """Launch a kernel that reduces ``dim``.

    :param premake: The kernel's ``premake``.
    :param operands: The tensors by name, the output first, all of one shape of at least one dim and not empty.
    :param numbers: The Python numbers of the kernel by name, in the order of the application.
    :param walk: The kernel of :mod:`ntops.kernels.long_rows` for the long rows that it takes, or ``None``.
    :param across: The kernel of that module for rows along another dim than the last one, or ``None``.
    :param chosen: The configuration; ``None``: :func:`config` chooses.
    """
    output = next(iter(operands.values()))
    dim %= output.ndim
    columns = output.shape[dim]
    compute_dtype = accumulate_dtype(output.dtype)

    if any(tensor.dtype is torch.float64 for name, tensor in operands.items() if name != "input"):
        # A weight that float32 rounds, to half a step where it is subnormal, is wrong by that before it multiplies.
        compute_dtype = torch.float64

    if chosen is None:
        problem = Problem(columns, output.dtype, compute_dtype, len(operands))

        def run(scratch, chosen):
            launch(premake, operands | {"output": scratch}, dim, numbers, walk, across, chosen)

        name = premake.__module__.rpartition(".")[2]
        chosen = config_selection.choose(name, problem, output.device.index or 0, run, output)

    walked = columns > chosen.block_columns
    views, specialization = _rows_of(operands, dim)

    with on_device(output.device):
        if across and compute_dtype is torch.float32 and dim != output.ndim - 1:
            _walk_across(across, operands, dim)
            return

        if walk and walked and compute_dtype is torch.float32 and _is_plain(views, specialization):
            if views["input"].ndim > 2:
                # The same kernel computes a row in any part of a batch.
                views, _ = _rows_of(operands | {"input": operands["input"].contiguous()}, dim)

            _walk(walk, views, numbers or {}, chosen)
            return

        arguments = {"ndim": views["output"].ndim, "looped": walked}

        if walked and numbers:
            arguments["far"] = is_far(chosen, columns)

        if columns == chosen.block_columns:
            # layer_norm of 8192 x 4096 bfloat16 takes 36 us on an H200 without a mask, and 39 us with one (a copy 34
            # us).
            filled = (("output", views["output"].ndim - 1),)
            specialization = dataclasses.replace(specialization, filled=filled)

        if numbers:
            arguments["scalars"] = tuple((name, scalar_type(compute_dtype)) for name in numbers)

        blocks = (("block_rows", chosen.block_rows), ("block_columns", chosen.block_columns))
        kernel = make(premake, arguments, Config(blocks, chosen.num_warps), specialization)
        kernel(*views.values(), *map(float, (numbers or {}).values()), TRITON_DTYPES[compute_dtype])


def _rows_of(operands, dim):
    """Return the operands with ``dim`` last and the other dims merged as far as strides allow, and their
    specialization."""
    output = operands["output"]
    batch = [other for other in range(output.ndim) if other != dim]
    shape, strides = collapse(
        [output.shape[other] for other in batch],
        [[tensor.stride(other) for other in batch] for tensor in operands.values()],
    )

    if shape == (1,):
        # A single row has stride 0: for a stride of 1 Triton would compile another kernel, which sums in another order.
        strides = [(0,) for _ in strides]

    views = {
        name: tensor.as_strided((*shape, output.shape[dim]), (*own, tensor.stride(dim)))
        for (name, tensor), own in zip(operands.items(), strides, strict=True)
    }
    specialization = specialize(views)

    steps = [step for tensor in operands.values() for other in batch if (step := tensor.stride(other)) != 1]
    # Of dims of one element, too: a row computed alone is loaded, and so summed, as within its batch.
    unit = min(specialization.unit, common_unit(steps, min(tensor.itemsize for tensor in operands.values())))

    return views, dataclasses.replace(specialization, unit=unit)


def _is_plain(views, specialization):
    """Tell whether the kernels of ``long_rows`` take the rows: they must be contiguous and aligned to 16 bytes."""
    return specialization.unit >= _vector(views) and views["output"].stride(-1) == views["input"].stride(-1) == 1


def _walk_across(kernel, operands, dim):
    """Launch a kernel for rows along another dim than the last one, of any strides."""
    output, input = operands["output"], operands["input"]
    outer = [other for other in range(output.ndim - 1) if other != dim]
    shape, strides = collapse(
        [output.shape[other] for other in outer],
        [[tensor.stride(other) for other in outer] for tensor in (output, input)],
    )

    if len(shape) > 2:
        _walk_across(kernel, {"output": output, "input": input.contiguous()}, dim)
        return

    shape, strides = (1, *shape)[-2:], [(0, *own)[-2:] for own in strides]
    columns, inner = output.shape[dim], output.shape[-1]
    # The order of summation depends on this tile alone.
    tile = min(max(next_power_of_2(columns), 16), TALLEST)
    width = min(WIDTH // input.element_size(), next_power_of_2(inner))

    # Take half as many bytes if there are too few programs.
    if shape[0] * shape[1] * -(-inner // width) < config_selection.device(output.device.index or 0).multiprocessors:
        width = max(width // 2, 1)

    inner_tiles = -(-inner // width)
    plain = output.stride(-1) == input.stride(-1) == 1
    steps = [one for own, tensor in zip(strides, (output, input), strict=True) for one in (*own, tensor.stride(dim))]
    unit = next(
        unit for unit in (8, 4, 2, 1) if (plain and all(step % unit == 0 for step in (inner, *steps))) or unit == 1
    )
    steps = [step // unit for step in steps]
    recorder.launch(
        kernel,
        (shape[0] * shape[1] * inner_tiles,),
        {"num_warps": max(tile * width // 1024, 1)},
        output,
        input,
        columns,
        inner // unit,
        inner_tiles,
        shape[1],
        *(*steps[:3], output.stride(-1)),
        *(*steps[3:], input.stride(-1)),
        plain,
        unit,
        tile,
        tile.bit_length() - 1,
        width,
        columns <= tile,
    )


def _vector(views):
    """Return the number of elements of 16 bytes, of the smallest elements."""
    return 16 // min(view.itemsize for view in views.values())


def _walk(kernel, views, numbers, options):
    output, input, *parameters = views.values()
    # A parameter that is left out has a single element.
    present = [bool(parameter.stride(-1)) for parameter in parameters]
    columns, tile, unit = output.shape[-1], options.block_columns, _vector(views)
    # A few whole tiles are compiled in: layer_norm of 4096 x 16384 bfloat16 takes 69 us on an H200, else 86 us.
    unrolled = columns % tile == 0 and columns <= 16 * tile
    recorder.launch(
        kernel,
        (output.shape[0],),
        {"num_warps": get_default_num_warps() or options.num_warps},
        output,
        input,
        *parameters,
        columns // unit,
        output.stride(0) // unit,
        input.stride(0) // unit,
        *map(float, numbers.values()),
        *present,
        unit,
        tile,
        columns // tile if unrolled else 0,
        # Only the norms, which take numbers, have a variant for rows of many steps.
        *([is_far(options, columns)] if numbers else []),
    )
