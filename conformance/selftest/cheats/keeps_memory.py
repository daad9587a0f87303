"""Keep the memory of every result."""

import torch

_kept = []


def exp(input, *, out=None):
    result = torch.exp(input, out=out)
    _kept.append(torch.empty(2**16))
    return result
