"""Functions that reduce one dim, such as softmax and the norms: a row of it is the work of one program."""

import dataclasses

import torch

from ntops.host import choice
from ntops.host.configuration import heuristic
from ntops.host.iteration import collapse, specialize
from ntops.host.launch import next_power_of_2, on_device
from ntops.host.promotion import TRITON_DTYPES, accumulate_dtype, scalar_type
from ntops.torch.utils import Config, make

# Longer rows are walked tile by tile; up to here a row stays in registers, of which a float64 takes two.
LONGEST_TILE = 16384


@dataclasses.dataclass(frozen=True)
class Options:
    """How rows are reduced: a tile, and the warps of a program."""

    block_rows: int
    block_columns: int
    num_warps: int


@dataclasses.dataclass(frozen=True)
class Problem(choice.Problem):
    """Rows of ``columns`` elements.

    How many rows there are is no part of it: a row computed alone has the bits that it has among others, and they
    follow from the order in which a program of these options adds up.
    """

    OPTIONS = Options
    SIZES = ("columns",)

    columns: int
    dtype: torch.dtype
    """Of the result."""
    compute_dtype: torch.dtype
    """Of the elements in registers."""
    tensors: int
    """How many tiles there are, the result's included."""
    walked_tile: int = LONGEST_TILE
    """How many registers the kernel can spend on a tile where it walks over a row."""

    def rule(self, device):
        return config(self.columns, self.compute_dtype, self.walked_tile)

    def space(self, device):
        registers = self.compute_dtype.itemsize // 4
        whole = max(next_power_of_2(self.columns), 16)
        # Whole rows where registers hold one: one at a time, or as many as are a tile of up to 8192 registers.
        widths = [whole] if whole * registers <= LONGEST_TILE else []
        # A row that is walked is read twice or more, the second time from the L2 cache.
        widths += [width for width in (16384, 8192, 4096) if width < whole and width * registers <= self.walked_tile]
        found = []

        for width in widths:
            for block_rows in (1, 2, 4, 8, 16, 32):
                if block_rows == 1 or (width == whole and block_rows * width * registers <= 8192):
                    # From 4 to 64 elements for each thread.
                    threads = (32 * warps for warps in (1, 2, 4, 8, 16, 32))
                    found += [
                        Options(block_rows, width, count // 32)
                        for count in threads
                        if 4 <= block_rows * width * registers // count <= 64
                    ]

        return found

    def allows(self, options):
        # A tile holds a row, without more idle lanes than there have to be, or rows are walked.
        return options.block_columns <= max(next_power_of_2(self.columns), 16)

    def resources(self, options):
        # A thread holds its elements of the input in the dtype in which is computed, and of what it is multiplied and
        # added to a part. The constants were read off kernels that Triton 3.7 compiled for sm_90.
        threads = 32 * options.num_warps
        elements = options.block_rows * options.block_columns // threads
        parts = self.compute_dtype.itemsize / 4 + (self.tensors - 2) * self.dtype.itemsize / 8

        return choice.Resources(4 * options.num_warps * options.block_rows, 24 + int(elements * parts), threads)


@heuristic(("columns",), tuple((1 << power,) for power in range(4, LONGEST_TILE.bit_length() + 1)))
def config(columns, compute_dtype, walked_tile=LONGEST_TILE):
    """The options for rows of ``columns`` elements; rows of more than ``block_columns`` are walked tile by tile.

    :param columns: The length of a row.
    :param compute_dtype: The dtype of the elements in registers.
    :param walked_tile: How many registers a tile may take where a row is walked.
    """
    registers = compute_dtype.itemsize // 4
    whole = max(next_power_of_2(columns), 16)

    if whole * registers > LONGEST_TILE:
        return Options(1, walked_tile // registers, 16)

    width = whole * registers
    # A tile of about 4096 registers keeps a program busy; narrow rows share one.
    block_rows = max(4096 // width, 1)
    num_warps = 4 if width <= 4096 else 8 if width <= 8192 else 16

    return Options(block_rows, whole, num_warps)


def launch(premake, operands, dim=-1, numbers=None, walked_tile=LONGEST_TILE):
    """Launch a kernel that reduces ``dim``.

    :param premake: The kernel's ``premake``.
    :param operands: The tensors by name, the output first, all of one shape of at least one dim and not empty.
    :param numbers: The Python numbers of the kernel by name, in the order of the application.
    :param walked_tile: How many registers the kernel can spend on a tile where it walks over a row.
    """
    output = next(iter(operands.values()))
    dim %= output.ndim
    columns = output.shape[dim]
    batch = [other for other in range(output.ndim) if other != dim]
    shape, strides = collapse(
        [output.shape[other] for other in batch],
        [[tensor.stride(other) for other in batch] for tensor in operands.values()],
    )

    if shape == (1,):
        # A single row: Triton would compile another kernel, with sums in another order, for a stride of 1.
        strides = [(0,) for _ in strides]

    views = {
        name: tensor.as_strided((*shape, columns), (*own, tensor.stride(dim)))
        for (name, tensor), own in zip(operands.items(), strides, strict=True)
    }
    specialization = specialize(views)

    if any(tensor.stride(other) % 16 and tensor.stride(other) != 1 for tensor in operands.values() for other in batch):
        # Also where such a dim has one element: a row computed alone is loaded, and so added up, as within its batch.
        specialization = dataclasses.replace(specialization, aligned=False)

    compute_dtype = accumulate_dtype(output.dtype)
    problem = Problem(columns, output.dtype, compute_dtype, len(operands), walked_tile)
    chosen = choice.choose(premake.__module__.rpartition(".")[2], problem, output.device.index or 0)
    arguments = {"ndim": len(shape) + 1, "looped": columns > chosen.block_columns}

    if numbers:
        arguments["scalars"] = tuple((name, scalar_type(compute_dtype)) for name in numbers)

    blocks = (("block_rows", chosen.block_rows), ("block_columns", chosen.block_columns))
    kernel = make(premake, arguments, Config(blocks, chosen.num_warps), specialization)

    with on_device(output.device):
        kernel(*views.values(), *map(float, (numbers or {}).values()), TRITON_DTYPES[compute_dtype])
