"""Functions that reduce one dim, such as softmax and the norms: a row of it is the work of one program."""

import dataclasses

from ntops.host.configuration import heuristic
from ntops.host.iteration import collapse, specialize
from ntops.host.launch import next_power_of_2, on_device
from ntops.host.promotion import TRITON_DTYPES, accumulate_dtype, scalar_type
from ntops.torch.utils import Config, make

# Longer rows are walked tile by tile; up to here a row stays in registers, of which a float64 takes two.
LONGEST_TILE = 16384


@heuristic(("columns",), tuple((1 << power,) for power in range(4, LONGEST_TILE.bit_length())))
def config(columns, compute_dtype, longest_tile=LONGEST_TILE):
    """The configuration for rows of ``columns`` elements; a row longer than a tile is walked tile by tile.

    :param columns: The length of a row.
    :param compute_dtype: The dtype of the elements in registers.
    :param longest_tile: How many registers a tile of one row may take.
    """
    registers = compute_dtype.itemsize // 4
    longest = longest_tile // registers
    block_columns = min(max(next_power_of_2(columns), 16), longest)
    width = block_columns * registers
    # A tile of about 4096 registers keeps a program busy; narrow rows share one.
    block_rows = max(4096 // width, 1)
    num_warps = 4 if width <= 4096 else 8 if width <= 8192 else 16

    return Config((("block_rows", block_rows), ("block_columns", block_columns)), num_warps)


def launch(premake, operands, dim=-1, numbers=None, longest_tile=LONGEST_TILE):
    """Launch a kernel that reduces ``dim``.

    :param premake: The kernel's ``premake``.
    :param operands: The tensors by name, the output first, all of one shape of at least one dim and not empty.
    :param numbers: The Python numbers of the kernel by name, in the order of the application.
    :param longest_tile: How many registers the kernel can spend on a tile of one row.
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
    chosen = config(columns, compute_dtype, longest_tile)
    arguments = {"ndim": len(shape) + 1, "looped": columns > dict(chosen.blocks)["block_columns"]}

    if numbers:
        arguments["scalars"] = tuple((name, scalar_type(compute_dtype)) for name in numbers)

    kernel = make(premake, arguments, chosen, specialization)

    with on_device(output.device):
        kernel(*views.values(), *map(float, (numbers or {}).values()), TRITON_DTYPES[compute_dtype])
