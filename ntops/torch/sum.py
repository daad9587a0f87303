import torch

from ntops.host import reductions
from ntops.host.arguments import check_tensor
from ntops.host.reduction_arguments import called_as_in_torch, result_dtype
from ntops.kernels import amax
from ntops.kernels.sum import premake
from ntops.launch.recorder import repeatable


@repeatable
@called_as_in_torch("keepdim", "out")
def sum(input, dim=None, keepdim=False, *, dtype=None, out=None):
    """Compute the sum over dims, as :func:`torch.sum` does; in float32 for half types. No elements give 0.

    See :func:`ntops.host.reductions.reduce` for errors.

    :param input: A tensor of any shape and strides.
    :param dim: The dim or dims that are reduced; ``None`` or none: all.
    :param dtype: The dtype of the result, to which ``input`` is cast first; by default int64 for integers and bool.
    :param out: Where the result is written; without ``dtype``, the result has its dtype.
    """
    check_tensor(input, "input")
    dtype = result_dtype(dtype, out, input.dtype if input.is_floating_point() else torch.int64)

    if dtype is torch.bool:
        # The sum of bools is true if one of them is.
        return reductions.reduce(amax.premake, input, dim, keepdim, dtype, out, empty=0, padding=0)

    return reductions.reduce(premake, input, dim, keepdim, dtype, out, empty=0)
