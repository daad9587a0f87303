from ntops.host.softmax import normalize
from ntops.kernels.log_softmax import premake
from ntops.launch.recorder import repeatable


@repeatable
def log_softmax(input, dim, dtype=None):
    """Compute ``log(softmax(input))`` over ``dim``, as :func:`torch.nn.functional.log_softmax` does.

    Arguments and errors are those of ``softmax``.
    """
    return normalize(premake, "log_softmax", input, dim, dtype)
