import torch

from ntops.host.arguments import check_tensor
from ntops.host.cumulative import cumulate
from ntops.host.reduction_arguments import called_as_in_torch, result_dtype
from ntops.kernels.cumsum import premake
from ntops.launch.recorder import repeatable


@repeatable
@called_as_in_torch()
def cumsum(input, dim, *, dtype=None, out=None):
    """Compute the cumulative sum along a dim, as :func:`torch.cumsum` does; in float32 for half types.

    See :func:`ntops.host.cumulative.cumulate` for errors.

    :param input: A tensor of any shape and strides.
    :param dim: The dim along which elements are summed.
    :param dtype: The dtype of the result, to which ``input`` is cast first; by default int64 for integers and bool.
    :param out: Where the result is written; without ``dtype``, the result has its dtype.
    :raises NotImplementedError: A result of dtype bool, unless there are no elements or no dims.
    """
    check_tensor(input, "input")
    dtype = result_dtype(dtype, out, input.dtype if input.is_floating_point() else torch.int64)

    # torch fills a result without dims, and has no kernel for bool.
    if dtype is torch.bool and input.ndim and input.numel():
        raise NotImplementedError("cumsum of bool is not defined; give another 'dtype' to cast to")

    return cumulate(premake, input, dim, dtype, out)
