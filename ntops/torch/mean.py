from ntops.host import reductions
from ntops.host.arguments import check_tensor
from ntops.host.reduction_arguments import called_as_in_torch, floating_dtype
from ntops.kernels import sum
from ntops.kernels.mean import premake
from ntops.launch.recorder import repeatable


@repeatable
@called_as_in_torch("keepdim")
def mean(input, dim=None, keepdim=False, *, dtype=None, out=None):
    """Compute the mean over dims, as :func:`torch.mean` does; arguments and errors are those of ``sum``.

    :param dtype: The dtype of the result, which must be floating-point. No elements give NaN.
    """
    check_tensor(input, "input")
    dtype = floating_dtype("mean", dtype, out if input.is_floating_point() else None, input.dtype)

    return reductions.reduce(premake, input, dim, keepdim, dtype, out, empty=float("nan"), count="count", parts=sum)
