"""``log(sum(exp(input))) - input[target]`` of each row: the losses of class indices, for rows that a tile holds.

A row's largest element and the logarithm of the sum of its exponentials relative to it are kept for the gradient.
"""

import functools

import ninetoothed.language as ntl
from ninetoothed import Tensor, block_size
from ninetoothed.language import libdevice

from ntops.kernels import constants


def arrangement(*tensors, block_rows=None, block_columns=None):
    """Tile the input, (rows, classes), and the other tensors, (rows,), by rows."""
    block_rows = block_size() if block_rows is None else block_rows
    block_columns = block_size() if block_columns is None else block_columns

    def arrange(tensor):
        if tensor.ndim == 0:
            return tensor

        if tensor.ndim == 2:
            return tensor.tile((block_rows, block_columns))

        tiled = tensor.unsqueeze(1).tile((block_rows, 1))
        tiled.dtype = tiled.dtype.squeeze(1)
        return tiled

    return tuple(map(arrange, tensors))


def application(output, maximum, logarithm, counted, input, target, classes, ignored, compute_dtype):
    values = ntl.cast(input, compute_dtype)
    largest = ntl.max(values, axis=1)
    below = values - largest[:, None]
    logarithms = libdevice.log(ntl.sum(ntl.exp(below), axis=1))
    label = ntl.cast(target, ntl.int64)
    columns = ntl.arange(0, values.shape[1])[None, :]
    chosen = ntl.sum(ntl.where(columns == label[:, None], below, 0), axis=1)
    is_class = (label >= 0) & (label < ntl.cast(classes, ntl.int64))
    losses = ntl.where(is_class, logarithms - chosen, float("nan"))
    is_ignored = label == ntl.cast(ignored, ntl.int64)
    output = ntl.cast(ntl.where(is_ignored, 0, losses), output.dtype)
    counted = ntl.cast(ntl.where(is_ignored, 0, 1), counted.dtype)
    maximum = ntl.cast(largest, maximum.dtype)
    logarithm = ntl.cast(logarithms, logarithm.dtype)


def premake(dtype=None, output_dtype=None, compute_dtype=None, target_dtype=None, block_rows=None, block_columns=None):
    """Return the arrangement, application and tensors of ``cross_entropy`` without a reduction.

    ``classes`` is the number of columns, and ``ignored`` the class index whose rows have a loss of 0, and are not
    ``counted``.
    """
    compute_dtype = compute_dtype or constants.accumulated(dtype)
    integers = "i64" if dtype else None
    tensors = (
        *(
            Tensor(1, dtype=name_dtype, name=name)
            for name, name_dtype in (
                ("output", output_dtype or dtype),
                ("maximum", compute_dtype),
                ("logarithm", compute_dtype),
                ("counted", compute_dtype),
            )
        ),
        Tensor(2, dtype=dtype, other=float("-inf"), name="input"),
        Tensor(1, dtype=target_dtype or integers, other=0, name="target"),
        Tensor(0, dtype=integers, name="classes"),
        Tensor(0, dtype=integers, name="ignored"),
    )
    arranged = functools.partial(arrangement, block_rows=block_rows, block_columns=block_columns)

    return arranged, *constants.bind(application, tensors, compute_dtype=compute_dtype)
