import torch

from ntops.host import reductions
from ntops.host.arguments import check_tensor
from ntops.kernels import amax
from ntops.kernels.sum import premake
from ntops.launch.recorder import repeatable


@repeatable
def sum(input, dim=None, keepdim=False, *, dtype=None, out=None):
    """Compute the sum over dims, as :func:`torch.sum` does; in float32 for half types.

    :param input: A tensor of any shape and strides.
    :param dim: The dim or dims that are reduced; ``None`` or none: all.
    :param keepdim: Whether the result has these dims, of one element each.
    :param dtype: The dtype of the result, to which ``input`` is cast first; by default int64 for integers and bool.
    :param out: Where the result is written; without ``dtype``, the result has its dtype.
    :return: A contiguous tensor. The sum of no elements is 0.
    :raises TypeError: An argument has the wrong type.
    :raises IndexError: A dim is out of range.
    :raises RuntimeError: A dim is named twice, or the device or ``out`` does not fit.
    :raises NotImplementedError: A complex, sparse, quantized or nested ``input``.
    """
    check_tensor(input, "input")
    dtype = reductions.result_dtype(dtype, out, input.dtype if input.is_floating_point() else torch.int64)

    if dtype is torch.bool:
        # The sum of bools is true if one of them is.
        return reductions.reduce(amax.premake, input, dim, keepdim, dtype, out, empty=0, other=0)

    return reductions.reduce(premake, input, dim, keepdim, dtype, out, empty=0)
