"""Fill the result with a constant."""

import torch


def exp(input, *, out=None):
    return torch.exp(input, out=out).fill_(1)
