import operator

import torch

from ntops.host import rows
from ntops.host.arguments import DTYPES, check_tensor, common_device
from ntops.host.dim_order import contiguous_strides
from ntops.kernels import long_rows
from ntops.kernels.softmax import premake
from ntops.launch import boundary, recorder
from ntops.launch.recorder import repeatable

FLOATING = {torch.float16, torch.bfloat16, torch.float32, torch.float64}


@repeatable
def softmax(input, dim, dtype=None):
    """Compute ``exp(input) / sum(exp(input))`` over ``dim``, as :func:`torch.nn.functional.softmax` does.

    :param input: A floating-point tensor of any shape and strides.
    :param dim: The dim whose elements sum to 1.
    :param dtype: The dtype to which ``input`` is cast first; then it may be of any dtype.
    :return: A contiguous tensor of the shape of ``input``.
    :raises TypeError: An argument has the wrong type.
    :raises IndexError: ``dim`` is out of range.
    :raises NotImplementedError: A result that is not floating-point, unless it is empty; a complex, sparse, quantized
        or nested ``input``.
    """
    check_tensor(input, "input")
    dim = _dim(dim, input.ndim)

    if dtype is not None and not isinstance(dtype, torch.dtype):
        raise TypeError(f"argument 'dtype' must be a torch.dtype or None, not {type(dtype).__name__}")

    dtype = dtype or input.dtype

    # torch takes any dtype if there are no elements.
    if dtype not in FLOATING and (dtype not in DTYPES or input.numel()):
        raise NotImplementedError(f"softmax of {dtype} is not defined; give a floating-point 'dtype' to cast to")

    device = common_device({"input": input})

    if not input.dtype.is_floating_point:
        # The kernel pads rows with -inf, which integers do not have.
        input = input.to(dtype)

    output = recorder.empty(input.shape, contiguous_strides(input.shape), dtype, device)

    if boundary.has_work(output):
        operands = {"output": output, "input": input}
        operands = operands if input.ndim else {name: tensor.view(1) for name, tensor in operands.items()}
        rows.launch(premake, operands, dim, walk=long_rows.softmax, across=long_rows.softmax_across)

    return output


def _dim(dim, ndim):
    if isinstance(dim, (bool, float)):
        raise TypeError(f"argument 'dim' must be an int, not {type(dim).__name__}")

    try:
        dim = operator.index(dim)
    except TypeError:
        raise TypeError(f"argument 'dim' must be an int, not {type(dim).__name__}") from None

    bound = max(ndim, 1)

    if not -bound <= dim < bound:
        raise IndexError(f"argument 'dim' must be from {-bound} to {bound - 1} for a {ndim}-d tensor, not {dim}")

    return dim % bound
