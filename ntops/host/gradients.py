"""Helpers that all gradients use: sums over broadcast dims, and the launch of elementwise gradient kernels."""

import functools
import math

import torch

from ntops.host import dim_order
from ntops.host.elementwise import launch
from ntops.host.promotion import TRITON_DTYPES, accumulate_dtype, promote
from ntops.kernels import column_sums
from ntops.kernels.elementwise_backward import APPLICATIONS, premake
from ntops.launch import recorder
from ntops.launch.devices import next_power_of_2, on_device
from ntops.launch.recorder import repeatable

# The elements of a tile, the widest tile, and the largest number of programs. Sums are split up by sizes alone, so that
# every device computes the same bits.
_TILE, _WIDEST, _PROGRAMS = 4096, 128, 1024
# As many rows are added up by one program, in narrower tiles: a second launch would take longer.
_FEW = 1024
_NARROW = 32


@repeatable
def elementwise(function, shape, dtype, gradient, *operands):
    """Return the gradient of an elementwise function for one argument, of ``shape`` and ``dtype``.

    :param function: The name of the formula, one of ``elementwise_backward.APPLICATIONS``.
    :param shape: The argument's shape, which broadcasts to that of ``gradient``.
    :param gradient: The gradient of the result.
    :param operands: The formula's further operands, in its order: tensors that broadcast to the shape of ``gradient``,
        and numbers.
    :return: A new tensor, summed over broadcast dims in float32 (float64 for float64), and rounded once.
    """
    shape, whole = torch.Size(shape), gradient.shape
    compute_dtype = accumulate_dtype(gradient.dtype)
    # A 0-d CPU tensor may go with GPU tensors.
    operands = [
        operand.item() if isinstance(operand, torch.Tensor) and operand.device != gradient.device else operand
        for operand in operands
    ]
    named = {"gradient": gradient} | dict(zip(APPLICATIONS[function][1], operands, strict=True))
    named = promote(named, gradient.dtype, compute_dtype)
    make = functools.partial(_run, function, whole, named, compute_dtype)

    if shape == whole:
        tensors = [operand for operand in named.values() if isinstance(operand, torch.Tensor)]
        strides = dim_order.result_strides(whole, tensors, len(tensors) < len(named))
        return make(recorder.empty(whole, strides, dtype, gradient.device))

    reduced, kept = _dims(shape, whole)
    order = reduced + kept
    sizes = [whole[dim] for dim in order]
    buffer = recorder.empty(sizes, dim_order.contiguous_strides(sizes), compute_dtype, gradient.device)
    make(buffer.permute(sorted(range(len(order)), key=order.__getitem__)))

    return add_up(buffer.flatten(0, len(reduced) - 1).flatten(1) if kept else buffer.view(-1, 1), dtype).view(shape)


def _run(function, shape, operands, compute_dtype, output):
    if output.numel():
        launch(premake, shape, {"output": output} | operands, compute_dtype, function=function)

    return output


def cast(source, output):
    """Write ``source`` to ``output``, a tensor of the same shape, rounded to its dtype."""
    operands = {"gradient": source} | dict.fromkeys(APPLICATIONS["scaled"][1], 1.0)
    _run("scaled", source.shape, operands, accumulate_dtype(source.dtype), output)


def _dims(shape, whole):
    """Return the dims along which a tensor of ``shape`` was broadcast to ``whole``, and the other dims."""
    missing = len(whole) - len(shape)
    reduced = [dim for dim, size in enumerate(whole) if dim < missing or (shape[dim - missing] == 1 and size != 1)]
    return reduced, [dim for dim in range(len(whole)) if dim not in reduced]


@repeatable
def summed(gradient, shape, dtype, scale=1.0, *, passed=True):
    """Return ``scale * gradient`` summed over the dims broadcast from ``shape``.

    :param passed: Whether ``gradient`` itself is returned if nothing changes.
    :return: A tensor of ``shape`` and ``dtype``.
    """
    shape = torch.Size(shape)

    if shape == gradient.shape:
        if passed and scale == 1 and gradient.dtype is dtype:
            return gradient

        return elementwise("scaled", shape, dtype, gradient, scale)

    reduced, kept = _dims(shape, gradient.shape)
    moved = gradient.permute(reduced + kept)
    matrix = (math.prod(moved.shape[: len(reduced)]), math.prod(moved.shape[len(reduced) :]))

    try:
        moved = moved.view(matrix)
    except RuntimeError:
        # The other dims cannot be walked with a single stride.
        moved = moved.reshape(matrix)

    return add_up(moved, dtype, scale).view(shape)


def add_up(matrix, dtype, scale=1.0, output=None):
    """Return ``scale`` times the sum of a matrix's rows, (columns,), summed in the matrix's compute dtype.

    The sums of parts of the rows are added up in the same order each time.

    :param output: The contiguous tensor to write, of this dtype; ``None``: a new one.
    """
    rows, columns = matrix.shape
    output = recorder.empty((columns,), (1,), dtype, matrix.device) if output is None else output

    if not columns:
        return output

    if not rows:
        return output.zero_()

    is_few = rows <= _FEW
    block_c = min(next_power_of_2(columns), _NARROW if is_few else _WIDEST)
    block_r = _TILE // block_c
    tiles = -(-rows // block_r)
    parts = 1 if is_few else min(tiles, max(_PROGRAMS // -(-columns // block_c), 1))
    part = -(-tiles // parts)
    parts = -(-tiles // part)
    compute_dtype = accumulate_dtype(matrix.dtype)

    if parts > 1:
        partial = recorder.empty((parts, columns), (columns, 1), compute_dtype, matrix.device)
        _add_rows(partial, matrix, part * block_r, 1.0, block_r, block_c)
        matrix, part = partial, -(-parts // block_r)

    _add_rows(output, matrix, part * block_r, float(scale), block_r, block_c)
    return output


def _add_rows(output, matrix, part, scale, block_r, block_c):
    rows, columns = matrix.shape

    with on_device(matrix.device):
        recorder.launch(
            column_sums.add_rows,
            (-(-columns // block_c), -(-rows // part)),
            {},
            output,
            matrix,
            *matrix.stride(),
            rows,
            columns,
            part,
            scale,
            TRITON_DTYPES[accumulate_dtype(matrix.dtype)],
            matrix.stride(1) == 1,
            block_r,
            block_c,
        )
