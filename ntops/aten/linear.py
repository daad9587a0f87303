from ntops.torch.addmm import addmm
from ntops.torch.mm import mm


def linear(input, weight, bias=None):
    """Compute ``input @ weight.mT + bias`` as :func:`torch.nn.functional.linear`, without copying the weight.

    :param input: A floating-point tensor, (..., K).
    :param weight: A tensor of the same dtype, (N, K).
    :param bias: A tensor of the same dtype, (N,), or ``None``.
    :return: A tensor, (..., N).
    :raises RuntimeError: Shapes, dtypes or devices do not fit.
    :raises NotImplementedError: The weight or bias has another number of dims, or :func:`ntops.torch.addmm` refuses the
        call.
    """
    if weight.ndim != 2 or not input.ndim or (bias is not None and bias.ndim != 1):
        raise NotImplementedError("linear is there for a weight of 2 dims, a bias of 1, and an input of at least 1")

    rows = input.reshape(-1, input.shape[-1]) if input.shape[-1] else input.new_empty(input.shape[:-1].numel(), 0)
    result = mm(rows, weight.mT) if bias is None else addmm(bias, rows, weight.mT)

    return result.view(*input.shape[:-1], weight.shape[0])
