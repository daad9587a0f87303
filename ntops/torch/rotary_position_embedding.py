from ntops.host.arguments import check_tensor, common_device
from ntops.host.dim_order import result_strides
from ntops.host.output import check_written, given
from ntops.host.rope import rotate
from ntops.launch import boundary, recorder
from ntops.launch.recorder import repeatable


@repeatable
def rotary_position_embedding(input, sin_table, cos_table, interleaved=True, inplace=False):
    """Rotate each pair of elements of a head by the angle of its position (Su et al., arXiv:2104.09864).

    ``y0 = x0 cos - x1 sin`` and ``y1 = x0 sin + x1 cos``, computed in float32 (float64 for float64 input).

    :param input: A floating-point tensor, (B, T, H, D), D even, of any strides.
    :param sin_table: A floating-point tensor, (T', D / 2) with T' >= T: the sines by position and pair.
    :param cos_table: The cosines likewise.
    :param interleaved: Whether pairs are ``(x[2 i], x[2 i + 1])``, else ``(x[i], x[i + D / 2])``.
    :param inplace: Whether ``input`` itself is written and returned.
    :return: A tensor of the shape and dtype of ``input``.
    :raises TypeError: An argument is not a tensor.
    :raises RuntimeError: Shapes or devices do not fit, or ``input`` is expanded and to be written.
    :raises NotImplementedError: Integer, bool, complex, sparse, quantized or nested operands.
    """
    tensors = {"input": input, "sin_table": sin_table, "cos_table": cos_table}

    for name, tensor in tensors.items():
        check_tensor(tensor, name)

        if not tensor.dtype.is_floating_point:
            raise NotImplementedError(
                f"argument '{name}' has dtype {tensor.dtype}; rotations are of floating-point only"
            )

    if input.ndim != 4 or input.shape[-1] % 2:
        raise RuntimeError(f"argument 'input' must be (B, T, H, D) with D even, not {tuple(input.shape)}")

    length, half = input.shape[1], input.shape[-1] // 2

    for name, table in (("sin_table", sin_table), ("cos_table", cos_table)):
        if table.ndim != 2 or table.shape[1] != half or table.shape[0] < length:
            raise RuntimeError(
                f"argument '{name}' must have at least {length} rows of {half} columns, not {tuple(table.shape)}"
            )

    device = common_device(tensors)

    if inplace:
        check_written(input, "input")
        output = input
    else:
        strides = result_strides(input.shape, [input], has_numbers=False)
        output = recorder.empty(input.shape, strides, input.dtype, device)

    if boundary.has_work(output):
        rotate(output, input, sin_table[:length], cos_table[:length], bool(interleaved))

    return given(input if inplace else None, output)
