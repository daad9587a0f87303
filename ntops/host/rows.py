"""Functions that reduce one dim, such as softmax and the norms: a row of it is the work of one program."""

from ntops.host.iteration import collapse, specialize
from ntops.host.launch import next_power_of_2, on_device
from ntops.host.promotion import TRITON_DTYPES, accumulate_dtype, scalar_type
from ntops.torch.utils import Config, make

# Longer rows are walked tile by tile; up to here a row stays in registers.
LONGEST_TILE = 16384


def config(columns, longest_tile=LONGEST_TILE):
    """The configuration for rows of ``columns`` elements, and whether a row is walked tile by tile."""
    block_columns = min(max(next_power_of_2(columns), 16), longest_tile)
    # A tile of about 4096 elements keeps a program busy; narrow rows share one.
    block_rows = max(4096 // block_columns, 1)
    num_warps = 4 if block_columns <= 4096 else 8 if block_columns <= 8192 else 16

    return Config((("block_rows", block_rows), ("block_columns", block_columns)), num_warps), columns > longest_tile


def launch(premake, operands, dim=-1, numbers=None, longest_tile=LONGEST_TILE):
    """Launch a kernel that reduces ``dim``.

    :param premake: The kernel's ``premake``.
    :param operands: The tensors by name, the output first, all of one shape of at least one dim and not empty.
    :param numbers: The Python numbers of the kernel by name, in the order of the application.
    :param longest_tile: How many elements of a row the kernel can hold in registers.
    """
    output = next(iter(operands.values()))
    dim %= output.ndim
    columns = output.shape[dim]
    batch = [other for other in range(output.ndim) if other != dim]
    shape, strides = collapse(
        [output.shape[other] for other in batch],
        [[tensor.stride(other) for other in batch] for tensor in operands.values()],
    )
    views = {
        name: tensor.as_strided((*shape, columns), (*own, tensor.stride(dim)))
        for (name, tensor), own in zip(operands.items(), strides, strict=True)
    }
    chosen, looped = config(columns, longest_tile)
    compute_dtype = accumulate_dtype(output.dtype)
    arguments = {"ndim": len(shape) + 1, "looped": looped}

    if numbers:
        arguments["scalars"] = tuple((name, scalar_type(compute_dtype)) for name in numbers)

    kernel = make(premake, arguments, chosen, specialize(views))

    with on_device(output.device):
        kernel(*views.values(), *map(float, (numbers or {}).values()), TRITON_DTYPES[compute_dtype])
