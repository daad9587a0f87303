"""The shared arrangements of kernels that reduce the last dims of their tensors."""

import functools

from ninetoothed import block_size

from ntops.kernels import constants


def arrangement(*tensors, num_reduced=1, block_rows=None, block_columns=None, looped=False, parameters=()):
    """Bring each tensor to rows x columns, the last ``num_reduced`` dims being the columns, and tile it.

    :param num_reduced: The number of trailing dims that are reduced.
    :param block_rows: The number of rows that a program takes.
    :param block_columns: The number of columns of a tile; it must hold the whole row unless ``looped``.
    :param looped: Whether a program walks over the tiles of its rows; then each tensor is a row of tiles.
    :param parameters: The names of tensors whose rows are all equal; a program takes a single row of these.
    """
    if block_rows is None:
        block_rows = block_size()

    if block_columns is None:
        block_columns = block_size()

    def arrange(tensor):
        if tensor.ndim == 0:
            return tensor

        first = tensor.ndim - num_reduced
        matrix = tensor.flatten(first).flatten(0, first)
        single = tensor.name in parameters and block_rows != 1
        tiled = matrix.tile((1 if single else block_rows, block_columns))

        if not looped and not single:
            return tiled

        # Tensors of equal rows give one row to each program, the first of those that it takes.
        rows = tiled.tile((1, -1), (block_rows if single else -1, -1), floor_mode=single)
        rows.dtype = rows.dtype.squeeze(0 if looped else (0, 1))
        return rows

    return tuple(arrange(tensor) for tensor in tensors)


def bind(
    application, tensors, compute_dtype, looped=False, block_rows=None, block_columns=None, parameters=(), **literals
):
    """Return the arrangement, application and tensors of a kernel that reduces the last dim and computes in
    ``compute_dtype``."""
    arranged = functools.partial(
        arrangement, block_rows=block_rows, block_columns=block_columns, looped=looped, parameters=parameters
    )

    return arranged, *constants.bind(application, tensors, compute_dtype=compute_dtype, **literals)
