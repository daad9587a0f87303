"""The shared arrangement of elementwise kernels, and their tensors."""

import dataclasses

from ninetoothed import Tensor
from ninetoothed import block_size as searched_block_size


@dataclasses.dataclass(frozen=True)
class Tile:
    """A tile along the last dim, and the names of operands that are constant along it.

    For these operands the tile has a single element, which is loaded once and broadcast.
    """

    columns: int
    constant: tuple[str, ...]


def arrangement(*tensors, block_size=None):
    """Flatten each tensor and cut it into tiles of ``block_size`` elements; 0-d tensors (scalars) stay as they are.

    The grid comes from the first tensor, so the output goes first.

    :param block_size: A number of elements; or a tuple with one for each dim, which tiles the dims unflattened; or a
        :class:`Tile`.
    """
    if isinstance(block_size, Tile):
        tile = (1,) * (tensors[0].ndim - 1) + (block_size.columns,)
        # Single elements, a tile apart: as many as there are tiles.
        return tuple(
            tensor.tile((1,) * len(tile), tile, floor_mode=True)
            if tensor.name in block_size.constant
            else arrangement(tensor, block_size=tile)[0]
            for tensor in tensors
        )

    if isinstance(block_size, tuple):
        return tuple(tensor.tile(block_size) if tensor.ndim else tensor for tensor in tensors)

    if block_size is None:
        block_size = searched_block_size()

    return tuple(tensor.flatten().tile((block_size,)) if tensor.ndim else tensor for tensor in tensors)


def tensors(ndim, *operands, dtype=None, output_dtype=None, scalars=None):
    """Return the output and the operands of an elementwise kernel, all of one shape (the host expands them).

    :param ndim: The number of dims of the tensors.
    :param operands: The names of the inputs.
    :param dtype: The element type of the inputs; only ahead-of-time builds need it.
    :param output_dtype: The element type of the output, likewise.
    :param scalars: The type of each input that is a Python number, by name.
    """
    scalars = scalars or {}
    output = Tensor(ndim, dtype=output_dtype or dtype, name="output")
    # All tensors share one set of sizes: this saves kernel arguments, and lets the compiler find one mask.
    inputs = (
        Tensor(0, dtype=scalars[name], name=name)
        if name in scalars
        else Tensor(shape=output.shape, dtype=dtype, name=name)
        for name in operands
    )

    return (output, *inputs)


def constant(name):
    """Return a compile-time argument of a kernel, such as the dtype in which it computes."""
    return Tensor(0, constexpr=True, name=name)
