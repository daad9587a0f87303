from ntops.host import reductions
from ntops.host.reduction_arguments import called_as_in_torch
from ntops.kernels.amin import premake
from ntops.launch.recorder import repeatable


@repeatable
@called_as_in_torch()
def amin(input, dim=(), keepdim=False, *, out=None):
    """Compute the smallest element over dims, as :func:`torch.amin` does; arguments are those of ``sum``."""
    return reductions.extreme(premake, input, dim, keepdim, out, 1)
