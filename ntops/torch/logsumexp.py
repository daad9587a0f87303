from ntops.host import reductions
from ntops.host.reduction_arguments import called_as_in_torch
from ntops.kernels.logsumexp import premake
from ntops.launch.recorder import repeatable


@repeatable
@called_as_in_torch()
def logsumexp(input, dim, keepdim=False, *, out=None):
    """Compute ``log(sum(exp(input)))`` over dims, as :func:`torch.logsumexp` does; in float32 for half types.

    See :func:`ntops.host.reductions.reduce` for errors.

    :param dim: The dim or dims that are reduced.
    :param out: Where the result is written, of any floating-point dtype. No elements give -inf.
    """
    return reductions.of_exponentials(premake, input, dim, keepdim, out)
