"""The shared arrangement of kernels that reduce dims away, such as ``sum`` and ``amax``, and their tensors.

The host orders the dims of the input: first those that stay, then those that are reduced. No stride is asked of them,
so that nothing is copied. A program takes ``block_rows`` elements of the result, adjacent along the last dim that
stays, and walks over ``steps`` tiles of the reduced dims. Where these are only a part of the reduced dims, each part
has a result of its own, and the same kernel reduces the parts.
"""

import functools

from ninetoothed import Tensor, block_size

from ntops.kernels import constants


def arrangement(*tensors, outputs=1, kept=1, block_rows=None, block_columns=None, steps=-1):
    """Bring the inputs to outer x rows x columns and the outputs to outer x rows x parts, and tile them.

    :param outputs: The number of outputs, which go first.
    :param kept: The number of leading dims that stay; 1 or more.
    :param block_rows: The number of results of a program.
    :param block_columns: The number of reduced elements of a tile.
    :param steps: The number of tiles of a part; -1: all of a row.
    """
    block_rows = block_size() if block_rows is None else block_rows
    block_columns = block_size() if block_columns is None else block_columns

    def arrange(tensor, is_output):
        if tensor.ndim == 0:
            return tensor

        columns = tensor.flatten(kept)
        matrix = columns.flatten(0, kept - 1) if kept > 1 else columns.unsqueeze(0)
        tiled = matrix.tile((1, block_rows, 1 if is_output else block_columns))

        if is_output:
            tiled.dtype = tiled.dtype.squeeze((0, 2))
            return tiled

        walked = tiled.tile((1, 1, steps))
        walked.dtype = walked.dtype.squeeze((0, 1))
        walked.dtype.dtype = walked.dtype.dtype.squeeze(0)
        return walked

    return tuple(arrange(tensor, place < outputs) for place, tensor in enumerate(tensors))


def premaker(application, *, result=lambda dtype: dtype, other=lambda dtype: 0, numbers=()):
    """Return the ``premake`` of a kernel with one input and one output.

    :param application: ``application(output, input, *numbers, compute_dtype)``.
    :param result: The function from the dtype of the input to that of the result.
    :param other: The function from the dtype of the input to the element that pads tiles.
    :param numbers: The names of the kernel's Python numbers.
    """

    def premake(
        ndim,
        kept=1,
        dtype=None,
        output_dtype=None,
        compute_dtype=None,
        scalars=None,
        padding=None,
        block_rows=None,
        block_columns=None,
        steps=-1,
    ):
        """Return the arrangement, application and tensors of the kernel.

        :param ndim: The number of dims of the input, of which ``kept`` stay. The output has one more than these: its
            parts.
        :param dtype: The element type of the input; only ahead-of-time builds need it, and that of the output.
        :param scalars: The types of the Python numbers by name.
        :param padding: The element that pads tiles.
        """
        output_dtype = output_dtype or result(dtype)
        compute_dtype = compute_dtype or constants.accumulated(output_dtype)
        types = dict(scalars or constants.numbers(output_dtype, *numbers))
        padding = constants.padding(other(dtype) if padding is None else padding)
        output = Tensor(kept + 1, dtype=output_dtype, name="output")
        tensors = (output, Tensor(ndim, dtype=dtype, other=padding, name="input"))
        tensors += tuple(Tensor(0, dtype=types.get(name), name=name) for name in numbers)

        return bind(application, tensors, compute_dtype, kept, block_rows, block_columns, steps)

    # Kernels are known by these names.
    premake.__module__, premake.__qualname__ = application.__module__, "premake"
    return premake


def bind(application, tensors, compute_dtype, kept, block_rows, block_columns, steps, outputs=1, **literals):
    """Return the arrangement, application and tensors of a kernel that computes in ``compute_dtype``."""
    arranged = functools.partial(
        arrangement, outputs=outputs, kept=kept, block_rows=block_rows, block_columns=block_columns, steps=steps
    )

    return arranged, *constants.bind(application, tensors, compute_dtype=compute_dtype, **literals)
