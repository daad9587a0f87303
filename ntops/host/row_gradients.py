"""Launch the kernels of the gradients of ``softmax`` and of the norms."""

import math

import torch

from ntops.host import gradients, rows
from ntops.host.dim_order import contiguous_strides
from ntops.host.promotion import TRITON_DTYPES, accumulate_dtype
from ntops.kernels import log_softmax_backward as log_softmax_kernel
from ntops.kernels import norm_backward
from ntops.kernels import softmax_backward as softmax_kernel
from ntops.launch import recorder
from ntops.launch.devices import multiprocessors, next_power_of_2, on_device
from ntops.launch.recorder import repeatable

# The longest float32 rows that stay in registers together with the sums for the weight; and the longest of which the
# sums for the bias and the next row do, too.
_LONGEST, _SHORT = 16384, 8192
# The warps of a multiprocessor that hold rows. A thread has 16 elements of either operand, 32 of the longest rows.
_WARPS = 16
# Of longer rows, the elements at a time; for the sums for parameters, the tile, and the programs of a multiprocessor.
_WALKED = 8192
_BLOCK_R, _BLOCK_C, _SUMMING = 16, 128, 8
# The most rows that a program adds up one after the other, so that few roundings accumulate.
_MOST_ROWS = 256


@repeatable
def softmax_backward(gradient, result, dim, dtype, log=False):
    """Return the gradient of ``softmax`` (``log``: of ``log_softmax``) over ``dim``, of the result's shape.

    The name differs from the operator's: under a mode, a call by that name would go to the dispatcher.

    :param dtype: The dtype of the argument; the kernel computes in float32 (float64 for a float64 result).
    :return: A contiguous tensor.
    """
    # The dtype of the output decides the compute dtype.
    computed = result.dtype if result.dtype is torch.float64 else dtype
    output = recorder.empty(result.shape, contiguous_strides(result.shape), computed, result.device)

    if output.numel():
        operands = {"output": output, "gradient": gradient, "result": result}
        operands = operands if result.ndim else {name: tensor.view(1) for name, tensor in operands.items()}
        rows.launch((log_softmax_kernel if log else softmax_kernel).premake, operands, dim)

    return output if computed is dtype else output.to(dtype)


@repeatable
def norm(gradient, input, weight, eps, centered, bias_dtype, to_input, to_weight, to_bias):
    """Return the gradients of ``layer_norm`` (``centered``) or ``rms_norm`` over the rows of a matrix.

    Gradients of the parameters are summed in float32 (float64 for float64), in an order that depends on the sizes and
    the device's number of multiprocessors.

    :param gradient: (rows, columns), not empty; ``input`` has the same shape and dtype.
    :param weight: (columns,), or ``None``.
    :param bias_dtype: The dtype of the bias, if its gradient is needed.
    :param to_input: Whether the gradient of the input is needed; ``to_weight`` and ``to_bias`` likewise.
    :return: The three gradients, contiguous, or ``None`` where they are not needed.
    """
    gradient, input = (one if one.stride(1) == 1 else one.contiguous() for one in (gradient, input))
    count, columns = input.shape
    compute_dtype = accumulate_dtype(input.dtype)
    device = input.device

    def empty(*shape, dtype=compute_dtype):
        return recorder.empty(shape, contiguous_strides(shape), dtype, device)

    output = empty(count, columns, dtype=input.dtype) if to_input else None
    block_c = max(next_power_of_2(columns), 16)
    registers = block_c * (compute_dtype.itemsize // 4)
    is_whole = registers <= _LONGEST
    # The bias of rows that fill the registers: its gradient is a sum of columns, which reads the gradient once more.
    is_apart = to_bias and _SHORT < registers <= _LONGEST
    to_partial_bias = to_bias and not is_apart
    dtype, processors = TRITON_DTYPES[compute_dtype], multiprocessors(device.index or 0)

    if is_whole:
        block_r = max(2048 // registers, 1)
        num_warps = min(max(block_r * registers // 512, 1), _WARPS)
        # As many programs as run at a time, each with a few tiles.
        programs = processors * (_WARPS // num_warps)
    else:
        block_r = _BLOCK_R
        programs = -(-processors * _SUMMING * _BLOCK_C // columns)

    tiles = -(-count // block_r)
    parts = min(tiles, max(programs, -(-tiles // _MOST_ROWS)))
    part = -(-tiles // parts)
    # Programs that take tiles in turn all have some; of adjacent parts the last may be empty.
    parts = parts if is_whole else -(-tiles // part)
    weights, biases = (empty(parts, columns) if wanted else None for wanted in (to_weight, to_partial_bias))
    weight, weight_dtype = (None, None) if weight is None else (weight.contiguous(), weight.dtype)
    # An output that is not needed is not written, so any tensor serves as its argument.
    output_, weights_, biases_ = (input if pointer is None else pointer for pointer in (output, weights, biases))
    strides = gradient.stride(0), input.stride(0)

    with on_device(device):
        if is_whole:
            if to_input or to_weight or to_partial_bias:
                recorder.launch(
                    norm_backward.whole_rows,
                    (parts,),
                    {"num_warps": num_warps},
                    *(output_, weights_, biases_, gradient, input, input if weight is None else weight),
                    *(*strides, count, columns, eps),
                    *(centered, weight is not None, to_input, to_weight, to_partial_bias),
                    *(dtype, columns == block_c, registers <= _SHORT, block_r, block_c),
                )
        else:
            means, scales = empty(count), empty(count)
            recorder.launch(
                norm_backward.walked_rows,
                (count,),
                {"num_warps": _WARPS},
                *(output_, means, scales, gradient, input, input if weight is None else weight),
                *(*strides, columns, eps, centered, weight is not None, to_input),
                *(dtype, _WALKED),
            )

            if to_weight or to_partial_bias:
                recorder.launch(
                    norm_backward.parameters,
                    (-(-columns // _BLOCK_C), parts),
                    {"num_warps": 4},
                    *(weights_, biases_, means, scales, gradient, input),
                    *(*strides, count, columns, part * block_r),
                    *(centered, to_weight, to_partial_bias, dtype, block_r, _BLOCK_C),
                )

    return (
        output,
        gradients.add_up(weights, weight_dtype) if to_weight else None,
        gradients.add_up(gradient if is_apart else biases, bias_dtype) if to_bias else None,
    )


def matrix(tensor, first):
    """Return a tensor as the matrix of its rows, the dims from ``first`` on; copied if needed."""
    return tensor.reshape(math.prod(tensor.shape[:first]), math.prod(tensor.shape[first:]))
