"""Normalize the exponentials of one dim, as ``softmax`` and ``log_softmax`` do."""

import torch

from ntops.host import rows
from ntops.host.arguments import DTYPES, check_tensor, common_device
from ntops.host.dim_order import contiguous_strides
from ntops.host.reduction_arguments import dim_of
from ntops.launch import boundary, recorder

FLOATING = {torch.float16, torch.bfloat16, torch.float32, torch.float64}


def normalize(premake, name, input, dim, dtype, walk=None, across=None):
    """Run a kernel that normalizes ``dim``.

    :param name: The operator's name, for errors.
    :param input: The caller's arguments, not yet checked; ``dim`` and ``dtype`` likewise.
    :param walk: The kernels of :mod:`ntops.kernels.long_rows` as for :func:`rows.launch`; ``across`` likewise.
    :return: A contiguous tensor of the shape of ``input``.
    :raises TypeError: An argument has the wrong type.
    :raises IndexError: ``dim`` is out of range.
    :raises NotImplementedError: A result that is not floating-point, unless it is empty; a complex, sparse, quantized
        or nested ``input``.
    """
    check_tensor(input, "input")
    dim = dim_of(dim, input.ndim)

    if dtype is not None and not isinstance(dtype, torch.dtype):
        raise TypeError(f"argument 'dtype' must be a torch.dtype or None, not {type(dtype).__name__}")

    dtype = dtype or input.dtype

    # torch takes any dtype if there are no elements.
    if dtype not in FLOATING and (dtype not in DTYPES or input.numel()):
        raise NotImplementedError(f"{name} of {dtype} is not defined; give a floating-point 'dtype' to cast to")

    device = common_device({"input": input})

    if not input.dtype.is_floating_point or (input.dtype is torch.float64 and dtype.itemsize == 2):
        # The kernel pads rows with -inf, which integers do not have. It would round float64 once to a half type, where
        # torch rounds to float32 in between.
        input = input.to(dtype)

    output = recorder.empty(input.shape, contiguous_strides(input.shape), dtype, device)

    if boundary.has_work(output):
        operands = {"output": output, "input": input}
        operands = operands if input.ndim else {name: tensor.view(1) for name, tensor in operands.items()}
        rows.launch(premake, operands, dim, walk=walk, across=across)

    return output
