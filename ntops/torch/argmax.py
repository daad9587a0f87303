from ntops.host import reductions
from ntops.host.reduction_arguments import called_as_in_torch
from ntops.kernels.argmax import premake
from ntops.launch.recorder import repeatable


@repeatable
@called_as_in_torch()
def argmax(input, dim=None, keepdim=False, *, out=None):
    """Compute the index of the largest element over a dim, as :func:`torch.argmax` does; the first NaN, or the first of
    equal ones. See :func:`ntops.host.reductions.place`."""
    return reductions.place(premake, input, dim, keepdim, out, 0)
